# SPDX-License-Identifier: Apache-2.0
"""Sparse draft rows (with ids) and mapped ones (with a vocab_map) in every op that takes them: random calls against the
reference, dense rows bit for bit, joint distributions, and errors."""

from functools import partial

import numpy as np
import pytest
import torch
from support import backends, sparse_checks
from support.viewed import differ
from torch.utils import _pytree

import specdec_kernels as sk
from specdec_kernels import example_calls, testing
from specdec_kernels.reference.entries import listed
from specdec_kernels.reference.race import keys_of, ranked
from specdec_kernels.rows import Rows

Z = torch.tensor([[2.0, 1.0, 0.5, -0.5, 0.0]])
IDS, SCORES = torch.tensor([[3, 1, 3]]), torch.tensor([[0.0, 0.5, 1.0]])
MAP = sk.vocab_map(torch.tensor([4, -1, 0, 2, 2]), 5)


@pytest.mark.parametrize("op", ["verify_chain", "verify_tree"])
def test_verification_agrees_with_the_reference(op, isa_backend):
    sparse_checks.verification_agrees(op, isa_backend, backends.scale(400, isa_backend, least=50))


def test_rows_agree_with_the_reference(isa_backend):
    sparse_checks.rows_agree(isa_backend, backends.scale(400, isa_backend))


def test_pairs_agree_with_the_reference(isa_backend):
    sparse_checks.pairs_agree(isa_backend, backends.scale(300, isa_backend))


@pytest.mark.parametrize("mapped", [False, True], ids=["sparse", "mapped"])
@pytest.mark.parametrize("method", ["token", "block"])
def test_given_the_same_stats_a_dense_row_gives_the_same_bits(method, mapped, isa_backend):
    sparse_checks.same_as_dense(isa_backend, method, mapped)


def raced(probs, ids, seed, k):
    """Run Triton's race on sparse rows of probabilities. No op does: targets have no ids, and sample reads logits."""
    from specdec_kernels.triton.core import arguments, launch
    from specdec_kernels.triton.core.race import run_race

    N = len(probs)
    layout = launch.Layout.flat(N, None)
    side = launch.rows(arguments.by_id(arguments.row_memory(probs), ids, True, layout), True, layout=layout)
    tokens, logprobs = torch.zeros(N, 1, k, dtype=torch.int64), torch.zeros(N, 1, k)
    run_race(side, layout, arguments.noise(seed, None), tokens, logprobs, k)
    return tokens[:, 0]


@pytest.mark.skipif("triton-interpret" not in backends.NAMES, reason="triton-interpret was not asked for")
def test_a_race_of_sparse_probabilities():
    """Every form of add_up() serves probabilities, also those that no op asks for."""
    rng = torch.Generator().manual_seed(8)
    N, E, wide, k = 40, 9, 12, 3
    probs, ids = torch.rand(N, E, generator=rng), torch.randint(-1, wide, (N, E), generator=rng, dtype=torch.int32)
    probs[::4, 2] = 0
    dense = torch.zeros(N, wide + 1).scatter_add_(1, ids.long() % (wide + 1), probs)[:, :wide]  # -1: the last column
    assert (dense.bool().sum(1) >= k).all() and (dense == 0).any()
    seed = torch.arange(N)
    want = [ranked(keys_of(p, None, i, 0))[:k].tolist() for i, p in enumerate(dense.double().numpy())]
    assert backends.there("triton-interpret", raced, probs, ids, seed, k).tolist() == want


# ---- joint distributions --------------------------------------------------------------------------------------------

V, G = 5, 2
LISTS = {  # ids and vocab_map of a row: with repeats, a pad, an unmapped id, an id beyond V
    "sparse": (torch.tensor([3, 1, 3, -1, 0, 7]), None),
    "mapped": (None, sk.vocab_map(torch.tensor([4, -1, 0, 2, 2, 3]), V)),
    "both": (torch.tensor([4, 0, 3, 1, 2, 9]), sk.vocab_map(torch.tensor([4, -1, 0, 2, 2]), V)),
}


def law_of(form, row, temperature=1.0):
    ids, made = LISTS[form]
    rows = listed(Rows(torch.tensor(np.asarray(row))[None], ids=None if ids is None else ids[None], vocab_map=made))
    w = testing.softmax(rows.logits[0].double().numpy(), temperature=temperature)
    return np.bincount(rows.ids[0].clamp(min=0), w, 8)


