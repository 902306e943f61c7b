# SPDX-License-Identifier: Apache-2.0
"""Isolation of failing requests: a failed step ends only the requests that also fail alone.

A failed step has changed neither its requests' tokens nor their cached keys, so they can be tried again in smaller
batches. In a session over ranks a failed step ends the run.
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
    """Take a step of the batch. If it fails, retry with each half of the batch, down to single requests.

    A request ends with an error if a retry with that request alone fails.

    step: the step; if it raises, it has changed no sequence. forget: drops the leftovers of a failed step.
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
    """Take a step that other ranks take too. It is not retried: the other ranks do not know that it failed here."""
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
