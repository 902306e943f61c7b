# SPDX-License-Identifier: Apache-2.0
"""Rows in every op: an op refuses the fields that it does not take, and each field means the same in every op that
takes it."""

import inspect

import pytest
import torch
from torch.utils import _pytree

import specdec_kernels
from specdec_kernels import Rows, example_calls, registry, row_stats, sample, stack_rows, verify_chain

Z = torch.tensor([[5.0, 3.0, 2.0], [1.0, 4.0, 5.0]]).log()
GIVEN = {
    "temperature": 0.5,
    "top_k": 2,
    "top_p": 0.9,
    "min_p": 0.1,
    "top_n_sigma": 1.0,
    "stats": torch.zeros(3, 4),
    "kind": "probs",
    "row": torch.zeros(3, dtype=torch.int64),
    "ids": torch.zeros(3, 77, dtype=torch.int64),
    "vocab_map": specdec_kernels.vocab_map(torch.arange(77), 77),
}
SIDES = [
    (op, side)
    for op in registry.FUNCTIONS
    for side, x in inspect.signature(getattr(specdec_kernels, op)).parameters.items()
    if "Rows" in str(x.annotation) and op != "stack_rows"
]


def plain(op, side):
    """Return the op's first example call with only the logits of this side."""
    arguments = example_calls.calls(op)[0].arguments
    rows = arguments[side]
    return arguments | {side: Rows(rows.logits if isinstance(rows, Rows) else rows)}


def taken(op, side):
    """Return the names of this side's fields that the op's example calls give."""
    return {name for call in example_calls.calls(op) for name in example_calls.flat(call.arguments)} & {
        f"{side}.{field}" for field in Rows._fields
    }


def check_equal(found, wanted):
    """Check that results are equal, bit for bit."""
    for x, y in zip(_pytree.tree_leaves(found), _pytree.tree_leaves(wanted), strict=True):
        if isinstance(x, torch.Tensor):
            torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)
        else:
            assert x == y


REFUSED = [(op, side, field) for op, side in SIDES for field in GIVEN if f"{side}.{field}" not in taken(op, side)]


def test_the_sides_are_found():
    assert {op for op, _ in SIDES} >= {"verify_chain", "verify_tree", "sample", "row_stats", "row_gap", "support"}
    assert ("sample", "rows", "row") in REFUSED
    assert ("row_stats", "rows", "stats") in REFUSED
    assert ("row_gap", "q", "row") in REFUSED
    assert {each[1:] for each in REFUSED if each[0].startswith("verify_")} == {
        ("target", "ids"),
        ("target", "vocab_map"),
    }


@pytest.mark.parametrize("op, side, field", REFUSED)
def test_a_field_that_an_op_does_not_take_is_refused(op, side, field):
    arguments = plain(op, side)
    arguments[side] = arguments[side]._replace(**{field: GIVEN[field]})
    with pytest.raises(ValueError, match=rf"^{op}: {side}\.{field} must be "):
        getattr(specdec_kernels, op)(**arguments)


@pytest.mark.parametrize("op, side", SIDES)
@pytest.mark.parametrize("wrong", [[[0.0, 1.0]], (0.0,), "rows", 3])
def test_a_side_is_a_tensor_or_rows(op, side, wrong):
    name = rf"^{op}: {side} must be .*torch.Tensor or Rows.*, got {type(wrong).__name__}$"
    with pytest.raises(TypeError, match=name):
        getattr(specdec_kernels, op)(**plain(op, side) | {side: wrong})


@pytest.mark.parametrize("op, side", [each for each in SIDES if f"{each[1]}.stats" in taken(*each)])
def test_stats_take_the_place_of_the_parameters(op, side):
    arguments = plain(op, side)
    both = arguments[side]._replace(temperature=0.5, top_p=0.9, stats=GIVEN["stats"])
    with pytest.raises(
        ValueError, match=rf"^{op}: {side}.stats already hold the sampling parameters, got temperature, top_p too$"
    ):
        getattr(specdec_kernels, op)(**arguments | {side: both})


@pytest.mark.parametrize("op, side", [each for each in SIDES if f"{each[1]}.kind" in taken(*each)])
@pytest.mark.parametrize("field", ["stats", *registry.SAMPLING])
def test_probabilities_take_nothing_of_logits(op, side, field):
    arguments = plain(op, side)
    logits = arguments[side].logits
    given = logits.new_zeros((*logits.shape[:-1], 4), dtype=torch.float32) if field == "stats" else GIVEN[field]
    wrong = arguments[side]._replace(kind="probs", **{field: given})
    with pytest.raises(
        ValueError, match=rf"^{op}: {side}\.stats and sampling parameters need {side}\.kind='logits', got 'probs'$"
    ):
        getattr(specdec_kernels, op)(**arguments | {side: wrong})


ROW_BY_ROW = [(op, side) for op, side in SIDES if {f"{side}.stats", f"{side}.temperature"} <= taken(op, side)]
ROW_BY_ROW = [each for each in ROW_BY_ROW if not each[0].startswith("verify_")]


