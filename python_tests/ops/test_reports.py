# SPDX-License-Identifier: Apache-2.0
"""Cases from bug reports of inference engines. The wrong behaviour reported there must not occur here.

ELSEWHERE names the cases that other files test.
"""

import ast

import pytest
import torch
from support import backends, flat, tiers
from support.paths import TESTS
from support.surface import same

import specdec_kernels as sk
from specdec_kernels import example_calls, testing

V, B, G = 37, 4, 3
ELSEWHERE = {
    "stale slots and seeds in padding rows": "ops/test_padded.py::test_what_is_absent_does_not_show",
    "a graph replayed on new data": "ops/test_cuda_graph.py::test_replay_follows_its_inputs",
    "a request moved through places in the batch": "ops/test_verify_chain_invariance.py::test_alone_and_in_any_order",
    "batches of other sizes": "ops/test_verify_chain_invariance.py::test_among_many",
    "shards of a batch": "engines/test_vllm_v2.py::test_the_same_tokens_whatever_the_shard",
    "offsets beyond 2^31 elements": "ops/test_verify_chain_surface.py::test_offsets_past_2_31",
    "row numbers beyond 2^31": "ops/test_verify_chain_rows.py::test_numbers_and_offsets_past_2_31",
    "ranks that would be greedy and ranks that would sample": "sharded/test_sharded_failures.py::test_another_call",
    "logprobs of some requests beside drafts of others": "engines/test_vllm_logprobs.py::test_of_every_emitted_token",
}


@pytest.mark.parametrize("case", ELSEWHERE)
def test_is_tested_elsewhere(case):
    file, name = ELSEWHERE[case].split("::")
    defined = [node.name for node in ast.parse((TESTS / file).read_text()).body if isinstance(node, ast.FunctionDef)]
    assert name in defined


