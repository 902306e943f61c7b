# SPDX-License-Identifier: Apache-2.0
"""vocab_map: its layout, by hand and by loops over random tables, and its errors."""

import numpy as np
import pytest
import torch

import specdec_kernels as sk

TABLE = [4, -1, 0, 2, 2]


def by_loops(table, V):
    """Return the packed numbers, as vocab_map's docstring defines them."""
    mapped = sorted((v, d) for d, v in enumerate(table) if v >= 0)
    unmapped = [(-1, d) for d, v in enumerate(table) if v < 0]
    pairs = [x for pair in mapped + unmapped for x in pair]
    return pairs + [max(v, -1) for v in table] + [sum(v < end for v, _ in mapped) for end in range(V + 1)]


def test_the_layout_by_hand():
    made = sk.vocab_map(torch.tensor(TABLE), 5)
    pairs, table, first = [0, 2, 2, 3, 2, 4, 4, 0, -1, 1], TABLE, [0, 1, 1, 3, 3, 4]
    assert made.packed.tolist() == pairs + table + first == by_loops(TABLE, 5)
    assert (made.packed.dtype, made.vocab) == (torch.int32, 5) and made.packed.is_contiguous()
    assert made.table.tolist() == TABLE and made.table.dtype == torch.int32


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("V, Vd", [(1, 1), (1, 9), (9, 1), (40, 40), (300, 60), (60, 300)])
def test_the_layout_of_random_tables(V, Vd, dtype):
    """The draft vocabulary is narrower or wider than the target's. Several draft ids may map to one target id, and a
    target id may have none."""
    rng = np.random.default_rng([V, Vd])
    for low in (-V, -1, 0):
        table = rng.integers(low, V, Vd)
        given = torch.tensor(table, dtype=dtype)
        assert sk.vocab_map(given, V).packed.tolist() == by_loops(table, V)
        offsets = given - torch.arange(Vd, dtype=dtype)
        assert torch.equal(sk.vocab_map(offsets, V, offsets=True).packed, sk.vocab_map(given, V).packed)


def test_all_ids_unmapped_and_one_of_each():
    assert sk.vocab_map(torch.tensor([-1, -5]), 3).packed.tolist() == [-1, 0, -1, 1, -1, -1, 0, 0, 0, 0]
    assert sk.vocab_map(torch.tensor([1, 0]), 2).packed.tolist() == [0, 1, 1, 0, 1, 0, 0, 1, 2]
    assert sk.vocab_map(torch.tensor([(1 << 24) - 1]), 1 << 24).table.tolist() == [(1 << 24) - 1]


def test_target_ids():
    """Unmapped ids and ids outside the table have no target id, which is -1."""
    ids = torch.tensor([[0, 1, 2, 3], [4, 5, -1, 1 << 40]])
    assert sk.vocab_map(torch.tensor(TABLE), 5).target_ids(ids).tolist() == [[4, -1, 0, 2], [2, -1, -1, -1]]


def test_offsets_far_below_zero_are_no_ids():
    table = torch.tensor([0, -(1 << 63), 1])
    assert sk.vocab_map(table, 5, offsets=True).table.tolist() == [0, -1, 3]


WRONG = [
    ([0, 1], {}, TypeError, "table must be a torch.Tensor, got list"),
    (torch.tensor([0.0]), {}, ValueError, "table must be int32 or int64, got float32"),
    (torch.tensor([True]), {}, ValueError, "table must be int32 or int64, got bool"),
    (torch.tensor(3), {}, ValueError, r"table must have shape \[Vd\] with Vd in \[1, 2\^24\], got \[\]"),
    (torch.tensor([[1, 2]]), {}, ValueError, r"table must have shape \[Vd\] with Vd in \[1, 2\^24\], got \[1, 2\]"),
    (torch.tensor([], dtype=torch.int64), {}, ValueError, r"table must have shape .*, got \[0\]"),
    (torch.tensor([0, 5, 9]), {}, ValueError, r"table\[1\] must be an id below V=5, got 5"),
    (torch.tensor([0, 3, 3]), {"offsets": True}, ValueError, r"table\[2\] must be an id 2 \+ offset below V=5, got 3"),
    (torch.tensor([0, (1 << 63) - 1]), {"offsets": True}, ValueError, rf"table\[1\] must .*, got {(1 << 63) - 1}"),
    (torch.tensor([0]), {"V": 0}, ValueError, r"V must be in \[1, 2\^24\], got 0"),
    (torch.tensor([0]), {"V": (1 << 24) + 1}, ValueError, r"V must be in \[1, 2\^24\], got 16777217"),
    (torch.tensor([0]), {"V": 5.0}, TypeError, "V must be an int, got float"),
    (torch.tensor([0]), {"offsets": "d2t"}, TypeError, "offsets must be a bool, got str"),
]


@pytest.mark.parametrize("table, more, error, says", WRONG)
def test_what_is_wrong_is_named(table, more, error, says):
    with pytest.raises(error, match=f"^vocab_map: {says}$"):
        sk.vocab_map(**{"table": table, "V": 5} | more)
