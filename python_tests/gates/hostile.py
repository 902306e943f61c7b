# SPDX-License-Identifier: Apache-2.0
"""`python python_tests/gates/hostile.py --requests N --seed S`: random hostile requests to every op on the CPU.

`call(op, rng)` makes one call of a public function. `check(op, call)` runs it and checks its docstring's promises: a
clean error, or a valid output, with the same bits for a request alone. `make asan` makes 10^5 requests to a library
built with sanitizers; test_hostile.py runs hypothesis's on every backend. rng is a random.Random; hypothesis passes its
own, so that it can shrink a failing call.
"""

import argparse
import collections
import functools
import math
import random
import sys
from pathlib import Path

import torch

import specdec_kernels as sk

sys.path.append(str(Path(__file__).parents[1]))
from support import flat

from specdec_kernels import arguments, example_calls, reference, registry
from specdec_kernels.distributed.whole_rows import share_of
from specdec_kernels.reference.views import seen_rows
from specdec_kernels.registry import CHAIN_METHODS, TREE_METHODS
from specdec_kernels.rules import TABLE

I64, F64 = torch.int64, torch.float64
INF, NAN = math.inf, math.nan
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
VOCABULARIES = (
    1,
    2,
    3,
    17,
    64,
    1000,
    1024,
    1025,
    2100,
)  # one entry; a vector and less; a chunk and its neighbours; a tail
STATUS = sk.STATUS_INVALID_ROW | sk.STATUS_EMPTY_RESIDUAL | sk.STATUS_INVALID_DRAFT | sk.STATUS_INVALID_BONUS


def generator(rng):
    return torch.Generator().manual_seed(rng.getrandbits(32))


def strided(rng, x):
    """Return x in another memory layout: unchanged, with padding between rows, or with its first dimensions
    transposed."""
    how = rng.choice(("contiguous", "padded", "turned"))
    if how == "padded":
        wide = torch.full((*x.shape[:-1], x.size(-1) + 3), NAN if x.is_floating_point() else -77, dtype=x.dtype)
        wide[..., 1:-2] = x
        return wide[..., 1:-2]
    if how == "turned" and x.dim() > 2:
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    return x


def rows(rng, n, V, probs=False):
    """Return rows [n, V] in some dtype. One row in three holds values that no model should produce."""
    g, dtype = generator(rng), rng.choice(DTYPES)
    x = torch.randn(n, V, generator=g) * rng.choice((0.0, 0.3, 3.0, 30.0, 1e4))
    if probs:
        x = x.softmax(-1) * rng.choice((1.0, 1.0, 0.5, 3.0))
    x = x.to(dtype)
    most, least = torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal / 4
    for i in range(n):
        if rng.random() < 1 / 3:
            what = rng.choice((NAN, INF, -INF, -INF, 0.0, least, most, -most, -1.0))
            where = rng.choice(("one", "half", "all but one", "all"))
            chosen = torch.rand(V, generator=g) < 0.5 if where == "half" else torch.full((V,), where.startswith("all"))
            if where in ("one", "all but one"):
                chosen[rng.randrange(V)] = where == "one"
            x[i, chosen] = what
    return x


def given(rng, chance=0.5):
    return rng.random() < chance


def sampling(rng, n, prefix=""):
    """Return sampling parameters of n rows: numbers and tensors, extreme, and sometimes out of range."""
    wrong = given(rng, 0.04)
    values = {
        "temperature": (0.0, 1e-30, 1e-3, 0.7, 1.0, 50.0, 1e30) + ((-1.0, NAN, INF) if wrong else ()),
        "top_k": (-1, 0, 1, 2, 40, 10**6, 2**62) + ((-2, -(2**62)) if wrong else ()),
        "top_p": (1e-30, 1e-3, 0.5, 0.999, 1.0) + ((0.0, 1.5, NAN) if wrong else ()),
        "min_p": (0.0, 1e-30, 0.1, 1.0) + ((-0.1, 2.0, NAN) if wrong else ()),
        "top_n_sigma": (0.0, 1e-30, 0.5, 2.0, 3e38) + ((-0.1, INF, NAN) if wrong else ()),
    }
    out = {}
    for name, choices in values.items():
        if given(rng, 0.4):
            dtype = I64 if name == "top_k" else torch.float32
            x = [rng.choice(choices) for _ in range(n)]
            out[prefix + name] = x[0] if n and given(rng, 0.3) else torch.tensor(x, dtype=dtype)
    return out


def stats(rng, like, parameters):
    """Return stats of rows [..., V] with these parameters: right ones, another row's, or arbitrary bits."""
    flat = like.reshape(-1, like.size(-1))
    per_row = {
        k: x.expand(len(flat)) if isinstance(x, torch.Tensor) and len(x) != len(flat) else x
        for k, x in parameters.items()
    }
    try:
        out = sk.row_stats(sk.Rows(flat.contiguous(), **per_row))
    except (RuntimeError, ValueError):
        out = sk.row_stats(flat.contiguous())
    for i in range(len(out)):
        if given(rng, 0.1):
            out[i] = torch.tensor([rng.getrandbits(32) - 2**31 for _ in range(4)], dtype=torch.int32).view(
                torch.float32
            )
        elif given(rng, 0.1):
            out[i, rng.randrange(4)] = rng.choice((NAN, INF, -INF, 0.0, -1.0, 1e9, 3e38, float(like.size(-1))))
    return out.reshape(*like.shape[:-1], 4)