def step(seed=0, rows=3.0):
    """Return a step of B requests with G drafts each."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randn(B, G + 1, V, generator=generator) * rows
    draft = target[:, :G] + torch.randn(B, G, V, generator=generator)
    tokens = torch.multinomial(draft.softmax(2).view(-1, V), 1, generator=generator).view(B, G)
    key = {"seed": torch.arange(B) + 100 * seed, "offset": torch.arange(B) * 7}
    return {"target_logits": target, "draft_tokens": tokens, "draft_logits": draft} | key


@pytest.mark.parametrize("id", [-1, -2, -(1 << 31), -(1 << 63)])
def test_placeholders_beside_probability_rows(op_backend, id):
    """A negative id as the first draft, in the middle, last, or for all: the draft ends there, and later tokens and
    rows are ignored."""
    x = step()
    x["target_logits"], x["draft_logits"] = x["target_logits"].softmax(2), x["draft_logits"].softmax(2)
    kinds = {"target_kind": "probs", "draft_kind": "probs"}
    lengths = torch.tensor([0, 1, 2, 3])
    ends = torch.arange(G) >= lengths[:, None]
    dense = backends.run(
        "verify_chain", op_backend, **x | {"draft_tokens": x["draft_tokens"].where(~ends, id)}, **kinds
    )
    x["target_logits"] = x["target_logits"][torch.arange(G + 1) <= lengths[:, None]]
    x |= {name: x[name][~ends] for name in ("draft_tokens", "draft_logits")}
    cu = torch.tensor([0, 0, 1, 3, 6])
    assert same(dense, backends.run("verify_chain", op_backend, **x, **kinds, cu_draft=cu, max_draft=G))


def warmed_up(real, dummy):
    """Run a dummy step in the buffers that the real one then uses, results included."""
    buffers = {name: t.clone() for name, t in dummy.items()}
    out = flat.call(sk.verify_chain, **buffers)
    for name, t in real.items():
        buffers[name].copy_(t)
    return flat.call(sk.verify_chain, **buffers, out=out), flat.call(sk.verify_chain, **real)


def test_a_warm_up_on_dummy_data(op_backend):
    """A dummy step with zeros, ids of 0 and one seed for all leaves no trace in the real step."""
    real = step(1)
    dummy = {name: torch.zeros_like(t) for name, t in real.items()}
    got, want = backends.there(op_backend, warmed_up, real, dummy)
    assert same(got, want)


def test_one_seed_and_offset_for_draft_test_and_residual():
    """Draft, acceptance test and final draw with the same seed and offset use different numbers, so the output follows
    p."""
    N = 40_000
    generator = torch.Generator().manual_seed(3)
    z, y = torch.randn(2, 5, generator=generator)
    key = {"seed": torch.arange(N), "offset": torch.full((N,), 11)}
    drawn = flat.call(sk.sample, y.expand(N, 5), **key)
    out = flat.call(
        sk.verify_chain,
        z.expand(N, 2, 5),
        drawn.tokens,
        sk.Rows(y.expand(N, 1, 5), stats=drawn.rows.stats[:, None]),
        **key,
    )
    seen = out.tokens[:, 0].bincount(minlength=5).tolist()
    result = testing.check_counts(seen, z.double().softmax(0).tolist())
    assert result.passed and result.detects < 0.05, result
    kept = out.num_accepted.float().mean().item()
    assert abs(kept - torch.minimum(z.softmax(0), y.softmax(0)).sum().item()) < 4 * (0.25 / N) ** 0.5


def test_greedy_and_nearly_greedy_beside_sampled(op_backend):
    x = step(2, rows=1.0)
    mixed = backends.run("verify_chain", op_backend, **x, temperature=torch.tensor([0.0, 1e-8, 1.0, 0.0]))
    alone = backends.run("verify_chain", op_backend, **x, temperature=1.0)
    assert same([t[2] for t in mixed], [t[2] for t in alone])
    best = x["target_logits"].argmax(2)
    for b in (0, 1, 3):
        n = int(mixed.num_accepted[b])
        assert torch.equal(mixed.tokens[b, : n + 1], best[b, : n + 1])
        assert torch.equal(x["draft_tokens"][b, :n], best[b, :n])


def forbidden(seed=0):
    """Return drafts with p = 0. The tests run with a uniform of 0."""
    x = step(seed)
    x["target_logits"][:, :G].scatter_(2, x["draft_tokens"][:, :, None], -torch.inf)
    del x["seed"], x["offset"]
    return x


@pytest.mark.parametrize("rule", [{}, {"method": "block"}, {"rule": "thresholds", "alpha": (1e-30, 1e-30)}], ids=str)
def test_a_coin_of_zero_accepts_nothing_forbidden(op_backend, rule):
    x = forbidden()
    out = backends.run("verify_chain", op_backend, **x, **rule, uniforms=torch.zeros(B, G + 1, dtype=torch.float64))
    assert not out.num_accepted.any() and not out.status.any() and out.logprobs.isfinite().all()


@pytest.mark.parametrize("method", ["kseq", "recursive", "recursive_without_replacement", "target_only", "traversal"])
def test_a_coin_of_zero_in_a_tree(op_backend, method):
    x = forbidden(1)
    parents = torch.tensor([[-1, 0, 0, 0]]).expand(B, 4).contiguous()
    target, draft = x["target_logits"][:, :1].expand(B, 4, V), x["draft_logits"][:, :1].expand(B, 4, V)
    banned = target[:, 0].isinf().to(torch.int32).argmax(1)
    tokens = torch.stack([torch.zeros_like(banned), banned, banned, banned], 1)
    u = torch.zeros(B, 5, dtype=torch.float64)
    given = {"method": method, "uniforms": u, "max_depth": 1}
    out = backends.run("verify_tree", op_backend, (parents, tokens), target.contiguous(), draft.contiguous(), **given)
    assert not out.num_accepted.any() and (out.tokens[:, 0] != banned).all()


@pytest.mark.parametrize("siblings", [33, 64])
@pytest.mark.parametrize("method", ["kseq", "recursive", "recursive_without_replacement", "target_only", "traversal"])
@pytest.mark.slow_in_triton
def test_many_siblings(op_backend, method, siblings):
    """More siblings than a warp has lanes, many with the same token: tokens equal the reference's, and the last child
    can be accepted."""
    if op_backend == "cuda-on-cpu" and tiers.TIER != "all" and siblings == 64:
        pytest.skip("the simulated device is slow: one number of them")
    generator = torch.Generator().manual_seed(siblings)
    N = siblings + 1
    row, law = torch.randn(2, 1, V, generator=generator)
    parents = torch.tensor([[-1] + [0] * siblings]).expand(6, N).contiguous()
    drawn = torch.multinomial(law.softmax(1).expand(6, V), siblings, replacement=True, generator=generator)
    tokens = torch.cat([torch.zeros(6, 1, dtype=torch.int64), drawn], 1)
    u = torch.rand(6, N + 1, dtype=torch.float64, generator=generator)
    u[0, 1:-1], u[0, -1] = 1 - 2.0**-53, 0.5  # every test that can fail does
    rows = {"target_logits": row.expand(6, N, V).contiguous(), "draft_logits": law.expand(6, N, V).contiguous()}
    given = {"method": method, "uniforms": u, "max_depth": 1}
    got = backends.run("verify_tree", op_backend, (parents, tokens), **rows, **given)
    want = backends.run("verify_tree", "reference", (parents, tokens), **rows, **given)
    assert torch.equal(got.tokens, want.tokens) and torch.equal(got.num_accepted, want.num_accepted)
    assert not got.status.any()


def test_p_and_q_that_all_but_agree(op_backend):
    """The residual of p = q (1 +- 1e-6) has a relative error of at most 1e-6. With p = q it is empty."""
    generator = torch.Generator().manual_seed(8)
    q = torch.rand(5, 200, generator=generator).softmax(1)
    p = q * (1 + 1e-6 * torch.randint(-1, 2, q.shape, generator=generator))
    left = (p.double() - q.double()).clamp(min=0)  # exact: the difference of two near float32 values needs no rounding
    out, mass = backends.run("residual", op_backend, p, q)
    torch.testing.assert_close(mass.double(), left.sum(1), rtol=1e-6, atol=0)
    torch.testing.assert_close(out.double(), left / left.sum(1, keepdim=True), rtol=1e-6, atol=0)
    out, mass = backends.run("residual", op_backend, q, q)
    assert not mass.any()
    x = step(4)
    x["draft_logits"] = x["target_logits"][:, :G].clone()
    kept = backends.run("verify_chain", op_backend, **x)
    assert (kept.num_accepted == G).all() and not kept.status.any()


def test_a_row_of_nan_beside_good_ones(op_backend):
    x = step(5)
    want = backends.run("verify_chain", op_backend, **x)
    x["target_logits"][1, 0] = torch.nan
    got = backends.run("verify_chain", op_backend, **x)
    others = torch.tensor([0, 2, 3])
    assert same([t[others] for t in got], [t[others] for t in want])
    assert got.status[1] == sk.STATUS_INVALID_ROW and 0 <= got.tokens[1, 0] < V and got.num_accepted[1] == 0


def test_a_window_whose_end_is_masked(op_backend):
    """Drafts of -1, and rows of NaN, after each request's window: results are as if the window ended there."""
    x = step(6)
    lengths = torch.tensor([3, 1, 2, 0])
    masked = torch.arange(G) >= lengths[:, None]
    windowed = x | {"draft_tokens": x["draft_tokens"].where(~masked, -1)}
    want = backends.run("verify_chain", op_backend, **windowed)
    x["draft_tokens"] = windowed["draft_tokens"]
    x["draft_logits"] = x["draft_logits"].where(~masked[:, :, None], torch.nan)
    behind = torch.cat([torch.zeros(B, 1, dtype=torch.bool), masked], 1)[:, :, None]
    x["target_logits"] = x["target_logits"].where(~behind, torch.nan)
    assert same(backends.run("verify_chain", op_backend, **x), want)
    assert (want.num_accepted <= lengths).all()


