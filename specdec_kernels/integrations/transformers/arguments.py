# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments that ``speculative`` takes in addition to those of ``generate``."""

from __future__ import annotations

import operator
from typing import Any

import torch

from specdec_kernels.ops import _check, _rules
from specdec_kernels.registry import CHAIN_METHODS, RULES

_MODEL = ("vocab_size", "new_cache", "forward")  # attributes of a decode.Model that a transformers model does not have
_DRAFTER = ("num_lookahead", "begin", "propose")  # attributes of a decode.Drafter


def check(op: str, drafter: Any, target: Any, verify: Any, rule: Any, alpha: Any, output: Any, stop: Any, reader: Any):
    """Raise TypeError or ValueError for the first argument that cannot be used."""
    from specdec_kernels.decode import Output
    from specdec_kernels.decode.text import check_stop

    _check_drafter(op, drafter)
    if target is not None and not _has(target, _MODEL):
        hint = ": wrap it, decode.adapt(model)" if isinstance(target, torch.nn.Module) else ""
        raise TypeError(f"{op}: target must be a decode.Model or None, got {_shown(target)}{hint}")
    _check.choice(op, "verify", verify, CHAIN_METHODS)
    _check.choice(op, "rule", rule, RULES)
    if isinstance(alpha, torch.Tensor):
        raise TypeError(f"{op}: alpha must be a number, a pair of numbers or None, got {_shown(alpha)}")
    _rules.arguments(op, "token", rule, alpha, torch.device("cpu"))
    if output is not None and not isinstance(output, Output):
        raise TypeError(f"{op}: output must be a decode.Output or None, got {_shown(output)}")
    check_stop(op, stop)
    if stop and not _has(reader, ("decode",)):
        raise TypeError(f"{op}: stop needs a tokenizer as stop_tokenizer, got {_shown(reader)}")


def _check_drafter(op, x):
    if x is None or _has(x, _DRAFTER) or (isinstance(x, torch.nn.Module) and hasattr(x, "config")):
        return
    hint = ": wrap it, decode.ModelDrafter(model)" if _has(x, _MODEL) else ""
    wanted = "a decode.Drafter, a transformers model or None"
    raise TypeError(f"{op}: drafter must be {wanted}, got {_shown(x)}{hint}")


def check_streamer(op: str, x: Any) -> None:
    if x is not None and not _has(x, ("put", "end")):
        raise TypeError(f"{op}: stream_to must be a streamer with put and end, or None, got {_shown(x)}")


def one_prompt(op: str, input_ids: torch.Tensor) -> None:
    """Raise ValueError for a batch, since a streamer cannot tell rows apart."""
    if input_ids.size(0) != 1:
        raise ValueError(f"{op}: stream_to takes one prompt, got {input_ids.size(0)}")


def seed(op: str, x: Any) -> int:
    """Return the seed as an int of any size. None: draw one from torch's generator."""
    if x is None:
        return int(torch.randint(1 << 62, (), device="cpu"))
    return _int(op, "seed", x)


def max_batch(op: str, x: Any) -> int | None:
    if x is None:
        return None
    if (n := _int(op, "max_batch", x)) < 1:
        raise ValueError(f"{op}: max_batch must be >= 1, got {n}")
    return n


def _int(op, name, x) -> int:
    """Return x as an int; numpy and torch integers are accepted too."""
    try:
        n = None if isinstance(x, bool) or str(getattr(x, "dtype", "")).endswith("bool") else operator.index(x)
    except TypeError:
        n = None
    if n is None:
        raise TypeError(f"{op}: {name} must be an int or None, got {_shown(x)}")
    return n


def _has(x, names) -> bool:
    """Return whether x is an object (not a class) with these attributes."""
    return not isinstance(x, type) and all(hasattr(x, name) for name in names)


def _shown(x) -> str:
    return f"the class {x.__name__}" if isinstance(x, type) else _check.shown(x)
