# SPDX-License-Identifier: Apache-2.0
"""The decode loop: draft, score the draft with one forward pass of the target, verify, emit. Rollback copies nothing.

A proposal defines how it is scored, verified and committed (proposal.py). Plain decoding is the same loop with a
drafter that proposes nothing, so prefill, caches, sampling and bookkeeping are shared. A single step, and how requests
join and leave between steps, is in session.py. The functions here decode a list of requests until all have finished.
"""

from collections.abc import Callable, Generator
from contextlib import closing

from .interfaces import check_count, check_requests
from .models.prompt import PREFILL_CHUNK
from .request import Request
from .result import Event, Output
from .session import Session

__all__ = ["generate", "stream"]


def generate(
    target, requests: list[Request], drafter=None, *, on_event: Callable[[Event], None] | None = None, **options
) -> Output:
    """Decode `requests` until all have finished.

    Args:
        target, requests, drafter: as in `stream`.
        on_event: called with each event as its tokens arrive.
        options: the other arguments of `stream`.

    Returns:
        Results in the order of the requests, and statistics over all. A result whose `finished` is "error" has the
        tokens before the error, and the reason in `error`; `generate(...).check()` raises if there is such a result.

    Raises:
        TypeError, ValueError: as `stream`; and whatever on_event raises.
    """
    output = Output()
    with closing(_stream("generate", target, requests, drafter, output, **options)) as events:
        for event in events:
            if on_event is not None:
                on_event(event)
    return output


def stream(
    target,
    requests: list[Request],
    drafter=None,
    *,
    verify: str | None = None,
    max_batch: int | None = None,
    prefill_chunk: int = PREFILL_CHUNK,
    tokenizer=None,
    output: Output | None = None,
) -> Generator[Event, None, None]:
    """Decode `requests`, and yield the tokens of each as they arrive.

    A request's tokens depend only on the request (prompt, parameters, seed) and the drafter, up to the models'
    rounding, which may differ with the shape of the batch. With an adaptive gamma the distribution is the same, but
    the tokens may differ. With verify="race" they depend on the request alone: every drafter gives the tokens of plain
    decoding.

    Args:
        target: a Model (models/adapters.py).
        requests: at least one.
        drafter: a Drafter (proposal.py); None: plain decoding.
        verify: how chains are verified (sk.verify_chain): "token", "block" or "race". Trees are verified by the method
            of their drafter; it is "race" if and only if `verify` is. None: "token", or "race" if the drafter serves
            no other.
        max_batch: requests decoded at once; the others wait for a slot. None: all.
        prefill_chunk: the most tokens of a prompt that one pass reads.
        tokenizer: decodes the text of events.
        output: filled with results and statistics; its previous contents are dropped.

    Returns:
        An iterator of events, each with the tokens of one request in one step. close() ends it early.

    Raises:
        TypeError, ValueError: at once, for a request that the target, the drafter or `verify` cannot serve, or a
            drafter that serves another run. A later failure ends the requests concerned (see Session).
    """
    options = dict(verify=verify, max_batch=max_batch, prefill_chunk=prefill_chunk, tokenizer=tokenizer)
    return _stream("stream", target, requests, drafter, output, **options)


def _stream(
    op: str, target, requests: list[Request], drafter, output: Output | None, *, max_batch: int | None = None, **options
) -> Generator[Event, None, None]:
    """Check everything, and return the iterator of events. op: the call that errors name."""
    requests = check_requests(op, requests)
    most = len(requests) if max_batch is None else min(check_count(op, "max_batch", max_batch), len(requests))
    capacity = max(len(request.prompt) + request.max_new_tokens for request in requests)
    session = Session(target, drafter, max_batch=most, capacity=capacity, op=op, **options)
    for request in requests:
        session.submit(request)
    if output is not None:
        output.results[:], output.stats = session.results.values(), session.stats
    return _run(session)


def _run(session: Session) -> Generator[Event, None, None]:
    """Yield the session's events; closing the iterator closes the session, which frees the drafter."""
    try:
        yield from session.events()
    finally:
        session.close()
