# SPDX-License-Identifier: Apache-2.0
"""What a target, a slot, a drafter and a method can serve; the errors say what a request asked for beyond it."""

from ..registry import CHAIN_METHODS
from .proposal import Drafter
from .sequence import Sequence

__all__ = ["check_device", "check_method", "check_rule", "check_size"]


def check_size(target, capacity: int, s: Sequence) -> None:
    """Of the target, and of a slot."""
    largest, needs = max(s.tokens), len(s.tokens) + s.remaining
    if min(s.tokens) < 0 or largest >= target.vocab_size:
        raise ValueError(
            f"generate: prompt ids must lie in [0, V={target.vocab_size}), request {s.index} has {largest}"
        )
    for positions, whose in ((target.max_positions, "the model's"), (capacity, "a slot's")):
        if needs > positions:
            raise ValueError(
                f"generate: prompt and max_new_tokens must fit {whose} {positions} positions, "
                f"request {s.index} needs {needs}"
            )


def check_device(target, part) -> None:
    """part: a drafter, or something that it is made of."""
    for inner in getattr(part, "parts", ()):
        check_device(target, inner)
    device = getattr(getattr(part, "model", None), "device", target.device)
    if device != target.device:
        raise ValueError(f"generate: a draft model must be on the target's device, {target.device}, got {device}")


def check_method(drafter: Drafter, verify: str) -> None:
    if verify not in CHAIN_METHODS:
        raise ValueError(f"generate: verify must be 'token' or 'block', got {verify!r}")
    if verify not in drafter.verifies:
        wanted = " or ".join(map(repr, drafter.verifies))
        raise ValueError(f"generate: verify must be {wanted} with {drafter.name}, got {verify!r}")


def check_rule(drafter: Drafter, s: Sequence, verify: str) -> None:
    rule = s.request.rule
    if rule not in drafter.rules:
        raise ValueError(
            f"generate: rule must be one of {', '.join(drafter.rules)} with {drafter.name}, "
            f"request {s.index} has {rule!r}"
        )
    if rule not in CHAIN_METHODS[verify].rules:
        raise ValueError(
            f"generate: rule {rule!r} is no law, so verify must be 'token', got 'block' (request {s.index})"
        )
