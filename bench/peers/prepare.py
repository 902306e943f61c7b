# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.peers.prepare``: compile the peers that compile at run time, before a benchmark."""

from __future__ import annotations

import time
from types import SimpleNamespace

import torch

from bench.harness import Unavailable
from bench.peers import flashinfer


def main() -> None:
    start = time.perf_counter()
    try:
        flashinfer.sampling()
        p = torch.rand(1, 2, 64, device="cuda")
        p /= p.sum(-1, keepdim=True)
        x = SimpleNamespace(
            target=p, draft_probs=p[:, :1].contiguous(), tokens32=torch.zeros(1, 1, dtype=torch.int32, device="cuda")
        )
        flashinfer.chain(False, 5, 0.9, True)(x)
        flashinfer.sample()(SimpleNamespace(logits=p[0]))
        torch.cuda.synchronize()
        print(f"flashinfer: ready after {time.perf_counter() - start:.0f} s")
    except Unavailable as reason:
        print(f"flashinfer: {reason}")


if __name__ == "__main__":
    main()
