# SPDX-License-Identifier: Apache-2.0
"""The decode loop: draft, score the draft with one forward pass of the target, verify, emit; roll back by moving on.

What a drafter proposes knows how it is scored, verified and committed (proposal.py). Plain decoding is the same loop
with a drafter that proposes nothing, so all share prefill, caches, sampling and bookkeeping. A step of it, and how
requests come and go between steps, is session.py; here is what decodes a list of them to their ends.
"""

from collections.abc import Callable, Iterator

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
        Results in the order of the requests, and the statistics of the whole.

    Raises:
        ValueError: as `stream`.
    """
    output = Output()
    for event in stream(target, requests, drafter, output=output, **options):
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
) -> Iterator[Event]:
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
        output: is filled with results and statistics.

    Returns:
        An iterator of events, the tokens of one request at one step each.

    Raises:
        ValueError: a request that the target, the drafter or `verify` cannot serve, before anything is decoded.
    """
    if not requests:
        raise ValueError("generate: requests must not be empty")
    session = Session(
        target,
        drafter,
        verify=verify,
        max_batch=len(requests) if max_batch is None else min(max_batch, len(requests)),
        capacity=max(len(request.prompt) + request.max_new_tokens for request in requests),
        prefill_chunk=prefill_chunk,
        tokenizer=tokenizer,
        output=output,
    )
    for request in requests:
        session.submit(request)
    yield from session.events()