@pytest.mark.parametrize("op, side", ROW_BY_ROW)
def test_parameters_mean_what_their_stats_mean(op, side):
    arguments = plain(op, side)
    rows = arguments[side]._replace(temperature=0.7, top_k=9, top_p=0.9, min_p=0.01, top_n_sigma=2.0)
    parameters = getattr(specdec_kernels, op)(**arguments | {side: rows})
    stats = getattr(specdec_kernels, op)(**arguments | {side: Rows(rows.logits, stats=row_stats(rows))})
    check_equal(parameters, stats)


def test_rows_are_a_pytree():
    rows = Rows(Z, temperature=0.5, top_k=2)
    leaves, spec = _pytree.tree_flatten(rows)
    again = _pytree.tree_unflatten(leaves, spec)
    assert isinstance(again, Rows)
    assert again.logits is rows.logits
    assert again[1:] == rows[1:]


def test_rows_pass_through_torch_compile():
    """A compiled function can take Rows, create them inside, and return them."""

    def step(rows, seed):
        drawn = sample(rows._replace(top_k=2), seed=seed, offset=seed)
        draft = stack_rows([drawn.rows])
        return verify_chain(
            Rows(Z.view(1, 2, 3)),
            drawn.tokens[:1],
            draft._replace(logits=draft.logits[:1], stats=draft.stats[:1]),
            seed=seed[:1],
            offset=seed[:1],
        ), drawn.rows

    seed = torch.tensor([7, 8])
    rows = Rows(Z, temperature=torch.tensor([0.5, 1.0]))
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    (found, made), (wanted, as_made) = compiled(rows, seed), step(rows, seed)
    assert isinstance(made, Rows)
    check_equal((found, made), (wanted, as_made))


def test_stacked_rows_are_each_steps_rows():
    steps = [
        sample(Rows(Z, temperature=t), seed=torch.tensor([1, 2]), offset=torch.tensor([0, 0]), slot=i).rows
        for i, t in enumerate((0.5, 1.0, 0.0))
    ]
    stacked = stack_rows(steps)
    assert stacked.logits.shape == (2, 3, 3)
    for i, each in enumerate(steps):
        assert torch.equal(stacked.logits[:, i], each.logits)
        assert torch.equal(stacked.stats[:, i], each.stats)


def test_stacked_rows_keep_their_kind():
    stacked = stack_rows([Rows(Z.softmax(-1).half(), kind="probs")])
    assert stacked.kind == "probs"
    assert stacked.logits.dtype == torch.float16
    assert stacked.logits.shape == (2, 1, 3)
    assert stack_rows((Z, Rows(Z)))[1:] == Rows(Z)[1:]


STATS = torch.zeros(2, 4)


@pytest.mark.parametrize(
    "rows, error, message",
    [
        ([], TypeError, r"rows must be a list of at least one Rows, got list"),
        (Rows(Z), TypeError, "rows must be a list of at least one Rows, got "),
        ([Rows(Z), 3], TypeError, r"rows\[1\] must be a torch.Tensor or Rows, got int"),
        (
            [Rows(Z), Rows(Z[:1])],
            ValueError,
            r"rows\[1\] must have shape \[2, 3\], dtype torch.float32 and kind 'logits', as rows\[0\], "
            r"got \[1, 3\], torch.float32 and 'logits'",
        ),
        ([Rows(Z), Rows(Z.half())], ValueError, r"rows\[1\] must have .*, got \[2, 3\], torch.float16 and 'logits'"),
        ([Rows(Z), Rows(Z, kind="probs")], ValueError, r"rows\[1\] must have .*, got \[2, 3\], .* and 'probs'"),
        ([Rows(Z, row=torch.zeros(2, dtype=torch.int64))], ValueError, r"rows\[0\].row must be None, got a tensor"),
        ([Rows(Z, stats=STATS), Rows(Z)], ValueError, r"rows must all have stats, .*, got no stats in rows\[1\]"),
        ([Rows(Z, temperature=0.5)], ValueError, r"rows must all have stats, .*, got temperature in rows\[0\]"),
        ([Rows(Z.double())], ValueError, r"rows\[0\].logits must "),
        ([Rows("x")], TypeError, r"rows\[0\].logits must be a torch.Tensor, got str$"),
        ([Z, Z.to("meta")], ValueError, r"rows\[1\].logits must be on cpu, got meta$"),
        ([Z[0], Z[0]], ValueError, r"rows\[0\].logits must have shape \[B, V\], got \[3\]$"),
        ([Rows(Z, kind="p")], ValueError, r"rows\[0\].kind must be 'logits' or 'probs', got 'p'$"),
        (
            [Rows(Z, temperature=0.5, stats=STATS)],
            ValueError,
            r"rows\[0\].stats already hold the sampling parameters, got temperature too$",
        ),
        ([Rows(Z), Rows(Z, stats=STATS)], ValueError, r"rows must all have stats, .*, got stats in rows\[1\]$"),
        (
            [Rows(Z, stats=STATS), Rows(Z, stats=STATS[:1])],
            ValueError,
            r"rows\[1\].stats must have shape \[N=2, 4\], got \[1, 4\]$",
        ),
        ([Rows(Z, stats=STATS.double())], ValueError, r"rows\[0\].stats must be float32, got float64$"),
    ],
)
def test_what_cannot_be_stacked_is_refused(rows, error, message):
    with pytest.raises(error, match=f"^stack_rows: {message}"):
        stack_rows(rows)
