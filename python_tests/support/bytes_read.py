# SPDX-License-Identifier: Apache-2.0
"""Accesses of the `.cu` files on the CPU, counted in the flavour that notes every one of them."""

import os

import torch
from support import backends, flat, tally

import specdec_kernels as sk

WHERE = "cuda-on-cpu-checked"
CHUNK = 1024
BLOCK = 256  # threads, each of which looks up the logprob of a drawn token: one address, so one transaction
RESCAN = 2 * CHUNK + BLOCK  # entries, at most: the draw and what follows it
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
    """The op's result, a Count (bytes by row, as tensors) of each watched argument, and its launches. small: chains of
    few positions go their own way."""
    path = "streaming" if op == "verify_chain" and not small else ""
    out, counts, launches = backends.there(WHERE, counted, op, args, watched, path)
    for name, c in counts.items():
        c.read, c.distinct = torch.from_numpy(c.read), torch.from_numpy(c.distinct)
        assert c.written == 0 and c.outside == 0, f"{name}: written {c.written}, outside its rows {c.outside}"
    return out, [counts[name] for name in watched], launches


def language_rows(seed, n, V, dtype, least=12.0, most=18.0):
    """Rows as language models have them where they know what comes next: a normal body of width 2.5, and ten tokens
    that stand out at 12 to 18. The body then weighs about a hundredth at V = 8192, and most of the rest is two or three
    tokens."""
    rng = torch.Generator().manual_seed(seed)
    z = 2.5 * torch.randn(n, V, generator=rng)
    ids = torch.rand(n, V, generator=rng).topk(10).indices
    return z.scatter(1, ids, least + (most - least) * torch.rand(n, 10, generator=rng)).to(dtype)


def within(read, least, entries, item):
    """At least `least` bytes, at most `entries` entries more."""
    return bool(((read >= least) & (read <= least + entries * item)).all())


def note(what, read, least):
    tally.notes.append(f"{what}: {int(read):,} bytes read, {read / least:.2f} of what must be read")
