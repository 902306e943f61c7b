# SPDX-License-Identifier: Apache-2.0
"""Random calls with sparse and mapped draft rows, of every form. The same seed makes the same call."""

import math

import numpy as np
import torch
from support import races

import specdec_kernels as sk
from specdec_kernels import reference
from specdec_kernels.reference.entries import listed
from specdec_kernels.reference.rules import ROW_RULES
from specdec_kernels.reference.views import is_seen
from specdec_kernels.registry import CHAIN_METHODS, RULES, SAMPLING, TREE_METHODS
from specdec_kernels.rows import Rows

VOCABULARIES = (1, 2, 5, 31, 200, 1500)
DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float16)
LAST = (1 << 24) - 1  # the largest drafted id


def pick(rng, *values):
    return values[rng.integers(len(values))]


def table(rng, V, Vd):
    """Return a table of target ids by draft id: with holes and repeats, or one to one as far as possible."""
    if rng.random() < 0.6:
        return torch.tensor(rng.integers(-1, V, Vd))
    n, found = min(V, Vd), np.full(Vd, -1)
    found[rng.permutation(Vd)[:n]] = rng.permutation(V)[:n]
    return torch.tensor(found)


def sparse_ids(rng, lead, k, end):
    """Return ids [*lead, k] below `end` with pads: distinct in any order, ascending, or with repeats."""
    if end > k and rng.random() < 0.5:
        n = math.prod(lead)
        ids = np.array([rng.permutation(end)[:k] for _ in range(n)], dtype=np.int64).reshape(*lead, k)
        ids = np.sort(ids, -1) if rng.random() < 0.5 else ids
    else:
        ids = rng.integers(0, end, (*lead, k))
    ids = np.where(rng.random(ids.shape) < 0.1, pick(rng, -1, -5), ids)
    return torch.tensor(ids, dtype=pick(rng, torch.int32, torch.int64))


def draft_rows(rng, near, kind="logits"):
    """Return rows [..., k], sparse, mapped or both, whose entries are near those of the same ids in `near` [..., V].

    Entries without an id are NaN, infinite, 0 or large. In some calls a few rows are invalid.
    """
    *lead, V = near.shape
    form, k = pick(rng, "sparse", "map", "both"), int(pick(rng, 1, 2, 3, 8, 40, 1100) if V > 20 else rng.integers(1, 9))
    Vd = int(pick(rng, 3, 20, 1500)) if form == "both" else k
    made = None if form == "sparse" else sk.vocab_map(table(rng, V, Vd), V)
    end = V + pick(rng, 0, 3, 4000) if form == "sparse" else Vd + 2
    ids = None if form == "map" else sparse_ids(rng, lead, k, end)
    z = torch.zeros(*lead, k, dtype=torch.float64)
    of = listed(Rows(z, ids=ids, vocab_map=made)).ids
    z = torch.tensor(near).gather(-1, of.clamp(0, V - 1))
    z = z + pick(rng, 0, 0.3, 1) * torch.tensor(rng.normal(size=z.shape))
    if rng.random() < 0.3:
        z[torch.tensor(rng.random(z.shape)) < 0.3] = -math.inf
    z = z.round() if rng.random() < 0.1 else z  # ties
    if kind == "probs":  # the sum stays below 1 after rounding
        z = 0.98 * z.masked_fill(of < 0, -math.inf).softmax(-1).nan_to_num(0.0)
    z[of < 0] = pick(rng, math.nan, math.inf, 0.0, 50.0)
    if kind == "logits" and rng.random() < 0.05:
        z[(torch.tensor(rng.random(z.shape)) < 0.02) & (of >= 0)] = pick(rng, math.nan, math.inf)
    z = z.to(pick(rng, *DTYPES))
    if rng.random() < 0.3:  # other strides
        z = torch.nn.functional.pad(z, (3, 2))[..., 3:-2]
        ids = ids if ids is None else ids.mT.contiguous().mT
    return Rows(z, ids=ids, vocab_map=made, kind=kind)


def filters(rng, n, greedy=True):
    """Return sampling parameters, each a number or [n]."""
    values = {
        "temperature": (0.0 if greedy else 0.5, 0.3, 0.7, 1.0, 1.3, 2.0),
        "top_k": (0, -1, 1, 2, 3, 20, 10**6),
        "top_p": (1.0, 0.95, 0.8, 0.5, 0.05),
        "min_p": (0.0, 0.02, 0.1, 1.0),
        "top_n_sigma": (0.0, 0.5, 1.0, 2.0),
    }
    found = {}
    for name, known in values.items():
        if rng.random() < 0.35:
            dtype = torch.int64 if name == "top_k" else torch.float32
            tensor = name == "temperature" or rng.random() < 0.5
            found[name] = torch.tensor(rng.choice(known, n), dtype=dtype) if tensor else pick(rng, *known)
    return found


