# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.smoke``: check five CUDA ops at real sizes, in 20 seconds, before measurements.

Every call is made on the default path of the CUDA ops and on three others (streaming, clusters, no overlap of
launches), and all must give the same bits. It is also made on the CPU. Tokens, counts and status must be the same, and
logprobs and stats as close as two float32 evaluations are; of kseq_rho only p_acc is compared. A request may differ if
the margin of the float64 reference says that rounding decides. Last, the installed package checks that the CUDA ops
draw from the right distributions (``python -m specdec_kernels selfcheck``).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Annotated, NamedTuple

import torch
import typer
from torch.utils._pytree import tree_map_only

import specdec_kernels as sk
from bench import rehearsal, verify_chain, verify_tree
from bench.peers.switched import OVERLAP, PATH, switch
from bench.stress import bits
from specdec_kernels import example_calls, selfcheck
from specdec_kernels.registry import TREE_METHODS

WAYS = {"streaming": (PATH, "streaming"), "clusters": (PATH, "cluster"), "no overlap": (OVERLAP, "0")}
# Results y may differ by CLOSE + RELATIVE * |y|. A float32 logprob has the error of a rounding or two of its row's
# maximum, of its logit and of ln V: below 1e-5 where these are at most 40. RELATIVE is for larger ones.
CLOSE, RELATIVE = 1e-5, 2.0**-22
# If at most this many requests of a call differ, the reference finds which of them are wrong (up to a second each). If
# more differ, all of them count as wrong.
CHECKED = 16


class Call(NamedTuple):
    name: str
    op: str
    arguments: dict  # keyword arguments of the public function; the first dimension of tensors is the request


def calls(B: int, V: int) -> Iterator[Call]:
    """Yield calls on the GPU: chains and trees of each kind, row_stats, sample and kseq_rho."""
    x = verify_chain.inputs(verify_chain.Step(B, V, "bf16", temperature=0.7), "cuda")
    chain = verify_chain.arguments(x)
    target, filters = (
        chain["target"],
        {"top_k": torch.full_like(x.seed, 50), "top_p": torch.full_like(x.temperature, 0.9)},
    )
    kinds = {
        "stats": chain,
        "no stats": chain | {"draft": sk.Rows(x.draft, temperature=x.temperature)},
        "filters": chain | {"target": target._replace(**filters)},
        "greedy": chain | {"target": target._replace(temperature=torch.zeros_like(x.temperature))},
        "one-hot": chain | {"draft": None},
        "blocks": chain | {"method": "block"},
        "a rule": chain | {"rule": "lossy", "alpha": 0.3},
    }
    for kind, arguments in kinds.items():
        yield Call(kind, "verify_chain", arguments)
    last, draft = x.target[:, -1].contiguous(), x.draft[:, -1].contiguous()
    yield Call("rows", "row_stats", {"rows": sk.Rows(last, x.temperature)})
    yield Call("rows, top-k", "row_stats", {"rows": sk.Rows(last, x.temperature, top_k=50)})
    yield Call("k=1", "sample", {"rows": sk.Rows(last, 0.7), "seed": x.seed, "offset": x.offset})
    yield Call("k=4", "kseq_rho", {"p": last, "q": draft, "k": 4})
    x = verify_tree.inputs(B, V, "bf16", "cuda")
    for method in TREE_METHODS:
        yield Call(method, "verify_tree", verify_tree.arguments(x, method))


def answer(call: Call, arguments: dict) -> dict[str, torch.Tensor]:
    """Make a call; return the tensors of its result by name."""
    result = getattr(sk, call.op)(**arguments)
    named = example_calls.flat(result._asdict()) if hasattr(result, "_asdict") else {"stats": result}
    return {name: x for name, x in named.items() if isinstance(x, torch.Tensor) and name != "rows.logits"}


def other_bits(call: Call, ours: dict[str, torch.Tensor]) -> list[str]:
    """Return the paths on which a call gives other bits than on the default path."""
    found = []
    for way, (variable, value) in WAYS.items():
        with ExitStack() as stack:
            stack.enter_context(switch(variable, value))
            there = answer(call, call.arguments)
        if not all(torch.equal(bits(there[name]), bits(x)) for name, x in ours.items()):
            found.append(way)
    return found


def unlike(call: Call, ours: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return [B] bool: the requests for which two results differ."""
    compared = ["p_acc"] if call.op == "kseq_rho" else list(right)  # near its maximum p_acc hardly depends on rho
    return torch.stack([_differs(ours[name].cpu(), right[name]).flatten(1).any(1) for name in compared]).any(0)


def _differs(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x, y = (t.view(len(t), -1) for t in (x, y))
    if not x.is_floating_point():
        return x != y
    same = (x == y) | (x.isnan() & y.isnan())
    return ~same & ~((x - y).abs() <= CLOSE + RELATIVE * y.abs())


def of(arguments: dict, ids: torch.Tensor) -> dict:
    """Return the arguments of some requests."""
    return tree_map_only(torch.Tensor, lambda x: x[ids], arguments)


def wrong(call: Call, ours: dict[str, torch.Tensor]) -> tuple[list[int], int]:
    """Return the requests whose results differ from the CPU's, and how many more differ where rounding may decide."""
    arguments = tree_map_only(torch.Tensor, torch.Tensor.cpu, call.arguments)
    ids = unlike(call, ours, answer(call, arguments)).nonzero()[:, 0]
    reference = getattr(sk.reference.banded, call.op, None)
    if not len(ids) or len(ids) > CHECKED or reference is None:
        return ids.tolist(), 0
    clear = reference(**of(arguments, ids)).margin > 1
    return ids[clear].tolist(), int((~clear).sum())


def check(batches: list[int], vocabulary: int) -> list[str]:
    """Make all calls; return the faults, one line each."""
    faults, made, close = [], 0, 0
    for B in batches:
        for call in calls(B, vocabulary):
            ours = answer(call, call.arguments)
            ways, (ids, near) = other_bits(call, ours), wrong(call, ours)
            made, close = made + 1, close + near
            where = f"{call.op} {call.name} B={B}"
            faults += [f"{where}: different bits on path {', '.join(ways)}"] if ways else []
            faults += [f"{where}: {len(ids)} requests differ from the CPU's, the first is {ids[0]}"] if ids else []
    ways = f"each on {1 + len(WAYS)} paths and the CPU"
    print(
        f"{made} calls at V={vocabulary}, B={batches}, {ways}: {len(faults)} faults; rounding decides {close} requests"
    )
    return faults


def main(
    vocabulary: Annotated[int, typer.Option(help="size of the vocabulary")] = 151_936,
    batch: Annotated[list[int] | None, typer.Option(help="requests; may be given again")] = None,
) -> None:
    if not rehearsal.active():
        if sk.backends.chosen() != "cuda":
            sys.exit(f"GPU tensors run on {sk.backends.chosen()}: {sk.backends.lacks('cuda') or sk.backends.misfit()}")
        if torch.cuda.get_device_capability()[0] < 9:
            del WAYS["clusters"]
    faults = check(batch or [1, 8, 16, 64], vocabulary)
    for fault in faults:
        print(fault)
    passed = selfcheck.run(backends=("cuda",)) and not faults
    print("right at real size" if passed else "WRONG: " + "; ".join([*faults, "see above"])[:120])
    sys.exit(not passed)


if __name__ == "__main__":
    typer.run(main)
