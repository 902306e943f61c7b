# SPDX-License-Identifier: Apache-2.0
"""Penalties: results computed by hand, and errors. Random calls: test_views.py."""

import math

import pytest
import torch
from support import backends, tiers, viewed
from support.viewed import FLAT, OPS, bare, differ, of_three

import specdec_kernels as sk
from specdec_kernels.reference.views import unseen
from specdec_kernels.rows import Rows


def lists(*ids, counts=None):
    ids = torch.tensor(ids, dtype=torch.int32)
    return {"ids": ids, "counts": torch.zeros_like(ids) if counts is None else torch.tensor(counts, dtype=torch.int32)}


def table(*counts, bits):
    counts = torch.tensor(counts, dtype=torch.int32)
    return {"counts": counts, "prompt_bits": torch.tensor(bits, dtype=torch.int32).reshape(len(counts), -1)}


LIST = dict(zip(("ids", "counts"), sk.history([[3]], [[0, 0, 2]], size=4)))
TABLES = table([2, 0, 1, 0, 0], bits=[8]), table([2, 0, 1, 0], bits=[-24])  # bits from 4 on belong to no token


@pytest.mark.parametrize("history", [LIST, *TABLES])
def test_golden(history):
    z = torch.tensor([[2.0, 1.0, 0.5, -0.5, 0.0]])
    for amounts, drafted, want in (
        ((1.3, None, None), None, (0.449263143911, 0.262210402440, 0.141707153501, 0.050357483828, 0.096461816319)),
        ((1.3, 0.5, 1.5), [[1]], (0.159610535841, 0.121937171899, 0.083004144728, 0.217952066117, 0.417496081415)),
        ((None, 0.5, None), [[1, 2, 1, -1]], (0.458291108891, 0.168595877033, 0.102258568522, 0.102258568522,
                                              0.168595877033)),
    ):  # fmt: skip
        window = None if drafted is None else torch.tensor(drafted)
        rows = Rows(z, penalties=sk.Penalties(*amounts, **history, drafted=window))
        for v, p in enumerate(want):  # draw each token, to get its ln q
            below = sum(want[:v]) + p / 2
            out = sk.sample(rows, uniforms=torch.tensor([[below]], dtype=torch.float64))
            assert out.tokens.item() == v
            assert abs(out.logprobs.exp().item() - p) < 2e-6
            assert out.rows.penalties is rows.penalties