def randomness(rng, n, columns):
    """Return seed and offset, or uniforms, which may lie outside [0, 1)."""
    if given(rng):
        draw = lambda: rng.choice((0, 1, -1, 2**63 - 1, -(2**63), rng.getrandbits(62)))
        return {name: torch.tensor([draw() for _ in range(n)], dtype=I64) for name in ("seed", "offset")}
    u = torch.rand(n, columns, dtype=F64, generator=generator(rng))
    for _ in range(rng.choice((0, 0, 1, 3))):
        if u.numel():
            u[rng.randrange(n), rng.randrange(columns)] = rng.choice(
                (0.0, 1 - 2.0**-53, 1.0, 2.0, -1.0, 1e300, INF, -INF, NAN)
            )
    return {"uniforms": u}


def noise(rng, n, *rows):
    """Return seed and offset of a race, noise keys of shape `rows`, or in some calls arguments that a race refuses."""
    if given(rng, 0.6):
        return (
            randomness(rng, n, 1)
            if given(rng, 0.05)
            else {
                name: torch.tensor(
                    [rng.choice((0, -1, 2**63 - 1, -(2**63), rng.getrandbits(62))) for _ in range(n)], dtype=I64
                )
                for name in ("seed", "offset")
            }
        )
    return {"seed": torch.randint(-(2**63), 2**63 - 1, rows, dtype=I64, generator=generator(rng))}


def penalties(rng, n, V, name="penalties", windows=True):
    """Return {name: penalties of n rows or requests} in some calls, else {}.

    Lists are by index or one per row, with ids outside the vocabulary and extreme amounts. A few are refused.
    """
    if not given(rng, 0.3):
        return {}
    wrong, by_number = given(rng, 0.04), given(rng)
    S = rng.choice((1, 3)) if by_number else n
    off = ((0.0, NAN, INF) if wrong else ()) + (1.0, 1.3)
    choices = ((*off, 0.5, 1e-38, 3e38), (*off[:-1], 0.0, -0.5, 3e38), (*off[:-1], 0.0, -3e38, 1.5))
    x = [[rng.choice(values) for _ in range(max(n, 1))] for values in choices]
    amounts = [rng.choice((None, values[0], torch.tensor(values[:n]))) for values in x]
    histories = table(rng, S, V, wrong) if given(rng) else history(rng, S, V, wrong)
    out = sk.Penalties(*amounts, **histories)
    if by_number:
        out = out._replace(row=torch.tensor([rng.randrange(S + wrong) for _ in range(n)], dtype=I64))
    return {name: out._replace(drafted=ids(rng, (n, rng.choice((0, 1, 3))), V, V)) if windows and given(rng) else out}


def history(rng, S, V, wrong):
    """Return S lists of used ids, also outside the vocabulary, and their counts. If wrong, ids descend."""
    H, some = rng.choice((0, 1, 5)), {*range(min(V, 9)), V - 1, V, 2**31 - 1}
    lists = [sorted(rng.sample(sorted(some), min(rng.randrange(H + 1), len(some)))) for _ in range(S)]
    lists = [(x[::-1] if wrong else x) + [-1] * (H - len(x)) for x in lists]
    counts = [[rng.choice((0, 1, 3, 2**31 - 1)) for _ in range(H)] for _ in range(S)]
    of_lists = (torch.tensor(x, dtype=torch.int32).reshape(S, H) for x in (lists, counts))
    return dict(zip(("ids", "counts"), of_lists))


