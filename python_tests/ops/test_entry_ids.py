# SPDX-License-Identifier: Apache-2.0
"""Draft rows with ids or a vocabulary map on every backend, compared with the CPU, with dense rows and with float64
sums."""

import pytest
import torch
from support import backends, viewed

import specdec_kernels as sk

V, B, G = 1500, 2, 3


def spread(values, ids, fill):
    """Return dense rows [..., V] with the values at their ids. An entry with a negative id is left out."""
    out = torch.full((*values.shape[:-1], V + 1), fill)
    return out.scatter_(-1, torch.where(ids < 0, V, ids).long(), values)[..., :V].contiguous()


def ids_of(form, k, generator, repeats=False):
    """Return the ids [B, G, k] of sparse or mapped rows, about a third of them negative, and the fields of Rows."""
    end = max(k // 2, 1) if repeats else V

    def some():
        chosen = torch.randint(0, end, (k,), generator=generator) if repeats else torch.randperm(V, generator=generator)
        return torch.where(torch.rand(k, generator=generator) < 0.3, -1, chosen[:k])

    if form == "mapped":
        table = some()
        table[0] = 7 if repeats or not (table == 7).any() else table[0]
        return table.expand(B, G, k), {"vocab_map": sk.vocab_map(table, V)}
    ids = torch.stack([some() for _ in range(B * G)]).view(B, G, k)
    ids[..., 0] = torch.where((ids == 7).any(-1), ids[..., 0], 7)
    return ids, {"ids": ids}


def compiled_ahead(dtype):
    """Yield the calls that support/aot.py compiles ahead of time: the op and its arguments."""
    generator = torch.Generator().manual_seed(3)

    def normal(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    n, seeds = B * G, {name: torch.tensor([5] * B) for name in ("seed", "offset")}
    ids, sparse = ids_of("sparse", 8, generator)
    _, mapped = ids_of("mapped", 60, generator, repeats=True)
    flat, p, z, y = {"ids": ids.view(n, 8).long()}, normal(n, V), normal(n, 8), normal(n, 60)
    filters = {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.01, "top_n_sigma": 2.0}
    filters = {name: torch.tensor([x] * n) for name, x in filters.items()}
    bias = sk.Bias(torch.full((n, 2), 7), torch.tensor([[1.0, 0.5]] * n))
    yield "row_stats", {"rows": sk.Rows(z, **filters, **flat)}
    yield "row_stats", {"rows": sk.Rows(z, bias=bias, **flat)}
    yield "row_stats", {"rows": sk.Rows(y, **mapped)}
    of_rows = {name: torch.arange(n) for name in ("seed", "offset")}
    yield "sample", {"rows": sk.Rows(z, **flat), "k": 4, "replacement": False} | of_rows
    yield "sample", {"rows": sk.Rows(y, **mapped), "k": 4} | of_rows
    stats = sk.row_stats(sk.Rows(p)), sk.row_stats(sk.Rows(z, **flat))
    pairs = {"p": sk.Rows(p, stats=stats[0]), "q": sk.Rows(z, stats=stats[1], **flat)}
    probs = {side: sk.Rows(x.float().softmax(-1).to(dtype), kind="probs") for side, x in (("p", p), ("q", y))}
    for call in pairs, probs | {"q": probs["q"]._replace(**mapped)}:
        yield "row_gap", call
        yield "kseq_rho", call | {"k": torch.tensor([3] * n)}

    target, tokens = sk.Rows(normal(B, G + 1, V)), torch.full((B, G), 7)
    z, y = z.view(B, G, 8), y.view(B, G, 60)
    bias = sk.Bias(bias.ids[:B], bias.values[:B])
    probs = sk.Rows(z.float().softmax(-1).to(dtype), kind="probs", row=torch.arange(n).view(B, G), **sparse)
    rows = sk.Rows(z, **sparse), sk.Rows(z, bias=bias, **sparse), probs, sk.Rows(y, **mapped)
    rules = {"method": "block", "rule": torch.tensor([0, 6]), "alpha": torch.tensor([[0.4, 0.5]] * B)}
    for draft, more in (*((x, {}) for x in rows), (rows[0], rules), (rows[3], rules)):
        yield "verify_chain", {"target": target, "draft_tokens": tokens, "draft": draft} | seeds | more
    tree, target = (torch.tensor([[-1, 0, 1]] * B), tokens), sk.Rows(target.logits[:, :G].contiguous())
    by_number = rows[1]._replace(row=torch.tensor([[0, 0, 1]] * B))
    for method, draft in (("kseq", rows[0]), ("recursive_without_replacement", by_number), ("traversal", rows[0])):
        yield "verify_tree", {"tree": tree, "target": target, "draft": draft, "method": method} | seeds


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_calls_that_are_compiled_ahead(op_backend, dtype):
    for op, call in compiled_ahead(dtype):
        found, wanted = (backends.run(op, x, **call) for x in (op_backend, "cpu"))
        for x, y in zip(viewed.leaves(found), viewed.leaves(wanted), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6, equal_nan=True, msg=lambda x, op=op: f"{op}: {x}")


@pytest.mark.parametrize("k", [1, 16, 1100])
@pytest.mark.parametrize("form", ["sparse", "mapped"])
@pytest.mark.parametrize("rule", ["exact", "lossy", "token_v1", "opt_log"])
def test_rows_are_those_written_out(backend, form, k, rule):
    generator = torch.Generator().manual_seed(k)
    ids, fields = ids_of(form, k, generator)
    z = torch.randn(B, G, k, generator=generator)
    p = torch.randn(B, G + 1, V, generator=generator) * 2
    flat = {name: x.view(-1, k) if name == "ids" else x for name, x in fields.items()}
    stats = backends.run("row_stats", backend, sk.Rows(z.view(-1, k), temperature=0.7, **flat))
    dense = spread(z, ids, -float("inf"))
    want = backends.run("row_stats", backend, sk.Rows(dense.view(-1, V), temperature=0.7))
    torch.testing.assert_close(stats, want, rtol=1e-5, atol=1e-6)

    listed = sk.Rows(z, stats=stats.view(B, G, 4), **fields)
    written = sk.Rows(dense, stats=stats.view(B, G, 4))
    tokens = torch.where(
        torch.rand(B, G, generator=generator) < 0.8, 7, torch.randint(0, V, (B, G), generator=generator)
    )
    uniforms = torch.rand(B, G + 1, generator=generator, dtype=torch.float64)
    common = {"rule": rule, "alpha": None if rule == "exact" else 0.3, "uniforms": uniforms}
    for method in "token", "block":
        runs = [
            backends.run("verify_chain", backend, sk.Rows(p), tokens, rows, method=method, **common)
            for rows in (listed, written)
        ]
        assert all(torch.equal(x, y) for x, y in zip(*runs, strict=True))
    if not backends.serves(backend, "verify_tree", {"rule": rule}):
        return
    tree = torch.tensor([[-1, 0, 0]] * B), tokens
    for method in "kseq", "recursive", "recursive_without_replacement", "traversal":
        runs = [
            backends.run("verify_tree", backend, tree, sk.Rows(p[:, :G].contiguous()), rows, method=method, **common)
            for rows in (listed, written)
        ]
        assert all(torch.equal(x, y) for x, y in zip(*runs, strict=True))


@pytest.mark.parametrize("form", ["sparse", "mapped"])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_entries_of_one_id_add_up(backend, form, temperature):
    generator = torch.Generator().manual_seed(5)
    ids, fields = ids_of(form, 40, generator, repeats=True)
    z, n = torch.randn(B * G, 40, generator=generator), B * G
    if form == "sparse":
        fields = {"ids": ids.reshape(n, 40)}
    rows = sk.Rows(z, temperature=temperature, **fields)
    p = torch.randn(n, V, generator=generator)
    p[:, :20] += 6
    given = sk.Rows(p, stats=backends.run("row_stats", backend, sk.Rows(p)))
    listed = sk.Rows(z, stats=backends.run("row_stats", backend, rows), **fields)

    weights = torch.where(ids.reshape(n, 40) < 0, -torch.inf, z.double() / temperature).softmax(-1)
    q = torch.zeros(n, V, dtype=torch.float64)
    for row, of_row, w in zip(q, ids.reshape(n, 40), weights, strict=True):
        row.index_add_(0, of_row.clamp(min=0).long(), torch.where(of_row < 0, 0, w))
    gap = backends.run("row_gap", backend, given, listed)
    tv = (p.double().softmax(-1) - q).clamp(min=0).sum(-1)
    entropy = -torch.special.xlogy(q, q).sum(-1)
    torch.testing.assert_close(gap[:, 0].double(), tv, rtol=0, atol=2e-6)
    torch.testing.assert_close(gap[:, 3].double(), entropy, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(gap[:, 5].double(), q.max(-1).values, rtol=2e-6, atol=1e-7)

    uniforms = torch.rand(n, 30, generator=generator, dtype=torch.float64)
    tokens, logprobs, _ = backends.run("sample", backend, rows, 30, uniforms=uniforms)
    torch.testing.assert_close(logprobs.double(), q.gather(1, tokens).log(), rtol=2e-6, atol=2e-6)
    tokens, logprobs, _ = backends.run("sample", backend, rows, 30, replacement=False, uniforms=uniforms)
    drawn = tokens >= 0
    assert torch.equal(drawn.sum(-1), (q > 0).sum(-1).clamp(max=30))
    assert all(len(set(of_row[there].tolist())) == there.sum() for of_row, there in zip(tokens, drawn, strict=True))
