# SPDX-License-Identifier: Apache-2.0
"""The bytes that verify_tree reads, counted access by access as in package/test_bytes.py. Rows of nodes that are not
visited are not read; the others are read as often as their method requires.

A visited target row is read once for its stats. Every rejected draft with a row costs another pass over the target's
row, its own row and those of the rejections before it: residuals are computed again each time, never stored. Passes
read 16 bytes at a time, so they can be counted exactly. Further reads are the rescan of the final draw, and entries
looked up by id. All 256 threads of a block look up the same address at once, which is one transaction.
"""

import pytest
import torch
from support import answers as reference
from support import backends, flat
from support.bytes_read import BF16, BLOCK, CHUNK, RESCAN, count, language_rows, note, within

V, ITEM, K, L = 4096, 2, 3, 3
ROW = V * ITEM

pytestmark = [
    pytest.mark.thorough,  # the checked build takes both cores for a minute
    pytest.mark.skipif("cuda-on-cpu" not in backends.NAMES, reason="cuda-on-cpu was not asked for"),
]


def step(B=16, noise=0.6):
    """Return K drafts of length L, i.i.d. from rows near the target's, with the draft's stats given."""
    N = K * L + 1
    target = language_rows(1, B * N, V, BF16).reshape(B, N, V)
    rng = torch.Generator().manual_seed(2)
    draft = (target.float() + noise * torch.randn(B, N, V, generator=rng)).to(BF16)
    laws = draft.float().softmax(-1)
    drafts, at = torch.full((B, K, L), -1), torch.zeros(B, K, dtype=torch.int64)
    for level in range(L):
        for k in range(K):
            drafts[:, k, level] = torch.multinomial(laws[torch.arange(B), at[:, k]], 1, generator=rng)[:, 0]
        at = reference.build_tree(drafts[:, :, : level + 1]).draft_nodes[:, :, level].long()
    stats = backends.run("row_stats", "cpu", draft.flatten(0, 1)).reshape(B, N, 4)
    return {
        "tree": tuple(reference.build_tree(drafts)),
        "target_logits": target,
        "draft_logits": draft,
        "draft_stats": stats,
    }


def call(method, **more):
    args = step(**more)
    parents, _, _, draft_nodes = args["tree"]
    columns = K * L if method in ("kseq", "recursive") else parents.shape[1]
    rng = torch.Generator().manual_seed(3)
    args["uniforms"] = torch.rand(len(parents), columns + 1, generator=rng, dtype=torch.float64)
    out, (target, draft), _ = count("verify_tree", "target_logits", "draft_logits", method=method, **args)
    assert torch.equal(out.tokens, flat.call(reference.verify_tree, method=method, **args).tokens)
    return args, out, target, draft


def visited(out, N):
    """Return two masks [B, N]: the root with the accepted nodes, and the last of these alone."""
    on_path = torch.zeros(len(out.path), N, dtype=torch.bool).scatter_(1, out.path.clamp(min=0).long(), True)
    last = out.path.gather(1, out.num_accepted[:, None].long()).long()
    return on_path, torch.zeros_like(on_path).scatter_(1, last, True)


def rejections(method, tree, out):
    """Return [B, N]: the number of failed tests at each node of the path, and the number of all tests."""
    parents, _, _, draft_nodes = tree
    failed, made = torch.zeros(2, *parents.shape, dtype=torch.int64)
    for b, path in enumerate(out.path.tolist()):
        nodes = [n for n in path if n >= 0]
        for depth, (node, taken) in enumerate(zip(nodes, nodes[1:] + [None])):
            if method == "recursive":
                passing = (
                    [k for k in range(K) if depth == 0 or draft_nodes[b, k, depth - 1] == node] if depth < L else []
                )
                tests = [int(draft_nodes[b, k, depth]) for k in passing]
            else:
                tests = [i for i in range(1, parents.shape[1]) if parents[b, i] == node]
            failed[b, node] = tests.index(taken) if taken is not None else len(tests)
            made[b, node] = failed[b, node] + (taken is not None)
    return failed, made


def passes(counted):
    """Return how many whole rows were read."""
    assert set(counted.loads) <= {ITEM, 16} and counted.loads.get(16, 0) * 16 % ROW == 0
    return counted.loads.get(16, 0) * 16 // ROW


def summed_again(args, out, tests):
    """Return how often what remains of q is summed again. It is usually one minus the removed tokens; if that is below
    an eighth, a pass over q sums it."""
    parents, tokens = args["tree"][:2]
    laws, n = args["draft_logits"].double().softmax(-1), 0
    for b, i in (tests > 1).nonzero().tolist():
        q = laws[b, i, tokens[b, parents[b] == i]][: tests[b, i] - 1]
        n += int((1 - q.cumsum(0) < 0.125).sum())
    return n