def table(rng, S, V, wrong):
    """Return S tables of used ids: for fewer or more than V ids, and with bits beyond the last id.

    If wrong, a count may be negative.
    """
    H = rng.choice((V, V, V - 1, V + 40))
    counts = [[rng.choice((0, 0, 0, 1, 3, 2**31 - 1, -wrong)) for _ in range(H)] for _ in range(S)]
    bits = [[rng.choice((0, -1, 1 << rng.randrange(31))) for _ in range(-(-H // 32))] for _ in range(S)]
    counts, bits = (torch.tensor(x, dtype=torch.int32).reshape(S, n) for x, n in ((counts, H), (bits, -(-H // 32))))
    return {"counts": counts, "prompt_bits": bits}


def bias(rng, n, V, positions=()):
    """Return, in some calls, a bias of n requests or rows, or of their positions; or None.

    Lists are by index or one each, with ids outside the vocabulary and extreme values. A few are refused.
    """
    if not given(rng, 0.3):
        return None
    wrong, count = given(rng, 0.04), math.prod(positions) if positions else n
    by_number, length = given(rng), rng.choice((0, 1, 4))
    S = rng.choice((1, 3)) if by_number else rng.choice((n, count))
    some = (*range(min(V, 5)), V - 1, V, 2**31 - 1, -1, *((-2, -(2**31)) if wrong else ()))
    values = (0.0, -0.0, 1.5, -1e-38, -3e38, 3e38, -INF, *((INF, NAN) if wrong else ()))
    wide = I64 if given(rng) else torch.int32
    out = sk.Bias(
        torch.tensor([[rng.choice(some) for _ in range(length)] for _ in range(S)], dtype=wide).reshape(S, length),
        torch.tensor([[rng.choice(values) for _ in range(length)] for _ in range(S)]).reshape(S, length),
    )
    if not by_number:
        return out
    shape = rng.choice(((n,), positions or (n,)))
    numbers = [rng.randrange(-1, S + wrong) for _ in range(math.prod(shape))]
    return out._replace(row=torch.tensor(numbers, dtype=wide).reshape(shape))


def allowed(rng, n, V, positions=()):
    """Return, in some calls, masks of n requests or rows, or of their positions, by index or one each; or None."""
    if not given(rng, 0.3):
        return None
    wrong, count, by_number = given(rng, 0.04), math.prod(positions) if positions else n, given(rng)
    S, W = (
        rng.choice((1, 3)) if by_number else rng.choice((n, count)),
        max(0, -(-V // 32) + rng.choice((-1, 0, 0, 0, 1))),
    )
    words = (-1, 0, 1, -(2**31), 0x55555555, rng.getrandbits(31))
    bits = torch.tensor([[rng.choice(words) for _ in range(W)] for _ in range(S)], dtype=torch.int32).reshape(S, W)
    if not by_number:
        return sk.Allowed(bits)
    shape = rng.choice(((n,), positions or (n,)))
    numbers = [rng.randrange(-1, S + wrong) for _ in range(math.prod(shape))]
    return sk.Allowed(bits, torch.tensor(numbers, dtype=I64 if given(rng) else torch.int32).reshape(shape))


def views(rng, n, V, side="", positions=(), windows=True):
    found = {f"{side}bias": bias(rng, n, V, positions), f"{side}allowed": allowed(rng, n, V, positions)}
    found = {name: view for name, view in found.items() if view is not None}
    return penalties(rng, n, V, f"{side}penalties", windows) | found


def listed(rng, out, side, V):
    """Make a side's rows sparse, with any numbers as ids, or mapped, with holes, in some calls."""
    rows = out.get(side + "logits", out.get(side.rstrip("_")))
    if rows is None or rows.dim() < 2 or not given(rng, 0.2):
        return out
    if given(rng):
        chosen = ids(rng, tuple(rows.shape), V, V)
        return out | {side + "ids": chosen if given(rng, 0.1) else chosen.clamp(max=2**24 - 1)}
    table = torch.randint(-1, V, (rows.size(-1),), generator=generator(rng))
    return out | {side + "vocab_map": sk.vocab_map(table, V)}


def ids(rng, shape, V, Vq):
    """Return token ids, mostly likely ones; some lie in neither vocabulary."""
    x = torch.randint(0, max(1, min(V, Vq, 6)), shape, generator=generator(rng))
    for _ in range(rng.choice((0, 0, 1, 4))):
        if x.numel():
            x.view(-1)[rng.randrange(x.numel())] = rng.choice(
                (-1, -7, V - 1, V, Vq, Vq - 1, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, -(2**63))
            )
    return strided(rng, x.int() if given(rng, 0.2) else x)


def rules(rng, B, names):
    """Return a rule by name, or one per request, and alpha: none, in range, or sometimes out of range."""
    out, wrong = {}, given(rng, 0.04)
    if given(rng):
        name = rng.choice(names)
        out["rule"] = name
        if TABLE[name].parameters and given(rng, 0.7):
            ends = [(p, min(1.0, p.high) if p.closing == "]" else 0.9) for p in TABLE[name].parameters]
            out["alpha"] = tuple(NAN if wrong else rng.choice((p.default, min(0.5, p.high), end)) for p, end in ends)
    else:
        out["rule"] = torch.tensor(
            [TABLE[rng.choice(names)].code if not wrong else rng.choice((-1, 99, 2**40)) for _ in range(B)], dtype=I64
        )
        if given(rng):
            out["alpha"] = torch.tensor([rng.choice((0.5, 0.9) if not wrong else (-1.0, NAN, INF)) for _ in range(B)])
    return out


def pair(rng):
    n, probs = rng.randrange(5), given(rng)
    p, q = (rows(rng, n, rng.choice(VOCABULARIES), probs) for _ in range(2))
    return n, probs, p, q


# ---- one call of each op --------------------------------------------------------------------------------------------


def uniforms(rng):
    n = rng.randrange(5)
    out = {
        name: torch.tensor([rng.getrandbits(64) - 2**63 for _ in range(n)], dtype=I64) for name in ("seed", "offset")
    }
    return out | {"n": rng.choice((0, 1, 2, 7)), "domain": rng.choice((0, 1, 2, 3, 2**32 - 1))}


def accept(rng):
    n = rng.randrange(1, 5)
    V = rng.choice(VOCABULARIES)
    q = ids(rng, (n, V), V, V) if given(rng, 0.3) else rows(rng, n, V, True)
    return {"p": rows(rng, n, V, True), "q": q, "u": torch.rand(n, V, dtype=F64, generator=generator(rng))}


def count_tokens_(rng):
    B, n, V = rng.randrange(5), rng.choice((0, 1, 4, 9)), rng.choice(VOCABULARIES)
    wrong, by_number = given(rng, 0.05), given(rng)
    S = rng.choice((B, B + 2)) if by_number else B
    lists = (strided(rng, x) for x in history(rng, S, V, wrong).values())
    out = dict(zip(("ids", "counts"), lists)) | {"tokens": ids(rng, (B, n), V, V)}
    if given(rng):
        out["num_tokens"] = torch.tensor([rng.randrange(-wrong, n + 1 + wrong) for _ in range(B)], dtype=I64)
    if by_number:
        numbers = [s if given(rng, 0.8) else -1 for s in rng.sample(range(S), B)]
        if wrong and B:
            numbers[rng.randrange(B)] = rng.choice((S, -2, 2**40, numbers[0]))
        out["row"] = torch.tensor(numbers, dtype=I64)
    return out


def residual(rng):
    n, _, p, q = pair(rng)
    p, q = p.float().softmax(-1).to(p.dtype) if given(rng, 0.3) else p, strided(rng, q)
    return {"p": strided(rng, p), "q": ids(rng, (n, 1), p.size(1), 1)[:, 0] if given(rng, 0.3) else q}


def row_gap(rng):
    n, probs, p, q = pair(rng)
    out = {"p": strided(rng, p), "q": strided(rng, q), "kind": "probs" if probs else "logits"}
    if not probs:
        out |= {name: stats(rng, x, sampling(rng, n)) for name, x in (("p_stats", p), ("q_stats", q)) if given(rng)}
    return listed(rng, out, "q_", p.size(1))


def kseq_rho(rng):
    out = row_gap(rng)
    n = len(out["p"])
    k = [rng.choice((1, 2, 5, 64, 10**6, 2**62)) for _ in range(n)]
    return out | {"k": k[0] if n and given(rng) else torch.tensor(k, dtype=I64)}


def row_stats(rng):
    n, V = rng.randrange(5), rng.choice(VOCABULARIES)
    out = {"logits": strided(rng, rows(rng, n, V))} | sampling(rng, n) | views(rng, n, V)
    return listed(rng, out, "", rng.choice((V, 3000)))


KEPT = "logits", "penalties", "bias", "allowed", "ids", "vocab_map"


def sample(rng):
    n, k = rng.randrange(5), rng.choice((0, 1, 1, 2, 5))
    out = row_stats(rng)
    parameters = {name: out.pop(name) for name in list(out) if name not in KEPT}
    n = len(out["logits"])
    out |= {"stats": stats(rng, out["logits"], parameters)} if given(rng, 0.3) else parameters
    slot = [rng.choice((0, 5, 2**33 - 1, 2**63 - 1, -(2**63), -1)) for _ in range(n)]
    out |= {"k": k, "replacement": given(rng)}
    if given(rng, 0.3):
        return out | noise(rng, n, n) | {"race": True}
    out |= randomness(rng, n, k)
    return out | ({"slot": torch.tensor(slot, dtype=I64)} if given(rng, 0.3) else {})


def top_logprobs(rng):
    n = rng.randrange(5)
    z = rows(rng, n, rng.choice(VOCABULARIES))
    V = z.size(1)
    k = rng.choice((0, 1, min(5, V), V) if not given(rng, 0.04) else (V + 1, -1, 2**63 - 1))
    out = {"logits": strided(rng, z), "stats": stats(rng, z, sampling(rng, n)), "k": k} | views(rng, n, V)
    return out | ({"tokens": ids(rng, (n, rng.choice((0, 1, 3))), V, V)} if given(rng) else {})


def row_topw(rng):
    n = rng.randrange(5)
    z = rows(rng, n, rng.choice(VOCABULARIES))
    V = z.size(1)
    score = torch.tensor([rng.choice((0.0, -1.5, -3000.0, -1e30, 3e38, -INF, INF, NAN)) for _ in range(n)])
    w = rng.choice((0, 1, min(5, V), V) if not given(rng, 0.04) else (V + 1, -1, 2**63 - 1))
    out = {"logits": strided(rng, z), "score": score, "w": w} | views(rng, n, V)
    return out | ({"stats": stats(rng, z, sampling(rng, n))} if given(rng) else {})


def support(rng):
    n = rng.randrange(5)
    z = rows(rng, n, rng.choice(VOCABULARIES))
    out = {"logits": strided(rng, z), "stats": stats(rng, z, sampling(rng, n)), "max_kept": rng.choice((0, 1, 7, 3000))}
    out |= views(rng, n, z.size(1))
    asked = rng.randrange(5)
    out |= {"row": ids(rng, (asked,), max(n, 1), max(n, 1))} if given(rng, 0.4) else {}
    return out


def build_tree(rng):
    shape = rng.randrange(4), rng.choice((0, 1, 2, 7)), rng.choice((0, 1, 3))
    return {"draft_tokens": ids(rng, shape, 4, 4)}


def grow_tree(rng):
    shape = rng.randrange(4), rng.choice((0, 1, 2, 5)), rng.choice((0, 1, 3, 9))
    log_q = torch.randn(shape, generator=generator(rng)) * rng.choice((0.0, 1.0, 30.0))
    log_q = log_q.log_softmax(-1) if log_q.numel() else log_q
    for _ in range(rng.choice((0, 0, 3)) if log_q.numel() else 0):
        value = rng.choice((NAN, INF, -INF, 0.0, -0.0, 1e-30, 0.5, -1e-45, -3e38))
        log_q.view(-1)[rng.randrange(log_q.numel())] = value
    nodes = rng.choice((1, 2, 9, 40)) if not given(rng, 0.05) else rng.choice((0, -1, 1025, 2**62))
    return {"log_q": strided(rng, log_q), "tokens": ids(rng, shape, 4, 4), "nodes": nodes}


def budget(rng):
    B, G = rng.randrange(5), rng.choice((0, 1, 3, 6))
    x = torch.rand(B, G, generator=generator(rng)) * rng.choice((0.0, 1.0, 3.0))
    x = (x * 4).round() / 4 if given(rng) else x.cumprod(1)
    for _ in range(rng.choice((0, 0, 3)) if x.numel() else 0):
        x.view(-1)[rng.randrange(x.numel())] = rng.choice((NAN, INF, -INF, -1.0, -0.0, 0.0, 1e-45, 3e38))
    out = {"survival": strided(rng, x), "total": rng.choice((0, 1, B, B * G, 2**62, -1 if given(rng, 0.1) else 2))}
    wrong = given(rng, 0.05)
    lengths = [rng.choice((-1, G + 1, 2**40)) if wrong else rng.randrange(G + 1) for _ in range(B)]
    return out | ({"num_drafts": torch.tensor(lengths, dtype=I64)} if given(rng) else {})


def tree_mask(rng):
    B, N = rng.randrange(4), rng.choice((0, 1, 2, 9, 33, 65))
    extreme = (0, 1, 7, 40, 2**30, 2**62 - 1) + ((-1, 2**62, 2**63 - 1) if given(rng, 0.1) else ())
    out = {
        "parents": parents(rng, B, N, given(rng, 0.1)),
        "format": rng.choice(("bool", "additive", "uint8", "uint32", "uint64")),
    }
    for name in ("prefix_len", "tree_start"):
        if given(rng):
            x = [rng.choice(extreme) for _ in range(B)]
            out[name] = x[0] if B and given(rng, 0.3) else torch.tensor(x, dtype=I64)
    return (
        out
        | ({"num_keys": rng.choice((0, 1, 5, 31, 64, 100))} if given(rng) else {})
        | {"dtype": rng.choice((*DTYPES, F64))}
    )


def parents(rng, B, N, bad):
    x = torch.tensor(
        [[rng.choice((-1, 0, i - 1, rng.randrange(i))) if i else -1 for i in range(N)] for _ in range(B)], dtype=I64
    ).reshape(B, N)
    if bad and x.numel():
        b, i = rng.randrange(B), rng.randrange(N)
        x[b, i] = rng.choice((i, i + 1, -2, 2**31, 2**63 - 1, -(2**63)))
    return strided(rng, x)


def sides(rng, shapes, B, positions):
    """Return the rows of both sides with their kinds, and their stats or parameters.

    shapes: side -> its shape [B, M, V] or [R, V], or None if it has no rows.
    """
    out = {}
    for side, shape in shapes.items():
        if shape is None:
            continue
        probs = given(rng, 0.2)
        x = strided(rng, rows(rng, math.prod(shape[:-1]), shape[-1], probs).reshape(shape))
        out |= {f"{side}_logits": x, f"{side}_kind": "probs" if probs else "logits"}
        parameters = {} if probs else sampling(rng, B, "draft_" if side == "draft" else "")
        plain = {name.removeprefix("draft_"): value for name, value in parameters.items()}
        plain = {
            name: value if not isinstance(value, torch.Tensor) else value.flatten()[:1] for name, value in plain.items()
        }
        out |= (
            {f"{side}_stats": stats(rng, x, plain if x.numel() else {})}
            if not probs and given(rng, 0.4)
            else parameters
        )
        out |= {} if probs else views(rng, B, shape[-1], f"{side}_", positions, windows=False)
    return out


def verify_chain(rng):
    B, G = rng.randrange(1, 5), rng.choice((0, 1, 1, 2, 4))
    V = rng.choice(VOCABULARIES)
    Vq = V if given(rng) else rng.choice(VOCABULARIES)
    extra, bonus = int(given(rng, 0.3)), given(rng, 0.2)
    out = {"method": rng.choice(("token", "block", "race"))}
    if given(rng, 0.3):
        lengths = [rng.randrange(G + 1) for _ in range(B)]
        D = sum(lengths)
        positions = (D + B,)
        shapes = {"target": (D + (not bonus) * B, V), "draft": (D + extra * B, Vq) if given(rng, 0.8) else None}
        out |= {
            "cu_draft": torch.tensor([sum(lengths[:b]) for b in range(B + 1)]),
            "max_draft": G,
            "draft_tokens": ids(rng, (1, D), V, Vq)[0],
        }
        if given(rng, 0.05):
            out["cu_draft"][rng.randrange(B + 1)] = rng.choice((-1, 2**31, 2**62, -(2**63), 0, 3))
    else:
        positions = B, G + 1
        shapes = {"target": (B, G + (not bonus), V), "draft": (B, G + extra, Vq) if given(rng, 0.8) else None}
        out["draft_tokens"] = ids(rng, (B, G), V, Vq)
    race = out["method"] == "race"
    out |= sides(rng, shapes, B, positions) | (noise(rng, B, *positions) if race else randomness(rng, B, G + 1))
    out |= {"bonus_tokens": ids(rng, (B, 1), V, V)[:, 0]} if bonus else {}
    out |= rules(rng, B, CHAIN_METHODS[out["method"]].rules) if given(rng, 0.5 - 0.4 * race) else {}
    return listed(rng, by_number(rng, out), "draft_", V)


def by_number(rng, out):
    """Return the call with some sides' rows by index: each position has the index of any row, or one out of range."""
    for side in ("target", "draft"):
        rows, stats = out.get(f"{side}_logits"), out.get(f"{side}_stats")
        if rows is None or not given(rng, 0.2):
            continue
        lead, wide = rows.shape[:-1], given(rng)
        N = lead.numel()
        numbers = [*range(min(N, 3)), N - 1, -1]
        if given(rng, 0.3):
            numbers += [-2, N, 2**31 - 1, -(2**31)] + [2**40, 2**63 - 1, -(2**63)] * wide
        at = torch.tensor([rng.choice(numbers) for _ in range(N)], dtype=I64 if wide else torch.int32)
        out[f"{side}_row"] = strided(rng, at.reshape(lead))
        if given(rng, 0.3):
            flat = {f"{side}_logits": rows, f"{side}_stats": stats}
            out |= {name: x.reshape(N, x.size(-1)) for name, x in flat.items() if x is not None}
    return out


def verify_tree(rng):
    B, method = rng.randrange(1, 5), rng.choice(tuple(TREE_METHODS))
    V = rng.choice(VOCABULARIES)
    Vq = V if given(rng) else rng.choice(VOCABULARIES)
    columns = None
    if TREE_METHODS[method].tests_drafts and given(rng):
        drafts = ids(rng, (B, rng.choice((1, 2, 4)), rng.choice((1, 2))), V, Vq)
        tree = tuple(sk.build_tree(drafts))
        columns = drafts.size(1) * drafts.size(2)
        if given(rng, 0.1):
            tree[3].view(-1)[rng.randrange(tree[3].numel())] = rng.choice((-2, 0, 1, 99, 2**31 - 1))
    else:
        N = rng.choice((1, 2, 4, 9))
        up = parents(rng, B, N, given(rng, 0.05))
        tree = up, ids(rng, (B, N), V, Vq)
    N = tree[0].size(1)
    M, Mq = (N, N) if given(rng, 0.7) else (rng.randrange(1, 4), rng.randrange(1, 4))
    out = {"tree": tree, "method": method} | sides(
        rng, {"target": (B, M, V), "draft": (B, Mq, Vq) if method == "kseq" or given(rng, 0.8) else None}, B, (B, N)
    )
    index = (0, 1, N - 1, M - 1) + ((-1, -5, M, Mq, 2**31 - 1) if given(rng, 0.3) else ())
    for name, count in (("target_row", M), ("draft_row", Mq)):
        if count != N or given(rng, 0.2):
            out[name] = torch.tensor([[rng.choice(index) for _ in range(N)] for _ in range(B)], dtype=I64)
    if "draft_logits" not in out:
        out.pop("draft_row", None)
    if given(rng, 0.2) and columns is None:
        link = lambda: rng.choice((-1, 0, 1, N - 1, N, -9, rng.randrange(N)))
        out["links"] = tuple(torch.tensor([[link() for _ in range(N)] for _ in range(B)], dtype=I64) for _ in range(2))
    out |= {"max_depth": rng.choice((0, 1, 3, 12))} if given(rng, 0.4) else {}
    out |= noise(rng, B, B, N) if method == "race" else randomness(rng, B, 1 + (columns or N))
    out = listed(rng, out, "draft_", V)
    return out | (rules(rng, B, TREE_METHODS[method].rules) if given(rng, 0.4) else {})


def from_examples(op):
    """Return a generator of example calls with random values, for an op without a generator of its own."""

    def make(rng):
        inputs = {"seed": rng.getrandbits(32), "V": rng.choice(VOCABULARIES), "dtype": rng.choice(DTYPES)}
        return flat.flattened(op, rng.choice(example_calls.calls(op, **inputs)).arguments)

    return make


OPS = {op: globals().get(op) or from_examples(op) for op in registry.OPS}


def call(op, rng):
    return OPS[op](rng)


# ---- the promises of the docstrings ---------------------------------------------------------------------------------


def require(ok, what):
    if not bool(ok):
        raise AssertionError(what)


def tensors(result):
    """Return the tensors of a result. Of Rows only the stats are returned, since the logits are the caller's."""
    parts = [result] if isinstance(result, torch.Tensor) else result
    return [x.stats if isinstance(x, sk.Rows) else x for x in parts if x is not None]


def same(a, b):
    return a.shape == b.shape and bool(((a == b) | (a != a) & (b != b)).all())


def is_bad(x):
    """Return which rows hold NaN or +inf."""
    return (x.isnan() | (x == INF)).any(-1)


def seen(args):
    """Return rows [N, V] with their views applied."""
    rows = sk.Rows(args["logits"], **{name: args.get(name) for name in ("penalties", "bias", "allowed")})
    return seen_rows(rows, len(args["logits"])).logits


def check_uniforms(args, out):
    require(((out >= 0) & (out < 1)).all(), "a uniform outside [0, 1)")


def check_accept(args, out):
    p, q, u = args["p"].double(), args["q"], args["u"]
    q = q.double() if q.is_floating_point() else (q >= 0).double()
    require(
        torch.equal(out, (q > 0) & (q <= 1 + 1e-3) & (u * q.clamp(max=1) < p)),
        "another answer than the docstring's line",
    )


def check_residual(args, out):
    probs, mass = out
    require(((probs >= 0) & (probs <= 1)).all(), "an entry outside [0, 1]")
    require(
        (probs.double().sum(-1) - 1).abs().max() < 1e-3 if len(probs) else True,
        f"a row that sums to {probs.double().sum(-1).tolist()}",
    )
    require(torch.equal(mass.isnan(), is_bad(args["p"])), "mass NaN of a valid row, or a number of an invalid one")
    require((mass.isnan() | (mass >= 0)).all(), "a negative mass")


def check_row_gap(args, out):
    if "p_stats" not in args and "q_stats" not in args:
        sums = out[:, [0, 1, 4, 5]]  # an entropy needs a valid row
        require((sums.isnan() | (sums >= 0)).all(), f"below 0: {out.tolist()}")


def check_kseq_rho(args, out):
    k = torch.as_tensor(args["k"]).double()
    require(((out.rho >= 1) & (out.rho <= k)).all(), f"rho outside [1, k]: {out.rho.tolist()}")
    for x in (out.beta, out.p_acc):
        require((x.isnan() | (x >= -1e-6) & (x <= 1 + 1e-6)).all(), f"no chance, up to rounding: {x.tolist()}")


def check_row_stats(args, out):
    if has_ids(args):
        return None  # support/sparse_checks.py compares such rows with the reference
    z, V = seen(args).float(), args["logits"].size(1)
    scale, cutoff, log_norm, top = out.unbind(1)
    bad = is_bad(z) | ~z.isfinite().any(1)
    require((log_norm.isnan() | ~bad).all(), "an invalid row with a log_norm")
    greedy, sampled = ~bad & (scale == INF), ~bad & (scale < INF) & ~log_norm.isnan()
    require((log_norm[greedy] == z[greedy].argmax(1)).all(), "a greedy row without its argmax")
    require(
        ((log_norm >= -1e-6) & (log_norm <= math.log(V) + 1e-4) & (cutoff <= top))[sampled].all(),
        "log_norm or cutoff out of place",
    )


def has_ids(args):
    return not args.get("ids") is args.get("vocab_map") is None


def check_sample(args, out):
    V, k = 2**24 if has_ids(args) else args["logits"].size(1), args["k"]
    require(((out.tokens >= -1) & (out.tokens < V)).all(), f"a token outside the vocabulary: {out.tokens.tolist()}")
    require((out.tokens[:, :1] >= 0).all(), "a first draw of nothing")
    gone = out.tokens < 0
    distinct = args.get("race") or not args["replacement"]
    require(distinct or not gone.any(), "nothing left, with replacement")
    require(torch.equal(gone, gone.cummax(1).values) if gone.numel() else True, "a token after nothing was left")
    require((out.logprobs[gone] == -INF).all(), "ln q of no token")
    if "stats" not in args and not has_ids(args):
        bad = is_bad(seen(args))[:, None].expand(-1, k)
        require(out.logprobs[bad].isnan().all(), "ln q of an invalid row")


def check_top_logprobs(args, out):
    z, k = seen(args).double(), args["k"]
    for i in range(len(z)):
        found = out.ids[i].tolist()
        order = sorted(range(z.size(1)), key=lambda v: (math.isnan(z[i, v]), -float(z[i, v].nan_to_num()), v))
        require(found == order[:k], f"ids {found} for {order[:k]}")
        for v, rank, x in zip(*(t[i].tolist() for t in (args.get("tokens", out[3]), out[3], out[2]))):
            inside = 0 <= v < z.size(1)
            require(rank == (int((z[i] >= z[i, v]).sum()) if inside else 0), f"rank {rank} of token {v}")
            require(inside or x == -INF, f"logprob {x} of token {v}")


def check_row_topw(args, out):
    V = args["logits"].size(1)
    z = seen(args)
    bad = is_bad(z) | ~z.isfinite().any(1) | args["score"].isnan() | (args["score"] == INF)
    for i, (scores, found) in enumerate(zip(out.scores.tolist(), out.ids.tolist())):
        require(len(set(found)) == len(found) and all(0 <= v < V for v in found), f"ids {found} of {V}")
        order = [(math.isnan(x), -x if x == x else 0.0, v) for x, v in zip(scores, found)]
        require(order == sorted(order), f"scores {scores} of ids {found}")
        require("stats" in args or not bad[i] or all(x != x for x in scores), f"scores {scores} of no law")


def check_support(args, out):
    require((out.counts >= 0).all() and (out.counts <= args["logits"].size(1)).all(), "counts of no set")
    for row, count, words in zip(out.ids.tolist(), out.counts.tolist(), out.bits.tolist()):
        kept = [32 * w + b for w, word in enumerate(words) for b in range(32) if word >> b & 1]
        require(len(kept) == count and all(v < args["logits"].size(1) for v in kept), f"{count} kept, bits say {kept}")
        listed = kept[: len(row)]
        require(row == listed + [-1] * (len(row) - len(listed)), f"ids {row}, bits say {kept}")


def check_count_tokens_(args, out):
    want = example_calls.outcome("count_tokens_", reference.count_tokens_, **args)
    require(all(map(torch.equal, out, want)), f"{[x.tolist() for x in out]} for {[x.tolist() for x in want]}")


def check_build_tree(args, out):
    want = reference.build_tree(args["draft_tokens"])
    require(all(torch.equal(a, b) for a, b in zip(out, want)), "another tree than the reference's")


def check_grow_tree(args, out):
    want = reference.grow_tree(**args)
    require(all(torch.equal(a, b) for a, b in zip(out[:2], want)), "another tree than the reference's")
    require((out.tokens < 1 << 24).all() and (out.parents < torch.arange(args["nodes"]).clamp(min=0)).all(), "ids")


def check_budget(args, out):
    require(torch.equal(out, reference.budget(**args)), f"kept {out.tolist()}")


def check_tree_mask(args, out):
    require((out.status == 0).all(), "a status on the CPU, where all of it raises")
    if (
        max(
            [
                0,
                *(
                    int(torch.as_tensor(args.get(name, 0)).max())
                    for name in ("prefix_len", "tree_start")
                    if len(args["parents"])
                ),
            ]
        )
        < 2**31
    ):
        want = reference.tree_mask(**args)
        require(all(same(a, b) for a, b in zip(out, want)), "another mask than the reference's")


def check_emitted(args, out, V):
    """Check the tokens, counts, logprobs and status of a verification."""
    B, width = out.tokens.shape
    n, at = out.num_accepted.long()[:, None], torch.arange(width)
    require(((n >= 0) & (n < width)).all(), f"num_accepted {n.tolist()}")
    inside = (out.tokens >= 0) & (out.tokens < V)
    if "bonus_tokens" in args:  # the caller's bonus token is emitted unchanged
        lengths = args["cu_draft"].diff() if "cu_draft" in args else torch.full((B,), width - 1)
        inside |= (at == n) & (n == lengths[:, None])
    require(
        torch.where(at <= n, inside, out.tokens == -1).all(), f"tokens {out.tokens.tolist()} with {n.tolist()} accepted"
    )
    require((out.logprobs[at > n] == 0).all(), "a logprob at a pad")
    require((out.status & ~STATUS == 0).all(), f"status {out.status.tolist()}")


def check_verify_chain(args, out):
    check_emitted(args, out, args["target_logits"].size(-1))
    tokens, n = args["draft_tokens"], out.num_accepted.tolist()
    for b, count in enumerate(n):
        start = int(args["cu_draft"][b]) if "cu_draft" in args else 0
        drafted = tokens[start : start + count] if "cu_draft" in args else tokens[b, :count]
        require(torch.equal(out.tokens[b, :count], drafted.long()), "an accepted token that was not drafted")


def check_verify_tree(args, out):
    check_emitted(args, out, args["target_logits"].size(-1))
    up, tokens = args["tree"][:2]
    for b, count in enumerate(out.num_accepted.tolist()):
        path = out.path[b].tolist()
        require(
            path[0] == 0 and path[count + 1 :] == [-1] * (len(path) - count - 1), f"path {path} with {count} accepted"
        )
        for step in range(count):
            node = path[step + 1]
            require(
                up[b, node] == path[step] and tokens[b, node] == out.tokens[b, step],
                f"path {path} leaves the tree at {node}",
            )


CHECKS = {op: globals().get(f"check_{op}", lambda args, out: None) for op in OPS}


def requests(op, args):
    if "cu_draft" in args:
        return args["cu_draft"].numel() - 1
    if "tree" in args:
        return len(args["tree"][0])
    first = {"uniforms": ("seed",), "support": ("row",), "count_tokens_": ("tokens",)}.get(op, ())
    names = (*first, "p", "logits", "draft_tokens", "parents", "log_q", "survival")
    return len(next(args[name] for name in names if name in args))


def of_requests(op, args, out):
    """Return the results of a call, with one entry for each request. Lists are picked by the requests' indices."""
    if op != "count_tokens_":
        return tensors(out)
    status, *lists = out
    row = args.get("row", torch.arange(len(status)))
    return [status, *(torch.where((row < 0)[:, None], -1, x[row]) for x in lists)]


def alone(op, args, b, B):
    """Return the same call for request b only.

    Arguments are cut as the table of arguments says; rows by index and ragged drafts are cut here.
    """
    _, call = flat.folded(op, (), args)
    if op == "count_tokens_":
        call = {"row": torch.arange(B)} | call
    out = flat.flattened(op, share_of(op, call, B, b, b + 1))
    sides = {side: flat.names_of(op, side) for side in arguments.sides(op)}
    numbered = [side for side, names in sides.items()
                if names.get("row") in args and arguments.places(op)[f"{side}.row"].per == "whole"]  # fmt: skip
    fields = ("logits", "stats", "ids", *["penalties", "bias", "allowed"] * (op == "support"))
    rows = {side: [names[what] for what in fields if names.get(what) in args]
            for side, names in sides.items()}  # fmt: skip
    out |= {name: args[name] for side in numbered for name in rows[side]}  # rows by index belong to no single request
    own = [sides[side]["row"] for side in numbered]
    if "cu_draft" not in args:
        return out | {name: args[name][b : b + 1] for name in own}
    start, end = args["cu_draft"][b : b + 2].tolist()
    D = args["draft_tokens"].numel()
    for name in (*own, *(name for side in rows if side not in numbered for name in rows[side])):
        extra = args[name].size(0) == D + B
        out[name] = args[name][start + b * extra : end + (b + 1) * extra]
    here = slice(start + b, end + b + 1)  # the request's positions
    if args["method"] == "race" and "offset" not in args and "seed" in args:
        out["seed"] = args["seed"][here]
    for name in [names[view] for names in sides.values() for view in ("bias", "allowed") if view in names]:
        view = args.get(name)
        if view is not None and view.row is not None and len(view.row) != B:
            out[name] = view._replace(row=view.row[here])
        elif view is not None and view.row is None and len(view[0]) != B:
            out[name] = type(view)(*[None if x is None else x[here] for x in view])
    return out | {"cu_draft": torch.tensor([0, end - start]), "draft_tokens": args["draft_tokens"][start:end]}


def check(op, args, run=None, b=0):
    """Run a call and check the promises of the op's docstring. Return the error if there was a clean one.

    Request b is run again alone, and the call is run again with the requests from b on absent.
    """
    run = run or (lambda op, **args: example_calls.outcome(op, functools.partial(flat.call, getattr(sk, op)), **args))
    try:
        out = run(op, **args)
    except (TypeError, ValueError, RuntimeError) as error:
        require(str(error).startswith(op + ": "), f"no clean error: {type(error).__name__}: {error}")
        return error
    CHECKS[op](args, out)
    B = requests(op, args)
    if B > 1 and op not in ("accept", "budget"):  # accept has no requests, and those of budget share a total
        other = alone(op, args, b % B, B)
        again = run(op, **other)
        for whole, single in zip(of_requests(op, args, out), of_requests(op, other, again)):
            require(
                same(whole[b % B : b % B + 1], single),
                f"request {b % B} alone is another: {whole[b % B].tolist()}, alone {single.tolist()}",
            )
    if B and op in PADDED:
        check_padded(op, args, run, out, b % B)
    return None


PADDED = {op: x.name for op in arguments.TABLE for x in arguments.taken(op) if x.per == "count"}


def check_padded(op, args, run, out, n):
    part = run(op, **args, **{PADDED[op]: torch.tensor([n])})
    for whole, x in zip(tensors(out), tensors(part)):
        require(same(whole[:n], x[:n]), f"others behind the first {n} show: {whole[:n].tolist()}, {x[:n].tolist()}")
        require(((x[n:] == 0) | (x[n:] == -1)).all(), f"from {n} on absent: {x.tolist()}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--op", choices=OPS, action="append")
    parser.add_argument("--call", type=int, help="only this one of the calls, which are numbered from 0")
    parser.add_argument("--last", help="a file that always names the call that runs")
    chosen = parser.parse_args()
    ops = chosen.op or list(OPS)
    print(f"seed {chosen.seed}, {chosen.requests} requests, {sk.__file__}, {sk.backends.cpu_isa()}", flush=True)
    made, refused, i = 0, collections.Counter(), 0
    while made < chosen.requests:
        op, rng = ops[i % len(ops)], random.Random(f"{chosen.seed} {i}")
        if chosen.call in (None, i):
            args = call(op, rng)
            where = f"{op}, --call {i} --seed {chosen.seed}"
            if chosen.last:  # a sanitizer ends the process without naming the call
                Path(chosen.last).write_text(where + "\n")
            try:
                error = check(op, args, b=rng.randrange(8))
            except Exception:
                print(f"FAILED: {where}", flush=True)
                raise
            refused[op] += error is not None
        made += max(1, requests(op, args)) if chosen.call in (None, i) else 1
        i += 1
        if chosen.call is not None and i > chosen.call:
            break
    print(f"{i} calls, {made} requests, silent; refused cleanly: {dict(refused)}")


if __name__ == "__main__":
    sys.exit(main())
