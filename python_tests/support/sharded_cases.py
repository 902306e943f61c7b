# SPDX-License-Identifier: Apache-2.0
"""Random calls on rows that are split over ranks. The same seed makes the same call everywhere."""

import random

import numpy as np
import torch
from support import cases, flat, races, rule_cases, tree_cases, viewed

import specdec_kernels as sk
from specdec_kernels import registry

VOCABULARIES = (1, 7, 900, 1024, 1500, 2048, 3000, 5000, 7777)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SIDES = {"target_logits": "target", "draft_logits": "draft", "logits": "rows", "p": "p", "q": "q"}


def bounds(rng, V, ranks):
    """Return the bounds of a split vocabulary: even, at whole chunks, anywhere, or with empty ranks."""
    kind = rng.integers(4)
    if kind == 0:
        return ()
    step = 1024 if kind == 1 else 1
    inner = np.sort(rng.integers(0, V // step + 1, ranks - 1)) * step
    if kind == 2 and ranks > 2:
        inner[1:] = inner[0]
    return (0, *(int(b) for b in np.minimum(inner, V)), V)


def results(found):
    """Return the tensors of a result. Of Rows only the stats are returned, since each rank has other logits."""
    parts = [found] if isinstance(found, torch.Tensor) else found
    return [x.stats if isinstance(x, sk.Rows) else x for x in parts]


def pick(rng, values):
    return values[rng.integers(len(values))]


def spoil(rng, rows):
    """Put NaN or infinity into one entry of some rows, so that only one rank has it, or make all entries -inf."""
    flat = rows.view(-1, rows.shape[-1])
    for i in range(len(flat)):
        if rng.random() < 0.3:
            flat[i, rng.integers(flat.shape[1])] = pick(rng, (torch.nan, torch.inf, -torch.inf))
        elif rng.random() < 0.1:
            flat[i] = -torch.inf


def handed_over(args, side, prefix, repeat):
    """Replace a side's sampling parameters by its stats."""
    given = {name: args.pop(prefix + name, None) for name in registry.SAMPLING}
    given = {name: x.repeat_interleave(repeat) for name, x in given.items() if x is not None}
    rows = args[side + "_logits"]
    stats = sk.row_stats(sk.Rows(rows.reshape(-1, rows.shape[-1]), **given))
    args[side + "_stats"] = stats.view(*rows.shape[:-1], 4)


def ragged(args, rng):
    """Make `args` the same requests as a ragged batch, with drafts of any length."""
    B, G = args["draft_tokens"].shape
    length = torch.tensor(rng.integers(0, G + 1, B))
    here = torch.arange(G + 1) <= length[:, None]
    for name in ("target_logits", "target_stats"):
        if name in args:
            args[name] = args[name][here]
    for name in ("draft_logits", "draft_stats"):
        if args.get(name) is not None:
            args[name] = args[name][here if args[name].shape[1] == G + 1 else here[:, 1:]]
    args["draft_tokens"] = args["draft_tokens"][here[:, 1:]]
    args["cu_draft"] = torch.cat([torch.zeros(1, dtype=torch.int64), length.cumsum(0)])
    args["max_draft"] = G


def probabilities(args, side):
    args[side + "_logits"] = args[side + "_logits"].float().softmax(-1).to(args[side + "_logits"].dtype)
    args[side + "_kind"] = "probs"


def penalties(rng, n, V):
    """Return penalties of n requests or rows, or None.

    Lists are shared by index, or each request has its own. A few of the penalties are invalid, and every rank must
    raise an error.
    """
    if rng.random() < 0.5:
        return None
    draw = random.Random(int(rng.integers(1 << 30)))
    view = viewed.penalties(draw, n, V, row=draw.choice((None, 3)))
    wrong = {"counts": view.counts - 1, "presence": torch.full((n,), torch.nan)}
    wrong["row"] = torch.full((n,), len(view.counts))
    if view.ids is not None:
        wrong["ids"] = view.ids.flip(1)
    name = draw.choice((*wrong, *[None] * 60))
    return view if name is None else view._replace(**{name: wrong[name]})


def by_number(args, side, rng):
    """Give positions indices into a pool of rows, some of them equal."""
    lead = args[side + "_logits"].shape[:2]
    if 0 in lead:
        return
    for name in (side + "_logits", side + "_stats"):
        if name in args:
            args[name] = args[name].flatten(0, 1)
    args[side + "_row"] = torch.tensor(rng.integers(0, 1 + lead.numel() // 4, lead))


def bias(rng, n, V, positions=()):
    """Return a bias of n requests or rows, or None. A few are invalid, and every rank must raise an error."""
    if rng.random() < 0.5:
        return None
    draw = random.Random(int(rng.integers(1 << 30)))
    view = viewed.bias(draw, n, V, positions)
    wrong = {"ids": view.ids - 3, "values": torch.full_like(view.values, torch.inf)}
    name = draw.choice((*wrong, *[None] * 60))
    return view if name is None else view._replace(**{name: wrong[name]})


def allowed(rng, n, V, positions=()):
    if rng.random() < 0.5:
        return None
    return viewed.allowed(random.Random(int(rng.integers(1 << 30))), n, V, positions)


def seen(args, rng, B):
    """Give views to each side whose rows are logits."""
    for side in ("target", "draft"):
        if args.get(side + "_logits") is not None and args.get(side + "_kind") != "probs":
            V = args[side + "_logits"].shape[-1]
            args[side + "_penalties"] = penalties(rng, B, V)
            nodes = args["tree"][0].shape[-1:] if "tree" in args else (args["draft_tokens"].shape[-1] + 1,)
            positions = (B, *nodes) if "cu_draft" not in args else ()
            args[side + "_bias"] = bias(rng, B, V, positions)
            args[side + "_allowed"] = allowed(rng, B, V, positions)


def listed(args, side, rng, V):
    """Make some calls' rows of a side sparse or mapped, with repeats and pads. Such rows are whole on every rank."""
    rows = args.get(side + "_logits", args.get(side))
    if rows is None or rng.random() < 0.8:
        return
    if rng.random() < 0.5:
        args[side + "_ids"] = torch.tensor(rng.integers(-V // 8 - 1, V + 20, tuple(rows.shape)))
    else:
        args[side + "_vocab_map"] = sk.vocab_map(torch.tensor(rng.integers(-V // 8 - 1, V, rows.shape[-1])), V)


def padded(args, name, rng, B):
    """Make some of the requests, or rows, absent."""
    if rng.random() < 0.2:
        args[name] = torch.tensor([int(rng.integers(0, B + 1))])


def chain(seed, rng, V, Vq, dtype, requests):
    B, G = requests(rng), int(rng.integers(0, 4))
    method = pick(rng, ("token", "block"))
    how = {"filtered": rng.random() < 0.5, "one_hot": rng.random() < 0.2, "bonus_row": rng.random() < 0.3}
    args = rule_cases.chain(seed, B, G, V, method, None, shift=seed, Vq=Vq, dtype=dtype, **how)
    if rng.random() < 0.4:
        args.pop("rule"), args.pop("alpha")
    draft = args["draft_logits"] is not None
    if not how["filtered"] and rng.random() < 0.3:
        probabilities(args, "target")
    elif rng.random() < 0.3:
        handed_over(args, "target", "", G + 1)
    if draft and not how["filtered"] and rng.random() < 0.3:
        probabilities(args, "draft")
    elif draft and rng.random() < 0.5:
        handed_over(args, "draft", "draft_", args["draft_logits"].shape[1])
    if rng.random() < 0.3:
        ragged(args, rng)
    else:
        for side in ("target", "draft")[: 1 + draft]:
            if rng.random() < 0.5:
                by_number(args, side, rng)
    seen(args, rng, B)
    listed(args, "draft", rng, V)
    if rng.random() < 0.2:
        args.pop("rule", None), args.pop("alpha", None)
        args = races.raced(args | {"method": "race"})
    padded(args, "num_requests", rng, B)
    return "verify_chain", args


def tree(seed, rng, V, Vq, dtype, requests):
    method = pick(rng, tuple(registry.TREE_METHODS))
    B = requests(rng)
    how = {"filtered": rng.random() < 0.5, "one_hot": method != "kseq" and rng.random() < 0.2}
    if method != "kseq" or rng.random() < 0.5:
        how["N"] = pick(rng, (B, int(rng.integers(1, 8))))
        how["linked"] = rng.random() < 0.3
        how["shuffled"] = not how["one_hot"] and rng.random() < 0.3
    how["probs"] = not how["filtered"] and rng.random() < 0.3
    args = tree_cases.tree(seed, B, V, method, Vq=Vq, dtype=dtype, **how)
    linked, drafted = "links" in args, len(args["tree"]) > 2 and args["tree"][3] is not None
    if not linked and not drafted and rng.random() < 0.3:
        args["tree"] = tuple(x[0] for x in args["tree"][:2])  # one tree for all requests
    args = races.raced(args)
    padded(args, "num_requests", rng, B)
    if method not in ("greedy", "target_only", "race") and rng.random() < 0.5:
        args |= rule_cases.rules(B, "block", shift=seed)
    for side in ("target", "draft"):
        if args[side + "_logits"] is not None and side + "_row" not in args and rng.random() < 0.3:
            M = args[side + "_logits"].shape[1]  # nodes share some of the rows, by index
            args[side + "_row"] = torch.tensor(rng.integers(0, 1 + M // 3, (B, M)))
    seen(args, rng, B)
    listed(args, "draft", rng, V)
    return "verify_tree", args


def row_stats(seed, rng, V, Vq, dtype, requests):
    n = requests(rng)
    p, _ = cases.rows_pair(seed, n, V, dtype=dtype)
    filters = cases.parameters(seed, n)
    filters["top_k"][0] = int(rng.integers(1, 2 * V))
    padded(filters, "num_rows", rng, n)
    view = penalties(rng, n, V)
    if view is not None and rng.random() < 0.7:
        view = view._replace(drafted=torch.tensor(rng.integers(-1, V, (n, 3))))
    return "row_stats", {
        "logits": p,
        "penalties": view,
        "bias": bias(rng, n, V),
        "allowed": allowed(rng, n, V),
        **filters,
    }


def sample(seed, rng, V, Vq, dtype, requests):
    _, args = row_stats(seed, rng, V, Vq, dtype, requests)
    n, k = len(args["logits"]), int(rng.integers(1, 5))
    uniforms = torch.tensor(rng.random((n, k)))
    how = ({"replacement": True}, {"replacement": False}, {"race": True})[seed % 3]
    return "sample", races.raced(args | {"k": k, "uniforms": uniforms} | how)


def pair(seed, rng, V, Vq, dtype, requests, op="row_gap"):
    n = requests(rng)
    p, q = cases.rows_pair(seed, n, V, Vq, dtype)
    if rng.random() < 0.5:
        return op, {"p": p.float().softmax(-1), "q": q.float().softmax(-1), "kind": "probs"}
    filters = [cases.parameters(seed + i, n) for i in range(2)]
    given = {
        "p": p,
        "q": q,
        "p_stats": sk.row_stats(sk.Rows(p, **filters[0])),
        "q_stats": sk.row_stats(sk.Rows(q, **filters[1])),
    }
    listed(given, "q", rng, V)
    return op, given


def kseq(*args):
    op, given = pair(*args, op="kseq_rho")
    return op, given | {"k": int(args[1].integers(1, 6))}


MAKERS = (chain, chain, chain, tree, tree, tree, row_stats, sample, sample, pair, kseq)


def call(seed, ranks, most=3):
    """Return (op, arguments, {side: (width, bounds)}), with up to `most` requests.

    Sides whose rows are split over the ranks have an entry in the dict; () as bounds splits evenly.
    """
    rng = np.random.default_rng(seed)
    V = pick(rng, VOCABULARIES)
    Vq = max(1, V + int(rng.integers(-1100, 1100))) if rng.random() < 0.3 else V
    op, args = pick(rng, MAKERS)(seed, rng, V, Vq, pick(rng, DTYPES), lambda rng: int(rng.integers(1, most + 1)))
    names = [name for name in SIDES if args.get(name) is not None]
    for name in names:
        args[name] = args[name].clone()
        if rng.random() < 0.15:
            spoil(rng, args[name])
    whole = any(name.endswith(("_ids", "_vocab_map")) for name in args) or (len(names) > 1 and rng.random() < 0.4)
    widths = {SIDES[name]: args[name].shape[-1] for name in names[: 2 - whole]}
    _, args = flat.folded(op, (), args)
    return op, args, {side: (width, bounds(rng, width, ranks)) for side, width in widths.items()}
