# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.sanitize``: make the example calls with small shapes, to run under compute-sanitizer.

In float32 every example is called, in other dtypes a subset with each kind of argument. Rows are aligned and not.
Vocabularies have one entry, less than a chunk, one chunk, or several chunks and a tail. Results are only checked to be
in range; tests compare them. ``--few`` makes just enough of these calls to run every kernel, for tools that take
minutes per call.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated

import torch
import typer

import specdec_kernels as sk
from specdec_kernels import example_calls, registry

DTYPES = [getattr(torch, name) for name in registry.ROW_DTYPES]
# One entry; less than a chunk and odd; exactly one chunk; several blocks of chunks with a tail.
VOCABULARIES = (1, 77, registry.CHUNK, 10 * registry.CHUNK + 77)
WITHOUT_ROWS = ("uniforms", "build_tree", "grow_tree", "budget", "tree_mask", "count_tokens_")

# Examples that together run every compiled CUDA kernel, and every kind of tree walk.
FEW = {
    "uniforms": ["accept tests"],
    "accept": ["probabilities"],
    "residual": ["rows"],
    "row_gap": ["logits", "a sparse draft"],
    "kseq_rho": ["k of each row", "a sparse draft"],
    "row_stats": ["plain", "all filters", "penalties by slot", "penalties by tables", "sparse rows"],
    "sample": ["two tokens", "filters", "a race", "sparse rows", "sparse rows, a race"],
    "top_logprobs": ["of a step"],
    "row_topw": ["a step of beam search"],
    "support": ["of every row"],
    "build_tree": ["short drafts among them"],
    "grow_tree": ["few nodes"],
    "budget": ["of any lengths"],
    "count_tokens_": ["by slot"],
    "tree_mask": [
        *("bool, keys", "uint8, keys", "uint64, keys", "additive, keys"),
        *("additive, torch.float64", "additive, torch.bfloat16", "additive, torch.float16"),
    ],
    "verify_chain": [
        *("seeds", "filters", "penalties by slot", "penalties by tables", "rules from 0, token", "rules from 0, block"),
        *("sparse drafts", "a race"),
    ],
    "verify_tree": [
        *("kseq, drafts", "recursive, nodes", "recursive_without_replacement, nodes", "target_only, nodes"),
        *("traversal, nodes", "traversal, penalties by slot", "traversal, penalties by tables"),
        *("kseq by rules", "traversal by rules", "kseq, sparse drafts", "race, nodes"),
    ],
}


def calls(device: str, few: bool = False) -> Iterator[tuple[str, str, bool]]:
    """Make the calls; yield the op, the call's name, and whether its result is in range."""
    for op in registry.OPS:
        for inputs in [{}] if op in WITHOUT_ROWS else rows(few):
            for call in chosen(op, few, device=device, **inputs):
                where = " ".join(f"{name}={str(x).removeprefix('torch.')}" for name, x in inputs.items())
                yield op, f"{call.name} {where}", in_range(getattr(sk, op)(**call.arguments), call.arguments)


def chosen(op: str, few: bool, **inputs) -> list[example_calls.Call]:
    if few and op in FEW:
        return [call for call in example_calls.calls(op, **inputs) if call.name in FEW[op]]
    every = inputs.get("dtype", torch.float32) == torch.float32
    return (example_calls.calls if every else example_calls.few)(op, **inputs)


def rows(few: bool) -> list[dict]:
    """Return the kinds of rows, as arguments of Inputs; large rows are aligned too. few: two dtypes and two sizes."""
    if few:
        return [{"dtype": dtype, "V": V} for dtype in (torch.float32, torch.bfloat16) for V in VOCABULARIES[1::2]]
    pads = [(V, 1) for V in VOCABULARIES] + [(VOCABULARIES[-1], 0)]
    return [{"dtype": dtype, "V": V, "pad": pad} for dtype in DTYPES for V, pad in pads]


def in_range(result: object, arguments: dict) -> bool:
    """Return whether every row in use drew or emitted a token, and no other row did."""
    if not isinstance(result, (sk.VerifyChainOutput, sk.VerifyTreeOutput, sk.SampleOutput)):
        return True
    first = result.tokens[:, 0].cpu()
    present = int(arguments.get("num_requests", arguments.get("num_rows", len(first))))
    return bool((first[:present] >= 0).all() and (first[present:] == -1).all())


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cuda",
    few: Annotated[bool, typer.Option(help="just enough calls to run every kernel")] = False,
) -> None:
    made, wrong = 0, []
    for op, name, fine in calls(device, few):
        made += 1
        if not fine:
            wrong.append(f"{op}, {name}")
    if device == "cuda":
        torch.cuda.synchronize()
    for name in wrong:
        print("out of range:", name)
    unseen = "" if device == "cuda" else "; not rehearsed: compute-sanitizer"
    print(f"{made} calls on {device}, {len(wrong)} out of range{unseen}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    typer.run(main)
