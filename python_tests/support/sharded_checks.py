# SPDX-License-Identifier: Apache-2.0
"""Comparison of calls in which each rank has its part of the rows with the same calls on whole rows."""

import torch
from support import sharded_cases
from support.sharded_cases import results
from support.surface import plain

from specdec_kernels.distributed.whole_rows import logits_of, with_logits

# The most requests of a call. Whole rows are dealt out to ranks by request, so there must be enough for all ranks.
MOST = {"chunks": 3, "rows": 9}


def sharded(rank, op, args, splits, exchange="chunks"):
    from specdec_kernels import distributed

    shards = [distributed.Shards(V, bounds, exchange=exchange) for V, bounds in splits.values()]
    mine = dict(args)
    for name, of in zip(splits, shards):
        mine[name] = with_logits(args[name], logits_of(args[name])[..., of.here])
    draft = {"draft_shards": shards[1]} if len(shards) > 1 else {}
    return getattr(distributed, op)(**mine, shards=shards[0], **draft)


def outcome(function, *args, **kwargs):
    """Return the results or the error of a call. All NaNs count as equal."""
    try:
        return [plain(x) for x in results(function(*args, **kwargs))]
    except (ValueError, RuntimeError) as error:
        return str(error)


def differ(rank, first, last, n, exchange="chunks"):
    """Return the calls whose results differ from those on whole rows."""
    import specdec_kernels as sk

    found = []
    for seed in range(first, last):
        op, args, splits = sharded_cases.call(seed, n, MOST[exchange])
        want = outcome(getattr(sk, op), **args)
        got = outcome(sharded, rank, op, args, splits, exchange)
        if isinstance(want, str) or isinstance(got, str):
            same = got == want
        else:
            same = all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(got, want, strict=True))
        if not same:
            found.append((seed, op, splits, got, want))
    return found


def rows_with_other_stats(rank, n):
    """Return how many of 512 rows have other stats if they are split."""
    import specdec_kernels as sk

    rows = torch.randn(512, 7777, generator=torch.Generator().manual_seed(0))
    got = sharded(rank, "row_stats", {"rows": rows}, {"rows": (7777, ())})
    return int((got != sk.row_stats(rows)).any(-1).sum())


def views_differ(rank, n, exchange="chunks"):
    """Return the differences from whole rows where positions share one stored row under different penalties.

    Several positions of target and draft share it. If sample returns other penalties than it was given, they are
    returned too.
    """
    import specdec_kernels as sk
    from specdec_kernels import distributed

    V = 3000  # split at whole chunks: by the exchange "chunks" no entry moves, and both sides' rows share memory
    shards = distributed.Shards(V, tuple(min(1024 * r, V) for r in range(n)) + (V,), exchange=exchange)
    z, at = torch.zeros(1, V), torch.zeros(1, 4, dtype=torch.int64)
    ids = torch.tensor([[0, 2900, -1]], dtype=torch.int32)
    views = [sk.Penalties(presence=x, ids=ids, counts=ids.clamp(0, 1)) for x in (8.0, 3.0)]
    u = torch.tensor([[0.0, 0.0, 0.0, 0.5]], dtype=torch.float64)
    call = {"draft_tokens": torch.tensor([[1, 1500, 2900]]), "uniforms": u}
    found = []
    for method in ("token", "block"):
        whole = [sk.Rows(z, row=row, penalties=view) for row, view in zip((at, at[:, :3]), views)]
        want = sk.verify_chain(whole[0], draft=whole[1], method=method, **call)
        mine = [x._replace(logits=z[:, shards.here]) for x in whole]
        both = {"shards": shards, "draft_shards": shards}
        got = distributed.verify_chain(mine[0], draft=mine[1], method=method, **call, **both)
        if not all(map(torch.equal, map(plain, got), map(plain, want))):
            found.append((method, got, want))
    drawn = distributed.sample(sk.Rows(z[:, shards.here], penalties=views[0]), uniforms=u[:, :1], shards=shards)
    return found + [drawn.rows.penalties] * (drawn.rows.penalties is not views[0])
