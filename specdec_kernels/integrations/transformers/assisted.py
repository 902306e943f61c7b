# SPDX-License-Identifier: Apache-2.0
"""transformers' own assisted generation, verified by verify_chain.

``generate(..., assistant_model=...)`` verifies a sampled draft by a function of its own. ``patch`` puts another in its
place until ``unpatch``. It mends two things: where nothing is left of (p - q)+ the function divides 0 by 0 and the
draw fails, and its coins come from torch's global generator. The draft model's draws still do: what a seed fixes are
acceptances and final tokens.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
from collections.abc import Callable
from typing import Any

import torch

from specdec_kernels.integrations import _keys
from specdec_kernels.ops.verify_chain import verify_chain

log = logging.getLogger(__name__)

MODULE, NAME = "transformers.generation.utils", "_speculative_sampling"
_FIRST = "candidate_input_ids candidate_logits candidate_length new_logits"
# Its parameters in each form that is known: of 5.0 to 5.12 at least, and of 5.23
PARAMETERS = (f"{_FIRST} is_done_candidate", _FIRST, f"{_FIRST} assistant_ensemble_weight")


def patch(seed: int | None = None, generator: torch.Generator | None = None) -> bool:
    """Has transformers' assisted generation verify by verify_chain, in this process; a second call changes the seed.

    Args:
        seed: the same prompt meets the same coins again; a step's are told apart by the number of tokens so far.
        generator: in its place, gives each step a seed. With neither torch's own generator does.

    Returns:
        Whether it is patched. A transformers whose function takes other arguments than those that are known is left
        alone, and a warning says so.

    Raises:
        ValueError: seed and generator are both given.
    """
    if seed is not None and generator is not None:
        raise ValueError("patch: seed and generator exclude each other, got both")
    try:
        module = importlib.import_module(MODULE)
        upstream = inspect.unwrap(getattr(module, NAME))
    except (ImportError, AttributeError) as error:
        log.warning("transformers' assisted generation is not patched: %s", error)
        return False
    came = " ".join(inspect.signature(upstream).parameters)
    if came not in PARAMETERS:
        log.warning("transformers' assisted generation is not patched: %s takes (%s)", NAME, came)
        return False
    setattr(module, NAME, _verifying(upstream, seed, generator))
    return True


def unpatch() -> None:
    """transformers' own function again; nothing where it is not patched."""
    module = importlib.import_module(MODULE)
    function = getattr(module, NAME)
    if hasattr(function, "specdec_kernels"):
        setattr(module, NAME, function.__wrapped__)


def _verifying(upstream: Callable, seed: int | None, generator: torch.Generator | None) -> Callable:
    signature = inspect.signature(upstream)

    @functools.wraps(upstream)
    def replaced(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return speculative_sampling(seed, generator, **signature.bind(*args, **kwargs).arguments)

    replaced.specdec_kernels = True  # type: ignore[attr-defined]
    return replaced


def speculative_sampling(
    seed: int | None,
    generator: torch.Generator | None,
    candidate_input_ids: torch.Tensor,
    candidate_logits: torch.Tensor,
    candidate_length: int,
    new_logits: torch.Tensor,
    is_done_candidate: bool = False,
    assistant_ensemble_weight: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """transformers' ``_speculative_sampling``: ids [1, T+g], logits [1, g, Vq] and [1, g+1, V], as processed.

    assistant_ensemble_weight w is the rule "ensemble" with alpha w: acceptance min(1, (w p + (1 - w) q) / q), the same
    residual, and p behind the last draft. A draft of draft probability 0 is rejected. is_done_candidate: the draft has
    ended the text, so that nothing comes behind it if all of it is kept.

    Returns:
        (kept drafts and one more token [1, n+1], n).
    """
    device, length = new_logits.device, candidate_input_ids.size(1) - candidate_length
    seeds = _keys.drawn(generator, 1, device) if seed is None else _keys.of_rows(seed, 1, device)
    rule: dict[str, Any] = {}
    if assistant_ensemble_weight is not None:
        rule = {"rule": "ensemble", "alpha": float(assistant_ensemble_weight)}
    out = verify_chain(
        new_logits,
        candidate_input_ids[:, length:],
        candidate_logits,
        seed=seeds,
        offset=torch.full((1,), length, dtype=torch.int64, device=device),
        **rule,
    )
    n = out.num_accepted[0].to(torch.int64)
    if is_done_candidate and n == candidate_length:
        n = n - 1
    return out.tokens[:, : int(n) + 1], n