def rows_of(form, logits, **fields):
    ids, made = LISTS[form]
    return Rows(logits, ids=None if ids is None else ids.expand(logits.shape), vocab_map=made, **fields)


def sampled(form, logits, seed, i):
    out = sk.sample(rows_of(form, logits, temperature=0.8), seed=seed, offset=seed * 0, slot=i)
    return out.tokens[:, 0]


def verified(form, method, step, mutant=None):
    draft = rows_of(form, step.draft_logits, temperature=0.8)
    if mutant == "a hole keeps its mass":  # a wrong map, in which no id is unmapped
        draft = draft._replace(vocab_map=sk.vocab_map(torch.tensor([4, 1, 0, 2, 2, 3]), V))
    if mutant == "an entry's own q":  # a wrong map: one of two draft ids with the target id 2 is unmapped
        draft = draft._replace(vocab_map=sk.vocab_map(torch.tensor([4, -1, 0, 2, -1, 3]), V))
    random = {"seed": step.seed, "offset": step.seed * 0}
    return sk.verify_chain(step.target_logits, step.draft_tokens, draft, method=method, **random).tokens


def case(form, spread):
    rng = np.random.default_rng(3)
    rows = {}

    def model(width, side):
        def row(tokens):
            return rows.setdefault((side, tokens), rng.normal(0, spread, width).astype(np.float32))

        return row

    draft_transform = lambda row, tokens: law_of(form, row, 0.8)
    return testing.Case(form, "", model(V, 0), model(6, 1), G, draft_transform=draft_transform)


@pytest.mark.parametrize("spread", [1.5, 60.0])
@pytest.mark.parametrize("method", ["token", "block"])
@pytest.mark.parametrize("form", LISTS)
def test_a_step_has_the_law_of_dense_rows(form, method, spread):
    """Drafts are drawn by `sample`, then verified. The emitted tokens are distributed as with dense rows, and so are
    the accepted lengths."""
    of = case(form, spread)
    testing.assert_verifier(
        partial(verified, form, method), of, 40_000, expected=method, draft=partial(sampled, form), batch=20_000
    )


@pytest.mark.parametrize("mutant", ["a hole keeps its mass", "an entry's own q"])
def test_wrong_maps_are_found(mutant):
    of = case("mapped", 1.5)
    report = testing.check_verifier(partial(verified, "mapped", "token", mutant=mutant), of, 40_000, expected="token")
    assert not report.passed


# ---- the Python around the ops --------------------------------------------------------------------------------------


def sparse(**fields):
    return Rows(SCORES, ids=IDS, **fields)


def test_goldens(op_backend):
    for rows, want in (
        (sparse(), (0, 0.307195885718, 0, 0.692804114282, 0)),
        (Rows(Z, vocab_map=MAP), (0.154892292308, 0, 0.150928614174, 0, 0.694179093517)),
        (Rows(Z, vocab_map=MAP, top_k=2), (0.182425523806, 0, 0, 0, 0.817574476194)),
    ):
        out = backends.run("sample", op_backend, rows, uniforms=torch.linspace(0.01, 0.99, 40).double()[None], k=40)
        q = torch.zeros(5).scatter(0, out.tokens[0], out.logprobs[0].exp())
        assert (q - torch.tensor(want)).abs().max() < 2e-6
        gap = backends.run("row_gap", op_backend, Z, rows)
        tv = sum(max(a - b, 0) for a, b in zip(torch.softmax(Z[0].double(), 0).tolist(), want))
        assert abs(gap[0, 0] - tv) < 2e-6 and abs(gap[0, 5] - max(want)) < 2e-6


@pytest.mark.parametrize("rows", [sparse(), Rows(Z, vocab_map=MAP), sparse(vocab_map=MAP)], ids=["ids", "map", "both"])
def test_what_sample_returns_goes_to_verification(rows):
    out = sk.sample(rows._replace(temperature=0.7), uniforms=torch.tensor([[0.6]], dtype=torch.float64))
    assert out.rows.ids is rows.ids and out.rows.vocab_map is rows.vocab_map and out.rows.temperature is None
    draft = out.rows._replace(
        logits=rows.logits[None], stats=out.rows.stats[None], ids=rows.ids if rows.ids is None else rows.ids[None]
    )
    uniforms = torch.zeros(1, 2, dtype=torch.float64)
    found = sk.verify_chain(Z.expand(1, 2, 5), out.tokens, draft, uniforms=uniforms)
    assert (found.num_accepted, found.status) == (1, 0)