def views(rng, n, V):
    found = {}
    if rng.random() < 0.4:
        texts = [rng.integers(0, V, rng.integers(0, 5)).tolist() for _ in range(2 * n)]
        found["penalties"] = sk.Penalties(1.3, 0.5, 0.2, *sk.history(texts[:n], texts[n:], 12))
    if rng.random() < 0.4:
        values = torch.tensor(rng.normal(size=(n, 4)), dtype=torch.float32)
        values[:, 1] = -math.inf
        found["bias"] = sk.Bias(torch.tensor(rng.integers(-1, V, (n, 4))), values)
    if rng.random() < 0.4:
        words = rng.integers(-(1 << 31), 1 << 31, (n, int(rng.integers(1, -(-V // 32) + 1))))
        found["allowed"] = sk.Allowed(torch.tensor(words, dtype=torch.int32))
    return found


def seen(rng, target, draft, n, V, greedy):
    """Return both sides, with filters and views if they are logits. greedy: whether draft rows may be greedy."""
    of = views(rng, n, V) if rng.random() < 0.5 else {}
    sides = []
    for side, chance in ((target, 1.0), (draft, 0.8)):
        if side.kind == "logits":
            of_side = of if rng.random() < chance else {}
            may_be = greedy or side is target
            side = side._replace(**of_side, **(filters(rng, n, may_be) if rng.random() < 0.6 else {}))
        sides.append(side)
    return sides


def target_rows(rng, *shape):
    """Return (float64 logits, Rows) of the target."""
    near = 3 * rng.standard_normal(shape)
    z, probs = torch.tensor(near), rng.random() < 0.2
    rows = (z.softmax(-1) if probs else z).to(pick(rng, *DTYPES))
    return near, Rows(rows, kind="probs" if probs else "logits")


def drawn(rng, rows, V):
    """Return a drafted token for each row [...]: most are drawn from it, some are other ids or -1."""
    k = rows.logits.shape[-1]
    flat = rows._replace(logits=rows.logits.reshape(-1, k), kind="logits", row=None)
    flat = flat._replace(ids=flat.ids if flat.ids is None else flat.ids.reshape(-1, k))
    if rows.kind == "probs":
        flat = flat._replace(logits=flat.logits.float().log())
    n = len(flat.logits)
    tokens = reference.sample(flat, uniforms=torch.tensor(rng.random((n, 1)))).tokens[:, 0].numpy()
    x = rng.random(n)
    tokens = np.where(x < 0.1, rng.integers(0, V + 2, n), tokens)
    for i, other in enumerate((LAST, LAST + 1, -1)):
        tokens = np.where((x > 0.97 + i / 100) & (x < 0.98 + i / 100), other, tokens)
    return torch.tensor(tokens).reshape(rows.logits.shape[:-1])


def by_rule(rng, rules, kind):
    """Return a rule with its parameters.

    "lossy" is left out for probabilities: on rows of them without mass the reference and the ops differ, also if they
    are dense.
    """
    rule = "exact" if rng.random() < 0.4 else pick(rng, *[x for x in rules if x != "lossy" or kind == "logits"])
    if rule == "exact":
        return {}
    drawn = [float(rng.random()) for _ in RULES[rule].parameters]
    alpha = tuple(x if x in known else known.default for x, known in zip(drawn, RULES[rule].parameters))
    return {"rule": rule, "alpha": alpha if len(alpha) > 1 else alpha[0]}


def may_be_greedy(rule):
    """Return whether draft rows may be greedy under this rule.

    If a rule keeps such a row and the draft is not its argmax, the reference reports an empty residual, and the ops do
    not, also on dense rows.
    """
    return rule.get("rule") not in ROW_RULES


def stats_made(draft, n):
    """Return the draft [B, n, k] with its stats in place of its parameters."""
    k = draft.logits.shape[-1]
    given = {name: getattr(draft, name) for name in SAMPLING}
    flat = {name: x.repeat_interleave(n) if torch.is_tensor(x) else x for name, x in given.items()}
    ids = None if draft.ids is None else draft.ids.reshape(-1, k)
    rows = Rows(draft.logits.reshape(-1, k), ids=ids, vocab_map=draft.vocab_map, **flat)
    of = sk.row_stats(rows).view(*draft.logits.shape[:-1], 4)
    return draft._replace(**dict.fromkeys(flat), stats=of)


def chain(seed):
    """Return arguments of verify_chain: dense, ragged, or with draft rows by index."""
    rng = np.random.default_rng(seed)
    B, G, V = int(rng.integers(1, 5)), int(rng.integers(1, 5)), pick(rng, *VOCABULARIES)
    extra, layout = int(rng.random() < 0.3), pick(rng, "dense", "dense", "ragged", "store", "slots")
    near, target = target_rows(rng, B, G + 1, V)
    kind = pick(rng, "logits", "logits", "logits", "probs")
    if layout in ("dense", "ragged"):
        near = near[:, : G + extra] + pick(rng, 0, 0.5, 2) * rng.standard_normal((B, G + extra, V))
        draft = draft_rows(rng, near, kind)
        tokens = drawn(rng, draft, V)[:, :G]
    else:
        S, K = rng.integers(1, 4, 2).tolist()
        draft = draft_rows(rng, 3 * rng.standard_normal((S * K, V) if layout == "store" else (S, K, V)), kind)
        row, x = torch.tensor(rng.integers(0, S * K, (B, G + extra))), torch.tensor(rng.random((B, G + extra)))
        tokens = drawn(rng, draft, V).flatten()[row[:, :G]]
        draft = draft._replace(row=row.where(x > 0.1, -1).where(x < 0.97, S * K + 2))
    method = pick(rng, *races.OTHERS)
    rule = by_rule(rng, CHAIN_METHODS[method].rules, kind)
    target, draft = seen(rng, target, draft, B, V, may_be_greedy(rule))
    if layout == "dense" and kind == "logits" and not is_seen(draft) and rng.random() < 0.4:
        draft = stats_made(draft, G + extra)
    args = {"target": target, "draft_tokens": tokens, "draft": draft, "method": method}
    args |= rule | {"uniforms": torch.tensor(rng.random((B, G + 1)))}
    if layout == "ragged":
        args |= ragged(rng, args, extra)
    elif rng.random() < 0.1:
        args["num_requests"] = torch.tensor([int(rng.integers(0, B + 1))])
    return races.some(args, seed)


def ragged(rng, args, extra):
    """Return those arguments of a dense batch that change in a ragged one."""
    B, G = args["draft_tokens"].shape
    lengths = rng.integers(0, G + 1, B)

    def cut(x, more):
        return x if x is None else torch.cat([x[b, : n + more] for b, n in enumerate(lengths)])

    target, draft = args["target"], args["draft"]
    return {
        "target": target._replace(logits=cut(target.logits, 1)),
        "draft": draft._replace(logits=cut(draft.logits, extra), ids=cut(draft.ids, extra)),
        "draft_tokens": cut(args["draft_tokens"], 0),
        "cu_draft": torch.tensor([0, *lengths.cumsum().tolist()]),
        "max_draft": G,
    }


def tree(seed):
    """Return arguments of verify_tree: build_tree's trees and others, with draft rows by node or by index."""
    rng = np.random.default_rng(seed)
    B, K, L, V = *rng.integers(1, 4, 3).tolist(), pick(rng, *VOCABULARIES[1:])
    N = K * L + 1
    near, target = target_rows(rng, B, N, V)
    M = pick(rng, N, N, 2)
    near = near + rng.standard_normal(near.shape) if M == N else 3 * rng.standard_normal((B, M, V))
    draft = draft_rows(rng, near, pick(rng, "logits", "logits", "logits", "probs"))
    method, own = pick(rng, *races.OTHER_TREES), drawn(rng, draft, V).numpy()
    if TREE_METHODS[method].tests_drafts and rng.random() < 0.7:
        given = tuple(sk.build_tree(torch.tensor(np.array([rng.choice(x, (K, L)) for x in own]))))
    else:
        parents = np.array([[-1] + [int(rng.integers(max(0, i - 3), i)) for i in range(1, N)] for _ in range(B)])
        tokens = np.take_along_axis(own, parents.clip(0) % M, 1)
        given = torch.tensor(parents), torch.tensor(tokens)
    n, columns = given[0].shape[1], K * L if len(given) > 2 else N
    if M != n or rng.random() < 0.3:
        row, x = given[0].clamp(min=0) % M, torch.tensor(rng.random((B, n)))
        draft = draft._replace(row=row.where(x > 0.1, -1).where(x < 0.97, M + 1) if method != "kseq" else row)
    rule = by_rule(rng, TREE_METHODS[method].rules, draft.kind)
    target = target._replace(logits=target.logits[:, :n])
    target, draft = seen(rng, target, draft, B, V, may_be_greedy(rule))
    args = {"tree": given, "target": target, "draft": draft, "method": method}
    return races.some(args | rule | {"uniforms": torch.tensor(rng.random((B, columns + 1)))}, seed)


def rows(seed):
    """Return sparse or mapped rows [N, k] of logits with filters and views, and the generator."""
    rng = np.random.default_rng(seed)
    N, V = int(rng.integers(1, 6)), pick(rng, *VOCABULARIES)
    given = draft_rows(rng, 3 * rng.standard_normal((N, V)))
    given = given._replace(**filters(rng, N), **(views(rng, N, V) if rng.random() < 0.5 else {}))
    if given.penalties is not None:
        windows = torch.tensor(rng.integers(-1, V, (N, 3)))
        given = given._replace(penalties=given.penalties._replace(drafted=windows))
    return given, rng


def pair(seed):
    """Return arguments of row_gap, with sparse or mapped rows as q."""
    rng = np.random.default_rng(seed)
    N, V = int(rng.integers(1, 6)), pick(rng, *VOCABULARIES)
    near, p = target_rows(rng, N, V)
    q = draft_rows(rng, near + pick(rng, 0, 0.5, 2) * rng.standard_normal(near.shape), p.kind)
    if p.kind == "logits":
        p, q = p._replace(**filters(rng, N)), q._replace(**filters(rng, N))
    return {"p": p, "q": q}