def test_two_views_of_one_row_are_two_rows():
    """All positions read one stored row, each with other penalties. An op that caches sums by the stored row alone
    would reuse those of position 0."""
    z = torch.zeros(1, 4)
    penalties = sk.Penalties(presence=30.0, **lists([-1]))
    draft, uniforms = torch.tensor([[0, 1, 2]]), torch.tensor([[0.0, 0.0, 0.0, 0.5]], dtype=torch.float64)
    rows = Rows(z, row=torch.zeros(1, 4, dtype=torch.int64), penalties=penalties)
    for method in ("token", "block"):
        out = sk.verify_chain(rows, draft, method=method, uniforms=uniforms)
        assert out.tokens.tolist() == [[0, 1, 2, 3]], method
        want = torch.tensor([[4.0, 3.0, 2.0, 1.0]]).log().neg()
        torch.testing.assert_close(out.logprobs, want, rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", ["kseq", "recursive", "recursive_without_replacement", "traversal"])
def test_one_draft_row_of_two_nodes(method):
    """Both nodes are drawn from one stored row, which node 2 sees with token 0 penalised: q(1) = 1 / (3 + e^-2). With
    p(1) = 1 / (3 + e), node 2 is accepted below u = .548. Without the penalty, q(1) would be 1/4, and u = .6 would be
    accepted."""
    penalties = sk.Penalties(presence=2.0, **lists([-1]))
    tree = torch.tensor([[-1, 0, 1]]), torch.tensor([[-1, 0, 1]])
    target = torch.tensor([[[1.0, 0.0, 0.0, 0.0]] * 3])
    draft = Rows(torch.zeros(1, 1, 4), row=torch.zeros(1, 3, dtype=torch.int64), penalties=penalties)
    for u, accepted in ((0.54, 2), (0.55, 1), (0.6, 1)):
        uniforms = torch.tensor([[0.5, u, u, 0.5]], dtype=torch.float64)
        out = sk.verify_tree(tree, target, draft, method=method, max_depth=2, uniforms=uniforms)
        assert out.num_accepted.tolist() == [accepted], u


def test_no_penalties_is_the_call_as_it_was():
    """Penalties with amounts that are off change no bit of the results."""
    for op in OPS:
        seen, _ = viewed.call_of(op, 1)
        plain = bare(seen)
        off = {
            name: unseen(x, penalties=penalised_off(x, len(x.logits) if op in FLAT else None, seen))
            if isinstance(x, Rows)
            else x
            for name, x in seen.items()
        }
        assert not differ(getattr(sk, op)(**plain), getattr(sk, op)(**off))


def penalised_off(rows, N, call):
    B = N if N is not None else len(call["uniforms"])
    return sk.Penalties(1.0, 0.0, 0.0, **lists(*[[0, 1, 2]] * B, counts=[[0, 1, 9]] * B))


def call_with(op, **fields):
    """Return a call of three rows or requests whose penalties have these fields."""
    given = {"repetition": 1.3, **lists([0, 3, -1], [1, 2, 3], [-1, -1, -1])} | fields
    penalties = sk.Penalties(**given)
    return of_three(op, penalties=penalties)


ids = lists([0, 3, -1], [1, 2, 3], [-1, -1, -1])["ids"]
WRONG = [
    ({"repetition": 0.0}, "repetition must be finite and > 0, got 0"),
    ({"repetition": math.nan}, "repetition must be finite and > 0, got nan"),
    ({"repetition": torch.tensor([1.0, -1.0, 1.0])}, "repetition must be finite and > 0, got -1 at index 1"),
    ({"frequency": math.inf}, "frequency must be finite, got inf"),
    ({"presence": torch.tensor([math.nan])}, "presence must be finite, got nan at index 0"),
    ({"presence": torch.zeros(2)}, r"presence must have shape \[3\] or \[1\], got \[2\]"),
    ({"presence": torch.zeros(3, dtype=torch.float64)}, "presence must be float32, got float64"),
    ({"ids": ids.long()}, "ids must be int32, got int64"),
    ({"ids": ids[:, :2]}, r"ids must have shape \[S=3, H=3\], got \[3, 2\]"),
    ({"ids": ids.flip(1)}, "ids must ascend and end with -1, got -1 then 3 in list 0"),
    ({"ids": ids.clamp(max=2)}, "ids must ascend and end with -1, got 2 then 2 in list 1"),
    ({"ids": ids - 1}, "ids must ascend and end with -1, got -1 then 2 in list 0"),
    ({"ids": ids[0]}, r"ids must have shape \[S=3, H=3\], got \[3\]"),
    ({"counts": ids[0]}, r"counts must have shape \[S, H\], got \[3\]"),
    ({"counts": ids - 2}, "counts must be >= 0, got -2 in list 0"),
    ({"counts": None}, "counts must be given with ids or with prompt_bits, got none"),
    ({"ids": None, "counts": None}, "counts must be given with ids or with prompt_bits, got none"),
    ({"prompt_bits": ids}, "counts must be given with ids or with prompt_bits, got both"),
    ({"row": torch.tensor([0, 3, 0])}, r"row must be in \[0, 3\), got 3 at index 1"),
    ({"row": torch.tensor([0, 0])}, r"row must have shape \[3\], got \[2\]"),
    ({"ids": ids[:2], "counts": ids[:2] * 0}, "counts must be of 3 histories, or penalties.row be given, got 2"),
]
COUNTS = torch.tensor([[0, 0, 0], [0, -2, 0], [0, 0, 1]], dtype=torch.int32)
WRONG_TABLES = [
    ({}, "counts must be >= 0, got -2 for token 1 in table 1"),
    ({"prompt_bits": ids[:, :2]}, r"prompt_bits must have shape \[S=3, ceil\(H/32\)=1\], got \[3, 2\]"),
    ({"prompt_bits": ids[:2, :1]}, r"prompt_bits must have shape \[S=3, ceil\(H/32\)=1\], got \[2, 1\]"),
    ({"prompt_bits": ids[:, :1].long()}, "prompt_bits must be int32, got int64"),
    ({"counts": None}, "counts must be given with ids or with prompt_bits, got none"),
    ({"counts": COUNTS.long()}, "counts must be int32, got int64"),
    (
        {"counts": COUNTS[:2].abs(), "prompt_bits": ids[:2, :1]},
        "counts must be of 3 histories, or penalties.row be given",
    ),
    ({"row": torch.tensor([0, 3, 0])}, r"row must be in \[0, 3\), got 3 at index 1"),
]
WRONG += [({"ids": None, "counts": COUNTS, "prompt_bits": ids[:, :1]} | fields, says) for fields, says in WRONG_TABLES]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("fields, says", WRONG)
def test_what_is_wrong_is_named(op, fields, says):
    side = "rows" if op in FLAT else "target"
    with pytest.raises(ValueError, match=rf"^{op}: {side}\.(penalties\.)?{says}"):
        getattr(sk, op)(**call_with(op, **fields))


@pytest.mark.parametrize("op", OPS)
def test_other_errors(op):
    call, side = call_with(op), "rows" if op in FLAT else "target"
    with pytest.raises(TypeError, match=rf"^{op}: {side}\.penalties must be Penalties, got float"):
        getattr(sk, op)(**call | {side: call[side]._replace(penalties=1.3)})
    with pytest.raises(TypeError, match=rf"^{op}: {side}\.penalties\.presence must be a number or a tensor, got str"):
        getattr(sk, op)(**call_with(op, presence="1"))
    with pytest.raises(TypeError, match=rf"^{op}: {side}\.penalties\.prompt_bits must be a torch.Tensor, got list"):
        getattr(sk, op)(**call_with(op, ids=None, prompt_bits=[[0]]))
    drafted = torch.zeros(2, 1, dtype=torch.int64)
    says = "must be None, got a tensor" if op not in FLAT else r"must have shape \[N=3, n=1\], got \[2, 1\]"
    with pytest.raises(ValueError, match=rf"^{op}: {side}\.penalties\.drafted {says}"):
        getattr(sk, op)(**call_with(op, drafted=drafted))


@pytest.mark.parametrize("backend", [name for name in backends.NAMES if name in tiers.SIMULATED])
@pytest.mark.parametrize("op", OPS)
def test_what_a_device_finds_wrong_makes_a_row_invalid(op, backend):
    """A GPU's tensors are not checked before the kernels run. Of three requests only the wrong one becomes invalid."""
    call = call_with(op, repetition=None)
    if op not in FLAT:
        call |= {"uniforms": torch.full((3, 2 if op == "verify_chain" else 3), 0.5, dtype=torch.float64)}
    side = "rows" if op in FLAT else "target"
    good = backends.run_without_values(op, backend, **call)
    amount = {"presence": torch.tensor([0.0, 1.0, 0.0])}
    bad_lists = (
        amount | lists([0, 3, -1], [2, 2, 3], [-1, -1, -1]),
        amount | lists([0, 3, -1], [1, -1, 3], [-1, -1, -1]),
        amount | lists([0, 3, -1], [-2, -1, -1], [-1, -1, -1]),
        amount | lists([0, 3, -1], [1, 2, 3], [-1, -1, -1], counts=[[1, 1, 0], [0, -1, 0], [0, 0, 0]]),
    )
    tables = (
        amount | {"ids": None} | table([0, 0, 0], [0, -1, 0], [0, 0, 0], bits=[9, 14, 0]),
        amount | {"ids": None} | table([0] * 9, [0] * 8 + [-(1 << 31)], [0] * 9, bits=[9, 14, 0]),
    )
    for fields in (
        *tables,
        *(bad_lists if backend == "cuda-on-cpu" else ()),  # Triton's kernels do not check that a list ascends
        {"repetition": torch.tensor([1.0, 0.0, 1.0])},
        {"repetition": torch.tensor([1.0, math.nan, 1.0])},
        {"frequency": torch.tensor([0.0, math.inf, 0.0])},
        {"presence": torch.tensor([0.0, -math.inf, 0.0])},
        {"row": torch.tensor([0, 3, 2])},
        {"row": torch.tensor([0, -1, 2])},
        {"row": torch.tensor([0, 3, 2]), "ids": None} | table(*[[0, 0, 0]] * 3, bits=[9, 14, 0]),
    ):
        rows = call[side]._replace(penalties=call[side].penalties._replace(**fields))
        found = backends.run_without_values(op, backend, **call | {side: rows})
        nan = call[side].logits.clone()
        ids = [*range(9)]
        if (
            any(fields is x for x in tables) and backend == "triton-interpret"
        ):  # Triton makes only the token's entry invalid
            ids = [v for v, count in enumerate(fields["counts"][1].tolist()) if count < 0]
        nan[1, ..., ids] = math.nan
        rows = call[side]._replace(logits=nan)
        wanted = backends.run_without_values(op, backend, **call | {side: rows})
        assert not differ(found, wanted), fields
        assert differ(found, good), fields


@pytest.mark.parametrize("used, is_valid", [(16384, True), (16385, False)])
@pytest.mark.parametrize("backend", [name for name in backends.NAMES if name == "cuda-on-cpu"])
def test_cuda_lists_so_many_used_tokens(backend, used, is_valid):
    """CUDA lists at most 16,384 used tokens of a table. If a request has used more, its rows are invalid. Other rows
    stay valid."""
    counts = torch.zeros(2, 17000, dtype=torch.int32)
    counts[0, -used:] = 1
    bits = torch.zeros(2, -(-17000 // 32), dtype=torch.int32)
    rows = Rows(torch.zeros(2, 17000), penalties=sk.Penalties(presence=1.0, counts=counts, prompt_bits=bits))
    log_norm = backends.run("row_stats", backend, rows)[:, 2].tolist()
    assert log_norm[1] == pytest.approx(math.log(17000), abs=1e-6)
    if is_valid:
        assert log_norm[0] == pytest.approx(math.log(17000 - used + used / math.e), abs=1e-6)
    else:
        assert math.isnan(log_norm[0])