def test_with_both_the_ids_are_draft_ids():
    ids = torch.tensor([[0, 1, 4, 5, -1]])
    composed = Rows(Z, ids=torch.tensor([[4, -1, 2, -1, -1]]))
    for given in (ids, ids.int()):
        both = Rows(Z, ids=given, vocab_map=MAP)
        assert torch.equal(sk.row_stats(both), sk.row_stats(composed))
        assert torch.equal(sk.row_gap(Z, both), sk.row_gap(Z, composed))


def calls():
    """Yield (op, side, other arguments) for every op that takes sparse rows."""
    random = {"seed": torch.tensor([1]), "offset": torch.tensor([0])}
    tree = torch.tensor([[-1, 0]]), torch.tensor([[-1, 3]])
    target = Z.expand(1, 2, 5)
    yield "row_stats", "rows", {}
    yield "sample", "rows", random
    yield "row_gap", "q", {"p": Z}
    yield "kseq_rho", "q", {"p": Z, "k": 2}
    yield "verify_chain", "draft", {"target": target, "draft_tokens": torch.tensor([[3]]), **random}
    yield "verify_tree", "draft", {"tree": tree, "target": target, "method": "recursive", **random}


def with_rows(op, side, call, rows):
    """Return the call with these rows [1, k], repeated for every position in verification."""
    n = {"verify_chain": 1, "verify_tree": 2}.get(op)
    if n is not None:
        wide = {name: x[None].expand(1, n, *x.shape[1:]) for name, x in (("logits", rows.logits), ("ids", rows.ids))
                if isinstance(x, torch.Tensor) and x.dim() == 2}  # fmt: skip
        rows = rows._replace(**wide)
    return call | {side: rows}


WRONG = [
    (Rows(SCORES, ids=[3, 1, 3]), TypeError, "ids must be a torch.Tensor, got list"),
    (Rows(SCORES, ids=IDS.float()), ValueError, "ids must be int32 or int64, got float32"),
    (Rows(SCORES, ids=MAP.packed.view(torch.uint32)), ValueError, "ids must be int32 or int64, got uint32"),
    (Rows(SCORES, ids=IDS[:, :2]), ValueError, r"ids must have shape \[.*3\], got \[.*2\]"),
    (Rows(SCORES, ids=IDS[0]), ValueError, r"ids must have shape \[.*3\], got \[3\]"),
    (Rows(SCORES, ids=IDS + (1 << 24)), ValueError, r"ids must be < 2\^24, got 16777219"),
    (Rows(SCORES, ids=IDS.to("meta")), ValueError, "ids must be on cpu, got meta"),
    (
        Rows(SCORES, vocab_map=MAP.table),
        TypeError,
        "vocab_map must be a VocabMap, which sk.vocab_map makes, got Tensor",
    ),
    (Rows(SCORES, ids=IDS, vocab_map={3: 1}), TypeError, "vocab_map must be a VocabMap, .* got dict"),
    (Rows(SCORES, vocab_map=MAP), ValueError, "vocab_map must be of Vq=3 ids, as .*logits, got a map of 5"),
    (
        Rows(SCORES, ids=IDS, vocab_map=MAP._replace(packed=MAP.packed.to("meta"))),
        ValueError,
        "vocab_map must be on cpu, got meta",
    ),
    (
        Rows(Z, vocab_map=MAP._replace(packed=MAP.packed + 1)),
        ValueError,
        "vocab_map must be made by vocab_map, got other numbers",
    ),
]


@pytest.mark.parametrize("op, side, call", [*calls()], ids=[op for op, *_ in calls()])
@pytest.mark.parametrize("rows, error, says", WRONG)
def test_what_is_wrong_is_named(op, side, call, rows, error, says):
    with pytest.raises(error, match=rf"^{op}: {side}\.{says}$"):
        getattr(sk, op)(**with_rows(op, side, call, rows))


REFUSING = [(op, side) for op in sk.registry.OPS for side in sk.arguments.sides(op)]
REFUSING = [(op, side) for op, side in REFUSING if (op, side) not in {(op, side) for op, side, _ in calls()}]


