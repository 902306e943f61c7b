# SPDX-License-Identifier: Apache-2.0
"""Random calls on rows with views, and the same calls on float32 rows to which the views were applied before.

Some draft rows are sparse or mapped, in both calls.
"""

import functools
import math
import os
import random

import torch
from support import backends, races, tiers, worker
from torch.utils import _pytree

import specdec_kernels as sk
from specdec_kernels.reference.entries import IDS_END, listed
from specdec_kernels.reference.padded import present
from specdec_kernels.reference.views import seen_nodes, unseen, written_out
from specdec_kernels.registry import CHAIN_METHODS, SAMPLING, TREE_METHODS
from specdec_kernels.rows import Rows

INTEGERS = (torch.int32, torch.int64)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LARGEST = (1 << 31) - 1  # id, and count
# The longest lists of used ids and biases, and about how many entries of one id a row may have. Interpreted Triton
# takes a step for each, and for each two ids of a bias.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and tiers.TIER != "all"
LONG, REPEATS = (10, 10) if INTERPRETED else (40, LARGEST)


def penalties(rng, n, V, *, row=None):
    """Return penalties of n requests or rows, which have used up to LONG ids: as lists or tables, some by index.

    Some amounts are off, some counts are the largest possible, and some lists have the largest id.
    """
    S = n if row is None else row
    some = [rng.sample(range(V), rng.randrange(min(V, LONG) + 1)) for _ in range(S)]
    outputs = [[rng.choice(ids) for _ in range(rng.randrange(6))] if ids else [] for ids in some]
    if rng.random() < 0.5:
        histories = tables(some, outputs, rng.choice((V, V, V + 3, V // 2)))
        if rng.random() < 0.3:
            histories["counts"].clamp_(max=1).mul_(LARGEST)
    else:
        ids, counts = sk.history(some, outputs, size=rng.choice((LONG, LONG + 5)))
        histories = {"ids": ids, "counts": counts}
        if rng.random() < 0.3:
            counts.fill_(LARGEST)
            for used, length in zip(ids, (ids >= 0).sum(1).tolist()):
                used[length : length + 1] = LARGEST
    at = None if row is None else torch.tensor([rng.randrange(S) for _ in range(n)], dtype=torch.int64)
    amounts = [
        rng.choice((None, low, torch.tensor([rng.uniform(low, high) for _ in range(n)], dtype=torch.float32)))
        for low, high in ((0.5, 2.0), (-0.5, 1.0), (-1.0, 1.5))
    ]
    return sk.Penalties(*amounts, **histories, row=at)


def tables(prompts, outputs, width):
    """Return histories as tables of the ids below `width`: a count and a bit for each."""
    counts = torch.zeros(len(prompts), width, dtype=torch.int32)
    words = torch.zeros(len(prompts), -(-width // 32), dtype=torch.int64)
    for s, (prompt, output) in enumerate(zip(prompts, outputs)):
        for v in output:
            if v < width:
                counts[s, v] += 1
        for v in set(prompt):
            if v < width:
                words[s, v // 32] |= 1 << v % 32
    return {"counts": counts, "prompt_bits": words.to(torch.int32)}


def owners(rng, n, positions):
    """Return (number of lists, row) for n requests or rows, whose positions have the shape `positions`.

    row is None if each request or position has its own list. Otherwise it has the index of a list for each.
    """
    S = rng.choice((n, math.prod(positions) if positions else n))
    if rng.random() >= 0.5:
        return S, None
    S = rng.choice((1, 3))
    shape = rng.choice(((n,), positions or (n,)))
    row = torch.tensor([rng.randrange(-1, S) for _ in range(math.prod(shape))], dtype=rng.choice(INTEGERS))
    return S, row.reshape(shape)


def by_position(rng, positions, row, *lists):
    """Return the lists, in some calls with the dimensions of positions if each position has its own list."""
    each = row is None and len(positions) == 2 and len(lists[0]) == math.prod(positions) and rng.random() < 0.5
    return [x.reshape(*positions, x.size(1)) if each else x for x in lists]


def bias(rng, n, V, positions=()):
    """Return a bias of n requests or rows, whose positions have the shape `positions`.

    Each request or position has its own list, or lists are shared by index. They have repeats, pads, ids outside the
    vocabulary and forbidden ids.
    """
    length = rng.choice((0, 1, 5, LONG))
    S, row = owners(rng, n, positions)
    near = [*range(min(V, 4)), V - 1, V, -1, LARGEST]
    ids = [[rng.choice((rng.randrange(V), rng.choice(near))) for _ in range(length)] for _ in range(S)]
    values = [[rng.choice((rng.gauss(0, 3), rng.gauss(0, 3), 0.0, -math.inf)) for _ in range(length)] for _ in range(S)]
    ids, values = (torch.tensor(x, dtype=t).reshape(S, length)
                   for x, t in ((ids, rng.choice(INTEGERS)), (values, torch.float32)))  # fmt: skip
    return sk.Bias(*by_position(rng, positions, row, ids, values), row)


def allowed(rng, n, V, positions=()):
    """Return masks of n requests or rows, whose positions have the shape `positions`.

    Each request or position has its own mask, or masks are shared by index. They allow all ids, about half or a few.
    Some have a word too few or too many.
    """
    S, row = owners(rng, n, positions)
    W = max(1, (V + 31) // 32 + rng.choice((-1, 0, 0, 0, 0, 1)))
    kinds = (
        lambda: 0xFFFFFFFF,
        lambda: rng.getrandbits(32),
        lambda: 1 << rng.randrange(32) if rng.random() < 0.1 else 0,
    )
    words = [[kind() for _ in range(W)] for kind in (rng.choice(kinds) for _ in range(S))]
    bits = torch.tensor(words, dtype=torch.int64).reshape(S, W).to(torch.int32)
    return sk.Allowed(*by_position(rng, positions, row, bits), row)


def views(rng, n, V, positions=()):
    """Return some views of a side, as fields of Rows."""
    kinds = rng.choice(("p", "b", "m", "pb", "pm", "bm", "pbm", "pbm"))
    return {
        "penalties": penalties(rng, n, V, row=rng.choice((None, 3))) if "p" in kinds else None,
        "bias": bias(rng, n, V, positions) if "b" in kinds else None,
        "allowed": allowed(rng, n, V, positions) if "m" in kinds else None,
    }


FLAT = ("row_stats", "sample", "top_logprobs", "support", "row_topw")  # ops on rows [N, V]
OPS = (*FLAT, "verify_chain", "verify_tree")


def of_three(op, **views):
    """Return a greedy call of three rows or requests, with these views."""
    if op not in FLAT:
        draft = torch.tensor([[1], [2], [0]])
        tree = torch.tensor([[-1, 0]]).expand(3, 2), torch.cat([draft, draft], 1)
        drafts = {"draft_tokens": draft} if op == "verify_chain" else {"tree": tree, "method": "recursive"}
        return {"target": Rows(torch.zeros(3, 2, 9), temperature=0.0, **views)} | drafts
    more = {"top_logprobs": {"k": 2}, "support": {"max_kept": 3}, "row_topw": {"score": torch.zeros(3), "w": 2}}
    return {"rows": Rows(torch.zeros(3, 9), temperature=0.0, **views)} | more.get(op, {})


def normal(rng, *shape):
    generator = torch.Generator().manual_seed(rng.getrandbits(32))
    x = torch.empty(shape).normal_(0, rng.choice((1, 4)), generator=generator)
    return (x * 4).round() / 4 if rng.random() < 0.2 else x  # ties


def with_ids(rng, rows, V):
    """Return the first entries of rows [..., V] as sparse or mapped rows. Some ids repeat, are -1, or are beyond V."""
    k = rng.choice((1, 2, 5, V)) if V > 5 else V
    z, generator = rows.logits[..., :k].contiguous(), torch.Generator().manual_seed(rng.getrandbits(32))
    end = max(rng.choice((min(V, 4), V)), k // REPEATS)
    if rng.random() < 0.4:
        table = torch.randint(-1, end, (k,), generator=generator)
        return rows._replace(logits=z, vocab_map=sk.vocab_map(table, V))
    ids = torch.randint(-1, end + rng.choice((0, 3)), z.shape, generator=generator)
    return rows._replace(logits=z, ids=ids.to(rng.choice(INTEGERS)))


def vocabulary(rng):
    return rng.choice((3, 17, 64, 1000, 1024, 1025, 2049, 3001))


def sampling(rng, n):
    def one(*values):
        return rng.choice((None, rng.choice(values), torch.tensor([rng.choice(values) for _ in range(n)])))

    filters = rng.random() < 0.5
    return {
        "temperature": one(0.0, 0.7, 1.0, 1.3),
        "top_k": one(0, 1, 5, 40) if filters else None,
        "top_p": one(0.5, 0.9, 1.0) if filters else None,
        "min_p": one(0.0, 0.1) if filters else None,
        "top_n_sigma": one(0.0, 0.5, 1.5) if filters else None,
    }


def flat_call(op, rng):
    """Return the arguments of a call on rows [N, V] with views, and those of the same call with the views applied."""
    N, V = rng.randrange(1, 5), vocabulary(rng)
    of = views(rng, N, V)
    n = rng.randrange(4)
    windows = [()] * N
    if of["penalties"] is not None and rng.random() < 0.7:
        near = (-1, V, LARGEST, *range(min(V, 3)))
        windows = [[rng.choice((rng.randrange(V), rng.choice(near))) for _ in range(n)] for _ in range(N)]
        drafted = torch.tensor(windows, dtype=rng.choice(INTEGERS)).reshape(N, n)
        of["penalties"] = of["penalties"]._replace(drafted=drafted)
    rows = Rows(normal(rng, N, V).to(rng.choice(DTYPES)), **sampling(rng, N))
    if op in ("row_stats", "sample") and rng.random() < 0.3:
        rows = with_ids(rng, rows, V)
    call = {"num_rows": torch.tensor([rng.randrange(N + 1)])} if rng.random() < 0.2 else {}
    plain = listed(rows)
    out = written_out(plain.logits, rows._replace(**of), windows, range(N), N, ids=plain.ids)
    plain = plain._replace(logits=out)
    if op == "sample":
        uniforms = torch.tensor([[rng.random() for _ in range(3)] for _ in range(N)], dtype=torch.float64)
        call |= {"k": 3, "uniforms": uniforms}
        call = races.raced(call | {"rows": rows, rng.choice(("replacement", "race")): rng.random() < 0.5})
        call.pop("rows")
    if op == "top_logprobs":
        tokens = [[rng.randrange(-1, V + 1) for _ in range(2)] for _ in range(N)]
        call |= {"k": min(V, rng.choice((0, 1, 5))), "tokens": rng.choice((None, torch.tensor(tokens)))}
    if op == "row_topw":
        call |= {"score": torch.tensor([rng.choice((0.0, -7.5, -3000.0)) for _ in range(N)]), "w": min(V, 4)}
    if op == "support":
        call |= {"max_kept": rng.choice((0, 7))}
    if op != "row_stats" and rng.random() < 0.3:
        stats = sk.row_stats(plain)
        known = {name: None for name in SAMPLING} | {"stats": stats}
        rows, plain = rows._replace(**known), plain._replace(**known)
    if op == "support" and rng.random() < 0.5:  # rows by index
        row = torch.tensor([rng.randrange(-1, N + 1) for _ in range(rng.randrange(1, 6))])
        rows, plain = rows._replace(row=row), plain._replace(row=row)
    return {"rows": rows._replace(**of), **call}, {"rows": plain, **call}


def chain_call(rng):
    """Return the arguments of a call of verify_chain with views, and those of the same call with the views applied.

    Calls have every method and rule, and may be ragged, padded, or have rows in a pool.
    """
    B, G, V = rng.randrange(1, 5), rng.randrange(5), vocabulary(rng)
    lengths = [rng.randrange(G + 1) for _ in range(B)]
    ragged = rng.random() < 0.3
    few = min(V, rng.choice((2, 4, V)))  # so that windows repeat themselves, and drafts are accepted
    drafts = [[rng.randrange(few) for _ in range(g)] for g in (lengths if ragged else [G] * B)]
    method = rng.choice([*CHAIN_METHODS])
    rule = rng.choice(["exact", "exact", *CHAIN_METHODS[method].rules])
    call = {"method": method, "rule": rule}
    call["uniforms"] = torch.tensor([[rng.random() for _ in range(G + 1)] for _ in range(B)], dtype=torch.float64)
    if rule == "synthetic":
        call["alpha"] = 0.6
    dtype = rng.choice((torch.int32, torch.int64))
    if ragged:
        ends = [sum(lengths[:b]) for b in range(B + 1)]
        call |= {"cu_draft": torch.tensor(ends), "max_draft": G}
        call["draft_tokens"] = torch.tensor([d for ids in drafts for d in ids], dtype=dtype)
    else:
        call["draft_tokens"] = torch.tensor(drafts, dtype=dtype).reshape(B, G)
        if rng.random() < 0.3 and G:
            call["draft_tokens"][rng.randrange(B), rng.randrange(G) :] = -1
    if rng.random() < 0.2:
        call["num_requests"] = torch.tensor([rng.randrange(B + 1)])
    call = races.raced(call)
    seen, plain = dict(call), dict(call)
    at_end = rng.randrange(2)
    for side, extra in (("target", 1), ("draft", at_end)):
        if side == "draft" and rng.random() < 0.2:
            continue
        counts = [g + extra for g in (lengths if ragged else [G] * B)]
        first = rng.random() < 0.7 or side == "target"
        shape = (sum(lengths) + B,) if ragged else (B, G + 1)
        of = views(rng, B, V, shape) if first else {}
        listing = side == "draft" and rng.random() < 0.3
        rows, out = side_of(rng, of, counts, drafts, V, B, ragged, listing)
        seen[side], plain[side] = rows, out
    return seen, plain


def side_of(rng, of, counts, drafts, V, B, ragged, listing):
    """Return one side's rows with views, perhaps in a pool that positions share, and the rows with views applied.

    listing: whether the rows are sparse or mapped.
    """
    R = sum(counts)
    few = max(1, V // 4)
    z = normal(rng, R, V)
    z[:, :few] += 2
    dtype = rng.choice(DTYPES)
    store = R > 0 and rng.random() < 0.3
    kept = z.to(dtype)
    number = torch.arange(R)
    if store:
        kept = kept[: rng.randrange(1, R + 1)].contiguous()
        number = torch.tensor([rng.randrange(len(kept)) for _ in range(R)])
    windows = [drafts[b][:i] for b, n in enumerate(counts) for i in range(n)]
    requests = [b for b, n in enumerate(counts) for _ in range(n)]
    stored = with_ids(rng, Rows(kept), V) if listing else Rows(kept)
    kept, own = stored.logits, listed(stored)
    taken, ids = own.logits[number], None if own.ids is None else own.ids[number]
    k = kept.size(1)
    firsts = [sum(map(len, drafts[:b])) + b if ragged else b * (len(drafts[b]) + 1) for b in range(B)]
    positions = [firsts[b] + i for b, n in enumerate(counts) for i in range(n)]
    out = written_out(taken, Rows(taken, **of), windows, requests, B, positions, ids).float()
    lead = (R,) if ragged else (B, counts[0])
    given = sampling(rng, B)
    plain = Rows(out.view(*lead, k), ids=None if ids is None else ids.view(*lead, k), **given)
    rows = stored._replace(row=number.view(lead)) if store else stored._replace(logits=kept.view(*lead, k))
    if not store and rows.ids is not None:
        rows = rows._replace(ids=rows.ids.view(*lead, k))
    rows = rows._replace(**given)
    if not store and R and rng.random() < 0.25:  # stats of rows with views applied
        stats = sk.row_stats(Rows(out, ids=ids, temperature=0.8)).view(*lead, 4)
        known = {name: None for name in SAMPLING} | {"stats": stats}
        rows, plain = rows._replace(**known), plain._replace(**known)
    return rows._replace(**of), plain


def tree_call(rng):
    """Return the arguments of a call of verify_tree with views, and those of the same call with the views applied.

    Calls have every method and rule, and may be padded or have rows by index.
    """
    B, N, V = rng.randrange(1, 4), rng.randrange(1, 8), vocabulary(rng)
    few = min(V, rng.choice((2, 4, V)))
    parents = torch.tensor([[-1, *(rng.choice((i, -1, rng.randrange(i + 1))) for i in range(N - 1))] for _ in range(B)])
    tokens = torch.tensor([[rng.randrange(few) for _ in range(N)] for _ in range(B)])
    method = rng.choice([*TREE_METHODS])
    rule = rng.choice(["exact", "exact", *TREE_METHODS[method].rules])
    call = {"tree": (parents, tokens), "method": method, "rule": rule}
    call["uniforms"] = torch.tensor([[rng.random() for _ in range(N + 1)] for _ in range(B)], dtype=torch.float64)
    call = races.raced(call)
    if rng.random() < 0.2:
        call["num_requests"] = torch.tensor([rng.randrange(B + 1)])
    n = present(call.get("num_requests"), B)
    seen, plain = dict(call), dict(call)
    for side, M in (("target", N), ("draft", rng.randrange(1, N + 1))):
        if side == "draft" and method != "kseq" and rng.random() < 0.2:
            continue
        by_number = side == "draft" or rng.random() < 0.3
        number = torch.tensor([[rng.randrange(M) for _ in range(N)] for _ in range(B)])
        if side == "draft" and M == N and rng.random() < 0.5:
            by_number, number = False, parents
        rows = Rows(normal(rng, B, M, V).to(rng.choice(DTYPES)), **sampling(rng, B), row=number if by_number else None)
        if method == "greedy":
            rows = Rows(rows.logits, row=rows.row)
        if side == "draft":  # so that the drafted ids are likely
            rows.logits[..., :few] += 2
            if rng.random() < 0.3:
                rows = with_ids(rng, rows, V)
        of = views(rng, B, V, (B, N)) if side == "target" or rng.random() < 0.7 else {}
        if side == "target" and not by_number:
            number = torch.arange(N).expand(B, N)
        positions = number.new_tensor(range(N)).expand(B, N) if side == "target" else parents
        seen[side] = plain[side] = rows
        if of:
            seen[side] = rows._replace(**of)
            plain[side] = written_nodes(listed(seen[side]), parents, tokens, number.tolist(), positions.tolist(), n)
    return seen, plain


def written_nodes(*of_tree):
    rows = seen_nodes(*of_tree)
    return rows._replace(logits=rows.logits.float())


def ahead_of_time(op, V=1100, B=3, G=2):
    """Yield calls like those that support/aot.py compiles: with all amounts as tensors and with windows.

    Of row_stats there are also calls with amounts as numbers, with a bias and with masks.
    """
    rng = random.Random(f"ahead of time {op}")
    every = {name: torch.tensor([x, 1.0, x + 0.3]) for name, x in (("repetition", 1.3), ("frequency", 0.5))}
    ids, counts = sk.history([[1, 5]] * B, [[5, V - 1], [], [0, 0]], size=16)
    view = sk.Penalties(**every, presence=torch.tensor([0.4, 0.0, -0.2]), ids=ids, counts=counts)
    drafts = torch.tensor([[rng.randrange(3) for _ in range(G)] for _ in range(B)])
    random_ = {name: torch.tensor([rng.getrandbits(40) for _ in range(B)]) for name in ("seed", "offset")}
    if op in ("verify_chain", "verify_tree"):
        z, y = normal(rng, B, G + 1, V), normal(rng, B, G + 1, V)
        yield from verifications(op, rng, view, drafts, z, y, random_)
        return
    z = normal(rng, B, V)
    seen, windows = Rows(z, penalties=view._replace(drafted=drafts)), drafts.tolist()
    plain = Rows(written_out(z, seen, windows, range(B), B))
    if op == "row_stats":
        all_of = {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.01, "top_n_sigma": 2.0}
        filters = {name: torch.tensor([x] * B) for name, x in all_of.items()}
        yield {"rows": seen._replace(**filters)}, {"rows": plain._replace(**filters)}
        numbers = sk.Penalties(1.3, 0.5, 1.5, ids, counts, row=torch.tensor([2, 0, 0]))
        added = sk.Bias(drafts, torch.tensor([[0.5, -1.0]] * B))
        masks = sk.Allowed(torch.full((B, -(-V // 32)), 0x77777777, dtype=torch.int32))
        for given in (
            Rows(z, penalties=numbers, bias=added),
            Rows(z, bias=added, **filters),
            Rows(z, allowed=masks, **filters),
        ):
            yield {"rows": given}, {"rows": unseen(given, logits=written_out(z, given, [()] * B, range(B), B))}
        return
    if op in ("top_logprobs", "support"):
        stats = sk.row_stats(plain)
        seen, plain = seen._replace(stats=stats), plain._replace(stats=stats)
    more = {
        "sample": {"k": 1} | random_,
        "top_logprobs": {"k": 5, "tokens": drafts},
        "row_topw": {"score": torch.zeros(B), "w": 4},
        "support": {"max_kept": 64},
    }[op]
    yield {"rows": seen} | more, {"rows": plain} | more


def verifications(op, rng, view, drafts, z, y, random_):
    B, G = drafts.shape
    requests = [b for b in range(B) for _ in range(G + 1)]
    target, draft = Rows(z, penalties=view), Rows(y, penalties=view)
    if op == "verify_chain":
        windows = [drafts[b, :i].tolist() for b in range(B) for i in range(G + 1)]
        out = [Rows(written_out(x.flatten(0, 1), target, windows, requests, B).view_as(x)) for x in (z, y)]
        rules = torch.tensor([0, 1, 6]), torch.tensor([[0.4, 0.5]] * B)
        for more in ({}, {"method": "block", "rule": rules[0], "alpha": rules[1]}):
            call = {"draft_tokens": drafts} | random_ | more
            yield {"target": target, "draft": draft} | call, {"target": out[0], "draft": out[1]} | call
        return
    parents = torch.tensor([[-1, 0, 1]] * B)
    tokens = torch.cat([drafts[:, :1] * 0 - 1, drafts], 1)
    number = torch.arange(G + 1).expand(B, G + 1).tolist()
    for method in ("kseq", "recursive", "recursive_without_replacement", "traversal"):
        call = {"tree": (parents, tokens), "method": method, "max_depth": G} | random_
        plain = [written_nodes(target, parents, tokens, number, number, B),
                 written_nodes(draft, parents, tokens, parents.tolist(), parents.tolist(), B)]  # fmt: skip
        yield {"target": target, "draft": draft} | call, {"target": plain[0], "draft": plain[1]} | call


def differs_ahead_of_time(op):
    return [i for i, (seen, plain) in enumerate(worker.here(list(ahead_of_time(op))))
            if differ(getattr(sk, op)(**seen), getattr(sk, op)(**plain))]  # fmt: skip


def call_of(op, i):
    rng = random.Random(f"{op} {i}")
    return {"verify_chain": chain_call, "verify_tree": tree_call}.get(op, functools.partial(flat_call, op))(rng)


def leaves(out):
    """Return every tensor of a result, except the rows that it was made from."""
    if hasattr(out, "rows"):
        return [out.tokens, out.logprobs, out.rows.stats]
    return [x for x in _pytree.tree_leaves(out) if isinstance(x, torch.Tensor)]


def same(a, b):
    return a.dtype == b.dtype and torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) and a.isnan().equal(b.isnan())


def differ(found, wanted):
    return not all(same(x, y) for x, y in zip(leaves(found), leaves(wanted), strict=True))


def bare(call):
    """Return the call without views."""
    return {name: unseen(x) if isinstance(x, Rows) else x for name, x in call.items()}


def compared(op, backend, n):
    """Return which of n calls differ from the call with views applied, and how many from the call without views."""
    run, wrong, changed = getattr(sk, op), [], 0
    for i in range(n):
        seen, plain = worker.here(call_of(op, i))
        if not backends.serves(backend, op, seen):
            continue
        found = run(**seen)
        if differ(found, run(**plain)):
            wrong.append(i)
        changed += differ(found, run(**bare(seen)))
    return wrong, changed


def first_wrong(op, backend, n):
    """Return the first of n calls that differs from the call with views applied, or None."""
    run = getattr(sk, op)
    for i in range(n):
        seen, plain = worker.here(call_of(op, i))
        if backends.serves(backend, op, seen) and differ(run(**seen), run(**plain)):
            return i
    return None


def hidden_infinity():
    """Return the stats of a row whose forbidden entry a penalty makes infinite, and those of the row without it."""
    ids, counts = sk.history([[]], [[1, 1]], size=1)
    penalties = sk.Penalties(frequency=-3e38, ids=ids, counts=counts)  # 1 + 6e38 is infinite in float32
    allowed = sk.Allowed(torch.tensor([[0b101]], dtype=torch.int32))
    z = torch.tensor([[2.0, 1.0, 0.5]])
    without = torch.tensor([[2.0, -math.inf, 0.5]])
    return sk.row_stats(Rows(z, penalties=penalties, allowed=allowed)), sk.row_stats(without)


def hostile(rng, *shape, values, dtype):
    x = torch.tensor([rng.choice(values) for _ in range(max(1, torch.Size(shape).numel()))], dtype=dtype)
    return x[: torch.Size(shape).numel()].reshape(shape)


NUMBERS = (-(1 << 31), -2, -1, 0, 1, 2, 3, 40, (1 << 24) - 1, 1 << 24, LARGEST)
FAR = (*NUMBERS, -(1 << 63), 1 << 32, (1 << 63) - 1)
AMOUNTS = (0.0, -1.0, 1.0, 1.5, 1e-38, 3e38, math.inf, -math.inf, math.nan)


def hostile_penalties(rng, view, n):
    fields = {name: hostile(rng, n, values=AMOUNTS, dtype=torch.float32) for name in view._fields[:3]}
    for name in ("ids", "prompt_bits", "counts"):
        if getattr(view, name) is not None:
            fields[name] = hostile(rng, *getattr(view, name).shape, values=NUMBERS, dtype=torch.int32)
    if view.ids is not None and rng.random() < 0.3:
        fields["ids"] = fields["ids"].sort(1).values
    fields["row"] = hostile(rng, n, values=FAR, dtype=torch.int64)
    if view.drafted is not None:
        fields["drafted"] = hostile(rng, *view.drafted.shape, values=FAR, dtype=torch.int64)
    return fields


def hostile_bias(rng, view, n):
    shape = (n,) if view.row is None else view.row.shape
    return {
        "ids": hostile(rng, *view.ids.shape, values=FAR, dtype=torch.int64),
        "values": hostile(rng, *view.ids.shape, values=AMOUNTS, dtype=torch.float32),
        "row": hostile(rng, *shape, values=FAR, dtype=torch.int64),
    }


def hostile_mask(rng, view, n):
    shape = (n,) if view.row is None else view.row.shape
    return {
        "bits": hostile(rng, *view.bits.shape, values=NUMBERS, dtype=torch.int32),
        "row": hostile(rng, *shape, values=FAR, dtype=torch.int64),
    }


def hostile_ids(rng, rows):
    """Return the rows with wrong ids of their entries, or with a map that is partly or wholly wrong."""
    if rows.ids is not None:
        dtype, values = rng.choice(((torch.int32, NUMBERS), (torch.int64, FAR)))
        return rows._replace(ids=hostile(rng, *rows.ids.shape, values=values, dtype=dtype))
    packed = rows.vocab_map.packed
    wrong = hostile(rng, *packed.shape, values=NUMBERS, dtype=torch.int32)
    there = torch.tensor([rng.random() for _ in range(len(packed))]) < rng.choice((0.02, 0.3, 1.0))
    return rows._replace(vocab_map=rows.vocab_map._replace(packed=torch.where(there, wrong, packed)))


def hostile_call(op, i):
    """Return a call with invalid values in views, windows, trees and the ids of entries."""
    rng = random.Random(f"hostile {op} {i}")
    call, _ = call_of(op, rng.randrange(1 << 30))
    for side, rows in call.items():
        if not isinstance(rows, Rows):
            continue
        n = races.requests(call)
        made = {"penalties": hostile_penalties, "bias": hostile_bias, "allowed": hostile_mask}
        for field, make in made.items():
            view = getattr(rows, field)
            if view is not None:
                fields = {name: x for name, x in make(rng, view, n).items() if rng.random() < 0.25}
                rows = rows._replace(**{field: view._replace(**fields)})
        if rng.random() < 0.5 and not rows.ids is rows.vocab_map is None:
            rows = hostile_ids(rng, rows)
        call[side] = rows
    for name in ("draft_tokens", "cu_draft"):
        if name in call and rng.random() < 0.2:
            call[name] = hostile(rng, *call[name].shape, values=FAR, dtype=torch.int64)
    if "tree" in call and rng.random() < 0.4:
        parents, tokens = call["tree"]
        call["tree"] = hostile(rng, *parents.shape, values=FAR, dtype=torch.int64), tokens
    return call


def survived(op, backend, n):
    """Return how many of n hostile calls gave valid tokens, and how many raised an error that names the op.

    Any other outcome fails.
    """
    run = functools.partial(backends.as_on_gpu if backend.startswith("triton") else backends.public, op)
    served = refused = 0
    for i in range(n):
        call = worker.here(hostile_call(op, i))
        if not backends.serves(backend, op, call):
            continue
        try:
            out = run(**call)
        except (TypeError, ValueError, RuntimeError) as error:
            assert str(error).startswith(f"{op}: "), (op, i, error)
            refused += 1
            continue
        served += 1
        rows = call.get("target", call.get("rows"))
        V = rows.logits.size(-1) if rows.ids is rows.vocab_map is None else IDS_END
        for tokens in [getattr(out, name) for name in ("tokens", "ids") if hasattr(out, name)]:
            assert ((tokens >= -1) & (tokens < V)).all(), (op, i, tokens)
        if hasattr(out, "num_accepted"):
            assert ((out.num_accepted >= 0) & (out.num_accepted < out.tokens.size(1))).all(), (op, i)
    return served, refused
