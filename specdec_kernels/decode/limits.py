# SPDX-License-Identifier: Apache-2.0
"""Checks that the target, the slots, the drafter and the method can serve a request; errors name what does not fit.

op: the call that the user made, with which errors begin.
"""

from itertools import chain

from ..ops import _check
from ..registry import CHAIN_METHODS, REJECT_FORBIDDEN
from .parts import parts_of
from .proposal import Drafter
from .sequence import Sequence

__all__ = ["check_device", "check_method", "check_passes", "check_rule", "check_size"]


def check_size(op: str, target, capacity: int, s: Sequence) -> None:
    """Check that the target and a slot's capacity can serve a sequence, and that stop strings have a tokenizer."""
    if s.request.stop and s.stream is None:
        raise ValueError(f"{op}: stop strings need a tokenizer (request {s.index})")
    largest, needs = max(s.tokens), len(s.tokens) + s.remaining
    if min(s.tokens) < 0 or largest >= target.vocab_size:
        raise ValueError(f"{op}: prompt ids must lie in [0, V={target.vocab_size}), request {s.index} has {largest}")
    given = {"logit_bias": s.request.logit_bias or (), "bad_words": chain(*s.request.bad_words)}
    for name, ids in given.items():
        for token in ids:
            if token >= target.vocab_size:
                wanted = f"{name} ids must lie in [0, V={target.vocab_size})"
                raise ValueError(f"{op}: {wanted}, request {s.index} has {token}")
    if (s.request.logprobs or 0) > target.vocab_size:
        wanted = f"logprobs must be at most V={target.vocab_size}"
        raise ValueError(f"{op}: {wanted}, request {s.index} has {s.request.logprobs}")
    note = getattr(target, "position_note", "")
    for positions, whose, why in ((target.max_positions, "the model's", note), (capacity, "a slot's", "")):
        if needs > positions:
            raise ValueError(
                f"{op}: prompt and max_new_tokens must fit {whose} {positions} positions{why}, "
                f"request {s.index} needs {needs}"
            )


def check_device(op: str, target, drafter) -> None:
    for part in parts_of(drafter):
        device = getattr(getattr(part, "model", None), "device", target.device)
        if device != target.device:
            raise ValueError(f"{op}: a draft model must be on the target's device, {target.device}, got {device}")


def check_passes(op: str, target, drafter, slots: int) -> None:
    """Check that the target and the draft models support batches and trees if they are needed (Model.refuses).

    Raises:
        ValueError: several rows for a model that decodes one at a time, or trees for one that takes only chains.
    """
    models = (getattr(part, "model", None) for part in parts_of(drafter))
    for model in (target, *(model for model in models if hasattr(model, "new_cache"))):
        refuses = getattr(model, "refuses", {})
        name = type(getattr(model, "model", model)).__name__
        if slots > 1 and "batches" in refuses:
            raise ValueError(f"{op}: max_batch must be 1 with {name}, got {slots}: in a batch, {refuses['batches']}")
        if not drafter.chains and "trees" in refuses:
            raise ValueError(f"{op}: {drafter.name} cannot be used with {name}: in a tree, {refuses['trees']}")


def check_method(op: str, drafter: Drafter, verify: str | None) -> str:
    """Return how chains are verified. None: token by token if the drafter serves this, else its first method."""
    if verify is None:
        return "token" if "token" in drafter.verifies else drafter.verifies[0]
    _check.choice(op, "verify", verify, CHAIN_METHODS)
    if verify not in drafter.verifies:
        wanted = " or ".join(map(repr, drafter.verifies))
        raise ValueError(f"{op}: verify must be {wanted} with {drafter.name}, got {verify!r}")
    return verify


def check_rule(op: str, drafter: Drafter, s: Sequence, verify: str) -> None:
    rule = s.request.rule
    if rule not in drafter.rules:
        raise ValueError(
            f"{op}: rule must be one of {', '.join(drafter.rules)} with {drafter.name}, request {s.index} has {rule!r}"
        )
    if s.request.forbids and rule not in REJECT_FORBIDDEN and (rule == "synthetic" or not drafter.draws_viewed):
        why = f"where {s.request.forbids} forbids ids, since other rules may emit those that {drafter.name} drafts"
        raise ValueError(
            f"{op}: rule must be one of {', '.join(REJECT_FORBIDDEN)} {why}, request {s.index} has {rule!r}"
        )
    if verify == "race" and rule != "exact":
        raise ValueError(f"{op}: rule must be 'exact' with verify 'race', request {s.index} has {rule!r}")
    if rule not in CHAIN_METHODS[verify].rules:
        raise ValueError(
            f"{op}: rule {rule!r} defines no distribution, so verify must be 'token', got 'block' (request {s.index})"
        )
