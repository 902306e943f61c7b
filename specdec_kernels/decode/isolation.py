# SPDX-License-Identifier: Apache-2.0
"""A step that fails ends the requests that fail by themselves, and no others; over ranks it ends the run.

Every step reads the tokens that a request has and the keys of those tokens. A step that failed has changed neither, so
its requests may take it again in smaller batches.
"""

import logging
from collections.abc import Callable

from .result import Event
from .sequence import Batch

__all__ = ["each_alone", "over_ranks_error", "together"]

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


def together(step: Callable[[Batch], list[Event]], forget: Callable[[Batch], None], batch: Batch) -> list[Event]:
    """Take a step that other ranks take too. It is not taken again: they do not know that it failed here."""
    try:
        return step(batch)
    except BaseException as error:
        forget(batch)
        if not isinstance(error, Exception):
            raise
        raise over_ranks_error("step", error) from error


def over_ranks_error(where: str, error: Exception) -> RuntimeError:
    what = f"{type(error).__name__}: {error}"
    return RuntimeError(f"{where}: a session over ranks must succeed on all of them, got an error on this one: {what}")
