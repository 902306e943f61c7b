# SPDX-License-Identifier: Apache-2.0
"""A step that fails ends the requests that fail by themselves, and no others.

Every step reads the tokens that a request has and the keys of those tokens. A step that failed has changed neither, so
its requests may take it again in smaller batches.
"""

import logging
from collections.abc import Callable

from .result import Event
from .sequence import Batch

__all__ = ["each_alone"]

_log = logging.getLogger(__name__)


def each_alone(
    step: Callable[[Batch], list[Event]], forget: Callable[[Batch], None], batch: Batch, first: bool = True
) -> list[Event]:
    """Take a step of the batch. If it fails, take it again with each half of the batch, down to single requests: a
    request ends by an error if a step with nobody else fails that is not its first attempt.

    step: the step, which raises before it changes a sequence. forget: drops what a failed step has left.
    """
    try:
        return step(batch)
    except BaseException as error:
        forget(batch)
        if not isinstance(error, Exception):
            raise
        if len(batch) == 1 and not first:
            return [batch[0].fail("step", error)]
        _log.warning("A step of %d requests failed and is taken again: %r", len(batch), error)
    parts = batch.halves() if len(batch) > 1 else [batch]
    return [event for part in parts for event in each_alone(step, forget, part, first=False)]
