# SPDX-License-Identifier: Apache-2.0
"""Verification of SGLang's drafts by torch.ops.specdec, as a file in SGLang's own tree: nothing is patched at run time.

The file would be sglang/kernels/ops/speculative/specdec.py. Where SGLang picks the function that
verifies a step (`_get_spec_sampling_verify_fn` in sglang/srt/speculative/eagle_utils.py), one line would call it:

    return specdec.verify_fn(chosen, use_rejection_sampling)

A plugin registers the ops (`import specdec_kernels`), and SGLANG_USE_SPECDEC=1 turns them on. Steps that the ops do not
serve go to `chosen`, the function that SGLang picked, which takes the same arguments.
"""

import functools
import inspect
import os
from collections.abc import Callable

import torch


@functools.cache
def is_enabled() -> bool:
    """Return whether the switch is on and a plugin has registered the ops."""
    return os.environ.get("SGLANG_USE_SPECDEC", "0") == "1" and hasattr(torch.ops.specdec, "verify_tree")


@functools.cache
def probe(
    op: str, device_type: str, dtype: torch.dtype, draft_dtype: torch.dtype | None, has_thresholds: bool
) -> str | None:
    """Return why an op does not serve a step, in words; None if it does. Runs nothing."""
    from specdec_kernels import supports

    how: dict = {"method": "target_only", "draft": False} if op == "verify_tree" else {"draft_dtype": draft_dtype}
    if has_thresholds and op == "verify_tree":
        how |= {"rule": "thresholds", "alpha": (0.5, 0.5)}
    return supports(op, device=device_type, dtype=dtype, kind="probs", **how).reason


def verify_fn(theirs: Callable, use_rejection_sampling: bool) -> Callable:
    """Return a function that verifies a step: by our function if it serves the step, else by `theirs`."""
    if not is_enabled():
        return theirs
    from specdec_kernels.integrations import sglang

    if use_rejection_sampling:
        op, ours = "verify_chain", sglang.chain_speculative_sampling_triton
    else:
        op, ours = "verify_tree", sglang.tree_speculative_sampling_target_only
    signature = inspect.signature(ours)

    def verify(*args, **kwargs) -> None:
        given = signature.bind(*args, **kwargs).arguments
        rows, draft = given["target_probs"], given.get("draft_probs")
        has_thresholds = min(given.get("threshold_single", 1.0), given.get("threshold_acc", 1.0)) < 1
        why_not = probe(op, rows.device.type, rows.dtype, None if draft is None else draft.dtype, has_thresholds)
        (theirs if why_not else ours)(*args, **kwargs)

    return verify