@pytest.mark.parametrize("op, side", REFUSING)
@pytest.mark.parametrize("field, value, got", [("ids", IDS, "a tensor"), ("vocab_map", MAP, "VocabMap")])
def test_other_sides_refuse_them(op, side, field, value, got):
    arguments = example_calls.calls(op)[0].arguments
    rows = arguments[side] if isinstance(arguments[side], Rows) else Rows(arguments[side])
    with pytest.raises(ValueError, match=rf"^{op}: {side}\.{field} must be None, got {got}$"):
        getattr(sk, op)(**arguments | {side: rows._replace(**{field: value})})


@pytest.mark.parametrize("vocab_map", [None, MAP])
@pytest.mark.parametrize("sparse", [False, True])
def test_stacked_steps_are_the_rows_of_a_chain(sparse, vocab_map):
    """A drafter samples from one row per step, and verification takes the stacked rows."""
    ids = [torch.tensor([[4, 0, 2, -1, 3]]), torch.tensor([[1, 3, 0, 4, 2]])] if sparse else [None, None]
    seeds = {"seed": torch.zeros(1, dtype=torch.int64), "offset": torch.zeros(1, dtype=torch.int64)}
    drawn = [
        sk.sample(Rows(Z + i, temperature=0.8, ids=ids[i], vocab_map=vocab_map), slot=i, **seeds) for i in range(2)
    ]
    stacked = sk.stack_rows([x.rows for x in drawn])
    assert stacked.vocab_map is vocab_map and torch.equal(stacked.logits, torch.stack([Z, Z + 1], 1))
    assert stacked.ids is None if not sparse else torch.equal(stacked.ids, torch.stack(ids, 1))
    stats = torch.stack([x.rows.stats for x in drawn], 1)
    written = Rows(stacked.logits, stats=stats, ids=stacked.ids, vocab_map=vocab_map)
    drafts, target = torch.cat([x.tokens for x in drawn], 1), Rows(torch.zeros(1, 3, 5))
    out = sk.verify_chain(target, drafts, stacked, **seeds)
    assert not differ(out, sk.verify_chain(target, drafts, written, **seeds)) and out.status.item() == 0


def test_steps_of_different_ids_are_not_stacked():
    other = MAP._replace(packed=MAP.packed.clone())
    with pytest.raises(
        ValueError, match=r"^stack_rows: rows must all have ids, or none of them, got ids in rows\[1\]$"
    ):
        sk.stack_rows([Rows(SCORES), sparse()])
    for second in (Rows(Z), Rows(Z, vocab_map=other)):
        with pytest.raises(
            ValueError, match=r"^stack_rows: rows\[1\]\.vocab_map must be that of rows\[0\], got another$"
        ):
            sk.stack_rows([Rows(Z, vocab_map=MAP), second])
    with pytest.raises(ValueError, match=r"^stack_rows: rows\[1\]\.ids must have shape \[N=1, E=3\], got \[1, 2\]$"):
        sk.stack_rows([sparse(), Rows(SCORES, ids=IDS[:, :2])])
    with pytest.raises(ValueError, match=r"^stack_rows: rows\[0\]\.ids must be int32 or int64, got float32$"):
        sk.stack_rows([Rows(SCORES, ids=IDS.float())])


@pytest.mark.parametrize("field, value, got", [("ids", IDS, "a tensor"), ("vocab_map", MAP, "VocabMap")])
def test_what_takes_rows_besides_refuses_them(field, value, got):
    given = Rows(Z, **{field: value})
    with pytest.raises(ValueError, match=rf"^acceptance_rate_from_logits: draft\.{field} must be None, got {got}$"):
        sk.theory.acceptance_rate_from_logits(Z, given)


@pytest.mark.parametrize("op, side, call", [*calls()], ids=[op for op, *_ in calls()])
@pytest.mark.parametrize("rows", [sparse(), Rows(Z, vocab_map=MAP), sparse(vocab_map=MAP)], ids=["ids", "map", "both"])
def test_fakes_and_graphs(op, side, call, rows):
    call = with_rows(op, side, call, rows)
    given = example_calls.op_arguments(op, getattr(sk, op), **call)
    overload = "default" if op in ("row_gap", "kseq_rho") else "views"
    torch.library.opcheck(getattr(getattr(torch.ops.specdec, op), overload), given)
    compiled = torch.compile(getattr(sk, op), fullgraph=True, backend="aot_eager")
    tensors = [[x for x in _pytree.tree_leaves(f(**call)) if torch.is_tensor(x)] for f in (compiled, getattr(sk, op))]
    assert not differ(*tensors)
