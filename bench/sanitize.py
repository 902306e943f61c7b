# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.sanitize``: every example call over small shapes, for compute-sanitizer to watch.

Rows of every dtype, aligned and not; vocabularies of one entry, of less than a chunk, of several chunks and a tail.
Results are only checked for being in range: the tests compare them, this makes the kernels touch every edge. ``--few``
makes just enough of these calls to run every kernel once, for tools that take minutes for a call.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated

import torch
import typer

import specdec_kernels as sk
from specdec_kernels import examples, registry

DTYPES = [getattr(torch, name) for name in registry.ROW_DTYPES]
# One entry; less than a chunk and odd; one chunk exactly; enough for several blocks of chunks, with a tail.
VOCABULARIES = (1, 77, registry.CHUNK, 10 * registry.CHUNK + 77)
WITHOUT_ROWS = ("uniforms", "build_tree", "tree_mask")


def calls(device: str) -> Iterator[tuple[str, str, bool]]:
    """Op, what is special about the call, and whether its result is in range."""
    for op in registry.OPS:
        for inputs in [{}] if op in WITHOUT_ROWS else rows():
            every = inputs.get("dtype", torch.float32) == torch.float32
            where = " ".join(f"{name}={str(x).removeprefix('torch.')}" for name, x in inputs.items())
            for call in (examples.calls if every else examples.few)(op, device=device, **inputs):
                yield op, f"{call.name} {where}", in_range(getattr(sk, op)(**call.arguments), call.arguments)


def rows() -> list[dict]:
    """What rows may look like: the large ones aligned too."""
    pads = [(V, 1) for V in VOCABULARIES] + [(VOCABULARIES[-1], 0)]
    return [{"dtype": dtype, "V": V, "pad": pad} for dtype in DTYPES for V, pad in pads]


def in_range(result: object, arguments: dict) -> bool:
    """Every row that is there drew or emitted a token, and no other did."""
    if not isinstance(result, (sk.VerifyChainOutput, sk.VerifyTreeOutput, sk.SampleOutput)):
        return True
    first = result.tokens[:, 0].cpu()
    present = int(arguments.get("num_requests", arguments.get("num_rows", len(first))))
    return bool((first[:present] >= 0).all() and (first[present:] == -1).all())


def main(device: Annotated[str, typer.Option(help="cpu or cuda")] = "cuda") -> None:
    made, wrong = 0, []
    for op, name, fine in calls(device):
        made += 1
        if not fine:
            wrong.append(f"{op}, {name}")
    if device == "cuda":
        torch.cuda.synchronize()
    for name in wrong:
        print("out of range:", name)
    print(f"{made} calls on {device}, {len(wrong)} out of range")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    typer.run(main)