def test_rows_that_are_minus_infinity_but_for_a_few(op_backend):
    """Draft rows of 16 possible ids. A token with p = q = 0 is neither accepted nor emitted, and sets a status bit."""
    x = step(7)
    x["draft_logits"][:, :, 16:] = -torch.inf
    x["draft_tokens"] %= 16
    x["target_logits"][:, :, 8:16] = -torch.inf
    x["draft_tokens"][0, 0] = 20
    x["target_logits"][0, 0, 20] = -torch.inf
    out = backends.run("verify_chain", op_backend, **x)
    assert out.status[0] == sk.STATUS_INVALID_DRAFT and out.num_accepted[0] == 0
    assert not out.status[1:].any()
    emitted = out.tokens[out.tokens >= 0]
    assert not ((emitted >= 8) & (emitted < 16)).any() and out.logprobs.isfinite().all()
    assert out.tokens[0, 0] != 20


def test_a_draft_law_beside_the_targets_support(op_backend):
    """The target rules out all the draft's ids. Nothing is subtracted, so the final draw is from p, as after a one-hot
    draft of the same ids."""
    x = step(9)
    x["target_logits"][:, :, 20:] = -torch.inf
    x["draft_logits"][:, :, :20] = -torch.inf
    x["draft_tokens"] = 20 + x["draft_tokens"] % (V - 20)
    out = backends.run("verify_chain", op_backend, **x)
    assert not out.num_accepted.any() and not out.status.any()
    assert same(out, backends.run("verify_chain", op_backend, **x | {"draft_logits": None}))


def test_a_draft_law_of_one_id(op_backend):
    """A row of logits with one finite entry is a one-hot draft."""
    x = step(10)
    only = torch.arange(V) == x["draft_tokens"][:, :, None]
    x["draft_logits"] = x["draft_logits"].masked_fill(~only, -torch.inf)
    out = backends.run("verify_chain", op_backend, **x)
    assert not out.status.any() and 0 < out.num_accepted.sum() < B * G
    assert same(out, backends.run("verify_chain", op_backend, **x | {"draft_logits": None}))


def test_one_coin_a_position():
    """ "synthetic" uses a separate random number for each position, so accepted lengths are geometric."""
    N, rate = 20_000, 0.7
    x = {name: t[:1].expand(N, *t.shape[1:]) for name, t in step(8).items()}
    x |= {"seed": torch.arange(N), "offset": torch.zeros(N, dtype=torch.int64)}
    kept = flat.call(sk.verify_chain, **x, rule="synthetic", alpha=rate).num_accepted
    wanted = [*((1 - rate) * rate**i for i in range(G)), rate**G]
    assert testing.check_counts(kept.bincount(minlength=G + 1).tolist(), wanted).passed


def test_the_examples_know_placeholders():
    """The example calls that other tests use include short drafts."""
    given = [call.arguments["draft_tokens"] for call in example_calls.calls("verify_chain", V=V)]
    assert any((tokens < 0).any() for tokens in given)