@pytest.mark.parametrize("method, noise", [("recursive", 1.2), ("recursive_without_replacement", 0.6)])
def test_recursive(method, noise):
    args, out, target, draft = call(method, noise=noise)
    on_path, stop = visited(out, target.read.shape[1])
    m, tests = rejections(method, args["tree"], out)
    assert (m[stop] > 1).any() and (m[stop] == 0).any() and (m[on_path & ~stop] > 0).any(), (
        "not a test of all the outcomes"
    )
    assert (target.read[~on_path] == 0).all() and (draft.read[~on_path] == 0).all()
    assert (target.distinct[on_path] == ROW).all()
    assert (draft.distinct[m > 0] == ROW).all() and (draft.distinct[m == 0] <= (tests * ITEM)[m == 0]).all()
    again = summed_again(args, out, tests) if method == "recursive_without_replacement" else 0
    assert passes(target) == int((1 + m)[on_path].sum())
    assert passes(draft) == int((m * (m + 1) // 2).sum()) + again
    rest = target.read.sum() - passes(target) * ROW
    assert rest <= int(((tests + 1) * (m + 2) * BLOCK + stop * RESCAN).sum()) * ITEM
    note(
        f"verify_tree {method}, K={K}, L={L}, V={V}",
        target.read.sum() + draft.read.sum(),
        int(on_path.sum() + (m > 0).sum()) * ROW,
    )


def test_target_only_and_greedy_read_no_draft_row():
    for method in ("target_only", "greedy"):
        args, out, target, draft = call(method)
        on_path, stop = visited(out, target.read.shape[1])
        m, _ = rejections(method, args["tree"], out)
        assert out.num_accepted.unique().numel() > 2
        assert (target.read[~on_path] == 0).all() and (draft.read == 0).all()
        assert (target.distinct[on_path] == ROW).all()
        if method == "greedy":
            assert within(
                target.read[on_path], ROW, CHUNK, ITEM
            )  # the chunk of the maximum again, to find its first id
            continue
        assert within(target.read[on_path & ~stop], ROW, (K + 1) * BLOCK, ITEM)
        again = stop & (m > 0)  # the row without the children
        assert again.any() and within(target.read[again], 2 * ROW, RESCAN + K * BLOCK, ITEM)
        assert within(target.read[stop & (m == 0)], ROW, RESCAN, ITEM)


def test_kseq():
    """At a node where drafts continue, both rows are read once in the search for rho, which keeps their weights."""
    args, out, target, draft = call("kseq")
    on_path, stop = visited(out, target.read.shape[1])
    assert (target.read[~on_path] == 0).all() and (draft.read[~on_path] == 0).all()
    assert (target.distinct[on_path] == ROW).all()
    searched = on_path & (draft.distinct == ROW)
    assert within(target.read[on_path & ~searched], ROW, RESCAN, ITEM) and (draft.read[on_path & ~searched] == 0).all()
    rejected = stop & searched
    assert rejected.any() and (searched & ~stop).any() and (stop & ~searched).any(), "not a test of all the outcomes"
    pairs = draft.read // ROW - rejected.long()
    assert (pairs[searched] == 1).all()
    few = ((K + 1) * BLOCK + rejected * RESCAN) * ITEM
    assert (few < ROW).all()
    assert (draft.read - (pairs + rejected) * ROW <= few)[searched].all()
    more = target.read - (1 + pairs + rejected) * ROW
    assert ((more >= -ROW) & (more <= few))[searched].all()  # stats may hold the target's total: one pass less
    note(
        f"verify_tree kseq, K={K}, L={L}, V={V}",
        target.read.sum() + draft.read.sum(),
        int(on_path.sum() + searched.sum()) * ROW,
    )


def test_traversal():
    """Traversal visits the nodes whose weight is not 0 until a leaf is accepted. It reads the rows of exactly the nodes
    that the reference reads."""
    from support.tree_checks import visited_by_traversal

    args, out, target, draft = call("traversal", B=8, noise=1.5)
    on_path, _ = visited(out, target.read.shape[1])
    seen = torch.zeros_like(on_path)
    for b, nodes in enumerate(visited_by_traversal({"method": "traversal", **args})):
        seen[b, nodes] = True
    assert (seen & ~on_path).any() and not seen.all() and out.num_accepted.unique().numel() > 2
    assert (target.read[~seen] == 0).all() and (target.distinct[seen] == ROW).all() and (draft.read[~seen] == 0).all()
    children = torch.zeros_like(on_path, dtype=torch.int64).scatter_add_(
        1, args["tree"][0].clamp(min=0).long(), (args["tree"][0] >= 0).long()
    )
    lost = children + 1  # a node loses each child at most once, and is drawn from once
    assert int(seen.sum()) < passes(target) <= int((1 + lost)[seen].sum())
    assert 0 < passes(draft) <= int((lost * (lost + 1) // 2 + lost)[seen].sum())
