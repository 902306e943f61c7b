# SPDX-License-Identifier: Apache-2.0
"""The decode loop: draft, score the draft with one forward pass of the target, verify, emit; roll back by moving on.

What a drafter proposes knows how it is scored, verified and committed (proposal.py). Plain decoding is the same loop
with a drafter that proposes nothing, so all share prefill, caches, sampling and bookkeeping. A step of it, and how
requests come and go between steps, is session.py; here is what decodes a list of them to their ends.
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
    """Decode `requests` to their ends.

    Args:
        target, requests, drafter: as in `stream`.
        on_event: sees the tokens as they arrive.
        options: the others of `stream`.

    Returns:
        Results in the order of the requests, and the statistics of the whole. One whose `finished` is "error" has the
        tokens that came before it, and the reason in `error`; `generate(...).check()` raises where there is one.

    Raises:
        TypeError, ValueError: as `stream`; and whatever on_event raises.
    """
    output = Output()
    with closing(stream(target, requests, drafter, output=output, **options)) as events:
        for event in events:
            if on_event is not None:
                on_event(event)
    return output


def stream(
    target,
    requests: list[Request],
    drafter=None,
    *,
    verify: str = "token",
    max_batch: int | None = None,
    prefill_chunk: int = PREFILL_CHUNK,
    tokenizer=None,
    output: Output | None = None,
) -> Generator[Event, None, None]:
    """Decode `requests`, yielding the tokens of each as they arrive.

    A request's tokens depend on itself alone (prompt, parameters, seed, drafter), up to the rounding of the models,
    which may differ with the shape of the batch. With an adaptive gamma the law is the same, the very tokens need not
    be.

    Args:
        target: a Model (models/adapters.py).
        requests: at least one.
        drafter: a Drafter (proposal.py), None for plain decoding.
        verify: "token" or "block", how chains are verified (sk.verify_chain).
        max_batch: requests decoded at once; the others wait for a slot. None: all.
        prefill_chunk: tokens of a prompt that a pass reads.
        tokenizer: gives events their text.
        output: is filled with results and statistics; what it held before is dropped.

    Returns:
        An iterator of events, the tokens of one request at one step each. close() ends it early.

    Raises:
        TypeError, ValueError: at once, for a request that the target, the drafter or `verify` cannot serve, or a
            drafter that serves another run. What fails later ends the requests concerned (Session).
    """
    requests = check_requests("generate", requests)
    most = len(requests) if max_batch is None else min(check_count("generate", "max_batch", max_batch), len(requests))
    session = Session(
        target,
        drafter,
        verify=verify,
        max_batch=most,
        capacity=max(len(request.prompt) + request.max_new_tokens for request in requests),
        prefill_chunk=prefill_chunk,
        tokenizer=tokenizer,
    )
    for request in requests:
        session.submit(request)
    if output is not None:
        output.results[:], output.stats = session.results.values(), session.stats
    return _run(session)


def _run(session: Session) -> Generator[Event, None, None]:
    """Its events; whoever stops listening frees the drafter."""
    try:
        yield from session.events()
    finally:
        session.close()
