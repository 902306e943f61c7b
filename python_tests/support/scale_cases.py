# SPDX-License-Identifier: Apache-2.0
"""Rows at every scale: after a token is removed, the mass left may be e^-50 to e^-600 of the row's.

A gap is a difference of logits divided by the temperature.
"""

import os
from typing import NamedTuple

import numpy as np
import torch
from support import answers as reference
from support import rule_cases

from specdec_kernels.rows import Rows

SEED = int(os.environ.get("SPECDEC_SEED", "1"))
THOROUGH = os.environ.get("SPECDEC_THOROUGH") == "1"

TEMPERATURES = (0.01, 0.1, 1.0, 100.0)
GAPS = (50.0, 88.0, 120.0, 300.0)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Cell(NamedTuple):
    T: float
    gap: float
    dtype: torch.dtype


HARDEST = Cell(0.1, 120.0, torch.float32)


def cells(shift=0):
    """Return every temperature with every gap. The dtypes take turns; three shifts give every triple."""
    return [Cell(T, gap, DTYPES[(i + j + shift) % 3]) for i, T in enumerate(TEMPERATURES) for j, gap in enumerate(GAPS)]


def share_of(backend, backends):
    """Return the cells that a backend takes.

    With SPECDEC_THOROUGH=1 these are all cells; a simulated device takes each temperature and gap with one dtype, which
    depends on SPECDEC_SEED. Otherwise each temperature and gap has one dtype. The CPU's instruction sets share these
    cells, so that any two of temperature, gap, dtype and instruction set occur together. Other backends take every
    seventh cell. HARDEST is always among the cells.
    """
    if THOROUGH and backends.BACKENDS[backend].slower > 1:
        return [HARDEST, *cells(SEED + len(backend))]
    if THOROUGH:
        return [cell for shift in range(3) for cell in cells(shift)]
    if backend.startswith("cpu-"):
        at = backends.ISAS.index(backend.removeprefix("cpu-"))
        return [cell for i, cell in enumerate(cells()) if (i + i // 4) % len(backends.ISAS) == at] + [HARDEST]
    return [HARDEST, *cells()[len(backend) % 3 :: 7]]


def row(rng, V, gap):
    """Return logarithms of weights: ids on three levels about one gap apart, with mild noise and some ties."""
    level = rng.integers(0, 3, V)
    level[rng.integers(V)] = 0
    x = -gap * level * rng.choice([1.0, rng.uniform(0.3, 1.0)], V) - rng.uniform(0, 2, V)
    tied = rng.random(V) < 0.2
    x[tied] = x[rng.integers(V, size=V)[tied]]
    return x


def rows(rng, n, V, cell):
    """Return [n, V] logits of a target and a draft. Pairs are independent, near, or have one side without gaps."""
    pairs = []
    for kind in rng.integers(0, 4, n):
        p, q = row(rng, V, cell.gap), row(rng, V, cell.gap)
        if kind == 1:
            q = p + rng.normal(0, 0.5, V)
        elif kind == 2:
            p = rng.normal(0, 1, V)
        elif kind == 3:
            q = rng.normal(0, 1, V)
        pairs.append((p, q))
    most = 0.98 * torch.finfo(cell.dtype).max
    return [torch.tensor(np.array(side) * cell.T).clamp(-most, most).to(cell.dtype) for side in zip(*pairs)]


def draw(rng, q, k, cell, replacement):
    """Return k tokens of each row, drawn as the float64 reference does."""
    u = torch.from_numpy(rng.random((len(q), k)))
    return reference.sample(Rows(q, temperature=cell.T), k=k, replacement=replacement, uniforms=u).tokens


def tree(rng, B, V, cell, method, K):
    """Return keyword arguments of verify_tree: K siblings at the root, and K at the first of them.

    They are drawn as the method requires.
    """
    N = 1 + 2 * K
    p, q = rows(rng, B * N, V, cell)
    p, q = p.reshape(B, N, V), q.reshape(B, N, V)
    replacement = method in ("kseq", "recursive")
    above, below = draw(rng, q[:, 0], K, cell, replacement), draw(rng, q[:, 1], K, cell, replacement)
    parents = torch.tensor([-1, *[0] * K, *[1] * K], dtype=torch.int32).expand(B, N).contiguous()
    tokens = torch.cat([torch.zeros(B, 1, dtype=torch.int64), above, below], 1)
    uniforms = torch.from_numpy(rng.random((B, N + 1)))
    return dict(
        tree=(parents, tokens),
        target_logits=p,
        draft_logits=q,
        method=method,
        max_depth=2,
        temperature=cell.T,
        draft_temperature=cell.T,
        uniforms=uniforms,
    )


def chain(rng, B, V, cell, method, G=3):
    """Return keyword arguments of verify_chain, with every rule in turn."""
    p, q = rows(rng, B * (G + 1), V, cell)
    p, q = p.reshape(B, G + 1, V), q.reshape(B, G + 1, V)[:, :G].contiguous()
    drafts = draw(rng, q.reshape(B * G, V), 1, cell, True).reshape(B, G)
    uniforms = torch.from_numpy(rng.random((B, G + 1)))
    return dict(
        target_logits=p,
        draft_tokens=drafts,
        draft_logits=q,
        temperature=cell.T,
        draft_temperature=cell.T,
        uniforms=uniforms,
        method=method,
        **rule_cases.rules(B, method, shift=int(rng.integers(99))),
    )
