# SPDX-License-Identifier: Apache-2.0
import torch


def parents(x, B, N):
    """Return parents [B, N] of random trees with padding."""
    node = torch.arange(N, device="cpu")
    up = (torch.rand(B, N, generator=x.generator, dtype=torch.float32, device="cpu") * (node + 1)).long() - 1
    return x.on_device(up.where(node > 0, -1))


def calls(x):
    trees = parents(x, 2, 40)
    prefix = x.integers(0, 9, 2)
    yield "nodes alone", {"parents": trees, "prefix_len": prefix}
    for format in ("bool", "additive", "uint8", "uint32", "uint64"):
        yield f"{format}, nodes", {"parents": trees, "format": format}
        yield f"{format}, keys", {"parents": trees, "prefix_len": prefix, "format": format, "num_keys": 61}
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        yield f"additive, {dtype}", {"parents": trees, "format": "additive", "dtype": dtype, "num_keys": 45}
    start = {"num_keys": 61, "tree_start": x.tensor(9, 12)}
    yield "a cache of one length", {"parents": trees.to(torch.int32), "prefix_len": prefix, **start}
    yield "numbers", {"parents": trees, "prefix_len": 3, "num_keys": 61, "tree_start": 4}
    yield "one tree for all", {"parents": trees[0], "prefix_len": prefix, "num_keys": 50}
