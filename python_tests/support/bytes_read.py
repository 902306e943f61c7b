# SPDX-License-Identifier: Apache-2.0
"""Counts of the memory accesses of the `.cu` files on the CPU, in the checked build of the simulated device."""

import os

import torch
from support import backends, flat, tally

import specdec_kernels as sk

WHERE = "cuda-on-cpu-checked"
CHUNK = 1024
BLOCK = 256  # threads that each read the drawn token's entry for its logprob: one address, one transaction
RESCAN = 2 * CHUNK + BLOCK  # the most entries that the draw and the lookups after it read
BF16, F32 = torch.bfloat16, torch.float32


def counted(op, args, watched, path):
    from tools.cuda_on_cpu.build import load
    from tools.cuda_on_cpu.control import counting

    os.environ["SPECDEC_CUDA_PATH"] = path
    each = {name: x if x.dim() > 1 else x[:, None] for name, x in args.items() if name in watched}
    with counting(load("checked"), **each) as counts:
        out = flat.call(getattr(sk, op), **args)
    return out, dict(counts), counts.launches


def count(op, *watched, small=False, **args):
    """Return the op's result, a Count (bytes by row, as tensors) for each watched argument, and its launches.

    small: use the path for chains of few positions.
    """
    path = "streaming" if op == "verify_chain" and not small else ""
    out, counts, launches = backends.there(WHERE, counted, op, args, watched, path)
    for name, c in counts.items():
        c.read, c.distinct = torch.from_numpy(c.read), torch.from_numpy(c.distinct)
        assert c.written == 0 and c.outside == 0, f"{name}: written {c.written}, outside its rows {c.outside}"
    return out, [counts[name] for name in watched], launches


def language_rows(seed, n, V, dtype, least=12.0, most=18.0):
    """Return rows like those of a confident language model: normal logits with deviation 2.5, ten of them at 12 to 18.

    At V = 8192 two or three of the ten have most of the mass, and all tokens outside the ten about .2%.
    """
    rng = torch.Generator().manual_seed(seed)
    z = 2.5 * torch.randn(n, V, generator=rng)
    ids = torch.rand(n, V, generator=rng).topk(10).indices
    return z.scatter(1, ids, least + (most - least) * torch.rand(n, 10, generator=rng)).to(dtype)


def within(read, least, entries, item):
    """Return whether at least `least` bytes were read, and at most `entries` entries more."""
    return bool(((read >= least) & (read <= least + entries * item)).all())


def note(what, read, least):
    tally.notes.append(f"{what}: {int(read):,} bytes read, {read / least:.2f} of what must be read")
