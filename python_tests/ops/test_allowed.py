# SPDX-License-Identifier: Apache-2.0
"""Masks of allowed ids: results computed by hand, and errors. Random calls: test_views.py."""

import ctypes
import math
import mmap

import numpy as np
import pytest
import torch
from support import backends, tiers
from support.view_mutants import hides_infinity
from support.viewed import FLAT, OPS, differ, of_three

import specdec_kernels as sk
from specdec_kernels.reference.penalties import History, penalised
from specdec_kernels.reference.views import allowed_ids
from specdec_kernels.rows import Rows

Z = (2.0, 1.0, 0.5, -0.5, 0.0)


def masks(V, *allowed, row=None, words=None):
    """Return the masks that allow these lists of ids."""
    W = -(-V // 32) if words is None else words
    bits = [[sum(1 << v % 32 for v in ids if v // 32 == w) for w in range(W)] for ids in allowed]
    packed = torch.tensor(bits, dtype=torch.int64).reshape(len(allowed), W).to(torch.int32)
    return sk.Allowed(packed, None if row is None else torch.tensor(row))


def test_golden():
    """Penalties (repetition 1.3, frequency .5, presence 1.5) apply first, with draft token 1 counted. The mask then
    allows 1, 2 and 4, and T = .7 and top-p .8 come last."""
    ids, counts = sk.history([[3]], [[0, 0, 2]], size=4)
    penalties = sk.Penalties(1.3, 0.5, 1.5, ids, counts, drafted=torch.tensor([[1]]))
    want = (0, 0.147010683944, 0, 0, 0.852989316056)
    rows = Rows(torch.tensor([Z]), 0.7, top_p=0.8, penalties=penalties, allowed=masks(5, [1, 2, 4]))
    out = sk.top_logprobs(rows, k=5)
    found = torch.zeros(1, 5).scatter(1, out.ids, out.logprobs.exp())
    assert (found[0] - torch.tensor(want)).abs().max() < 2e-6
    e = penalised(np.array(Z), History.of_list([0, 2, 3], [2, 1, 0], 5).after([1]), 1.3, 0.5, 1.5)
    p = np.where(allowed_ids([0b10110], 5), np.exp(e / 0.7), 0)
    p[2] = 0  # outside the nucleus: 4 and 1 alone hold .8 of the allowed mass
    assert np.abs(p / p.sum() - want).max() < 1e-12


def test_a_mask_hides_nan_and_infinity():
    z = torch.tensor([[2.0, math.nan, 0.5, math.inf, 0.0]])
    hidden, shown = (sk.row_stats(Rows(z, allowed=masks(5, ids))) for ids in ([0, 2, 4], [0, 1, 2]))
    assert torch.equal(hidden, sk.row_stats(torch.tensor([[2.0, -math.inf, 0.5, -math.inf, 0.0]])))
    assert shown[0, 2].isnan()


def test_a_mask_hides_what_a_penalty_makes_infinite(backend):
    hides_infinity(backend)


def test_nothing_allowed_is_an_invalid_row():
    z = torch.tensor([Z, Z])
    stats = sk.row_stats(Rows(z, allowed=masks(5, [], [3])))
    assert torch.equal(stats[:1].nan_to_num(7), sk.row_stats(torch.full((1, 5), -math.inf)).nan_to_num(7))
    assert sk.sample(Rows(z, allowed=masks(5, [], [3])), uniforms=torch.full((2, 1), 0.9).double()).tokens[1] == 3
    out = sk.verify_chain(
        Rows(z[None], allowed=masks(5, [])), torch.tensor([[0]]), uniforms=torch.full((1, 2), 0.5).double()
    )
    assert out.status.tolist() == [1] and out.num_accepted.tolist() == [0]


def test_words_that_are_missing_forbid_and_bits_beyond_the_row_do_nothing():
    z = torch.randn(1, 70)
    two, three, four = (masks(70, [*range(70), 95], words=n) for n in (2, 3, 4))
    short = z.clone()
    short[:, 64:] = -math.inf
    assert torch.equal(sk.row_stats(Rows(z, allowed=two)), sk.row_stats(short))
    for mask in (three, four):
        assert torch.equal(sk.row_stats(Rows(z, allowed=mask)), sk.row_stats(z))
    assert sk.row_stats(Rows(z, allowed=masks(70, [], words=0)))[0, 2].isnan()


def test_the_bits_of_support_are_a_mask():
    z = torch.randn(3, 1000)
    kept = sk.support(Rows(z, top_k=20), max_kept=0).bits
    found, wanted = sk.row_stats(Rows(z, allowed=sk.Allowed(kept))), sk.row_stats(Rows(z, top_k=20))
    torch.testing.assert_close(found[:, 2:], wanted[:, 2:])


FILTERS = ({}, {"temperature": 0.0}, {"top_n_sigma": 1.0}, {"top_p": 0.9, "top_k": 30, "min_p": 0.01})


@pytest.mark.parametrize("filters", FILTERS)
def test_chunks_without_an_allowed_id_do_no_harm(op_backend, filters):
    V = 5 * 1024
    z, plain = torch.full((1, V), math.nan), torch.full((1, V), -math.inf)
    z[:, 2048:3072] = torch.randn(1024)
    plain[:, 2050:3000] = z[:, 2050:3000]
    found = backends.run("row_stats", op_backend, rows=Rows(z, **filters, allowed=masks(V, range(2050, 3000))))
    assert torch.equal(found, backends.run("row_stats", op_backend, rows=Rows(plain, **filters)))


@pytest.mark.parametrize("filters", FILTERS)
def test_the_cpu_does_not_read_chunks_without_an_allowed_id(filters):
    """Their pages are not readable: a read would end the process."""
    page, libc = mmap.PAGESIZE, ctypes.CDLL(None, use_errno=True)
    V = 3 * page // 4  # three pages of floats, the first and the last of which become unreadable
    memory = mmap.mmap(-1, 3 * page)
    z = torch.frombuffer(memory, dtype=torch.float32).view(1, V)
    z.copy_(torch.randn(1, V))
    plain = torch.full((1, V), -math.inf)
    plain[:, page // 4 : page // 2] = z[:, page // 4 : page // 2]
    first = z.data_ptr()
    for start in (first, first + 2 * page):
        assert libc.mprotect(ctypes.c_void_p(start), page, 0) == 0  # PROT_NONE
    try:
        found = sk.row_stats(Rows(z, **filters, allowed=masks(V, range(page // 4, page // 2))))
    finally:
        for start in (first, first + 2 * page):
            libc.mprotect(ctypes.c_void_p(start), page, mmap.PROT_READ | mmap.PROT_WRITE)
    assert torch.equal(found, sk.row_stats(Rows(plain, **filters)))


@pytest.mark.parametrize("method", ["token", "block"])
def test_every_position_has_its_mask(method):
    """Greedy rows with argmax 0. In request 0 the masks force 1, 2 and 4, so the third draft, 3, is rejected. A row
    index of -1 means no mask."""
    allowed = masks(5, [1], [2], [4], row=[[0, 1, 2, -1], [-1, 0, -1, 1]])
    target = Rows(torch.tensor([Z]).expand(2, 4, 5), temperature=0.0, allowed=allowed)
    out = sk.verify_chain(target, torch.tensor([[1, 2, 3], [0, 1, 0]]), method=method)
    assert out.tokens.tolist() == [[1, 2, 4, -1], [0, 1, 0, 2]]
    ragged = target._replace(logits=target.logits.flatten(0, 1), allowed=allowed._replace(row=allowed.row.flatten()))
    more = {"cu_draft": torch.tensor([0, 3, 6]), "max_draft": 3, "method": method}
    assert not differ(out, sk.verify_chain(ragged, torch.tensor([1, 2, 3, 0, 1, 0]), **more))


def test_every_node_has_its_mask():
    """Each node of a tree has its own mask. One mask per depth would allow a token of another branch."""
    tree = torch.tensor([[-1, 0, 0, 2]]), torch.tensor([[-1, 1, 2, 3]])
    allowed = masks(5, [2], [3], [4], row=[[0, -1, 1, 2]])
    target = Rows(torch.tensor([Z]).expand(1, 4, 5), temperature=0.0, allowed=allowed)
    for method in ("greedy", "recursive", "traversal", "target_only"):
        out = sk.verify_tree(tree, target, method=method)
        assert out.tokens[0, :3].tolist() == [2, 3, 4], method


def call_with(op, **fields):
    """Return a call of three rows or requests whose masks have these fields."""
    given = masks(9, [0, 3], [2, 7], range(9))._replace(**fields)
    return of_three(op, allowed=given)


BITS = torch.ones(3, 2, dtype=torch.int32)
WRONG = [
    ({"bits": BITS.long()}, "bits must be int32, got int64"),
    ({"bits": BITS[0]}, r"bits must have shape \[S, W\], got \[2\]"),
    ({"bits": BITS.T.contiguous().T}, r"bits must be contiguous in its last dimension, got strides \[1, 3\]"),
    ({"bits": None, "row": torch.tensor([0, 1, 2])}, "bits must be given with allowed.row, got None"),
    ({"row": torch.tensor([0, 3, 0])}, r"row must be in \[-1, 3\), got 3 of request 1"),
    ({"row": torch.tensor([0, 1, -2])}, r"row must be in \[-1, 3\), got -2 of request 2"),
    ({"row": torch.tensor([0.0, 1.0, 2.0])}, "row must be int32 or int64, got float32"),
]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("fields, says", WRONG)
def test_what_is_wrong_is_named(op, fields, says):
    side = "rows" if op in FLAT else "target"
    with pytest.raises(ValueError, match=rf"^{op}: {side}\.allowed\.{says}"):
        getattr(sk, op)(**call_with(op, **fields))


@pytest.mark.parametrize("op", OPS)
def test_other_errors(op):
    call, side = call_with(op), "rows" if op in FLAT else "target"
    with pytest.raises(TypeError, match=rf"^{op}: {side}\.allowed must be Allowed, got Tensor"):
        getattr(sk, op)(**call | {side: call[side]._replace(allowed=BITS)})
    positions = {"verify_chain": (", or 6", r" or \[B, G\+1\]"), "verify_tree": (", or 6", r" or \[B, N\]")}
    of_lists, of_rows = positions.get(op, ("", ""))
    wanted = rf"must be of 3 lists{of_lists}, or allowed.row be given, got 2"
    with pytest.raises(ValueError, match=rf"^{op}: {side}\.allowed\.bits {wanted}"):
        getattr(sk, op)(**call_with(op, bits=BITS[:2]))
    with pytest.raises(ValueError, match=rf"^{op}: {side}\.allowed\.row must have shape \[3\]{of_rows}, got \[2\]"):
        getattr(sk, op)(**call_with(op, row=torch.tensor([0, 1])))


def test_masks_of_positions_have_their_shape():
    """Masks of positions have shape [B, G+1, W] in a chain and [B, N, W] in a tree. Other shapes that hold as many
    masks are refused, since they would assign masks to the wrong requests."""
    bits = torch.arange(6, dtype=torch.int32).view(3, 2, 1)
    for op, positions in (("verify_chain", "3, 2"), ("verify_tree", "3, 2")):
        getattr(sk, op)(**call_with(op, bits=bits))
        for shape in ((2, 3, 1), (1, 6, 1), (6, 1, 1)):
            wanted = rf"must have shape \[S, n\] or \[{positions}, n\], got \[{shape[0]}, {shape[1]}, 1\]"
            with pytest.raises(ValueError, match=f"^{op}: target.allowed.bits {wanted}"):
                getattr(sk, op)(**call_with(op, bits=bits.view(shape)))
        with pytest.raises(ValueError, match=rf"^{op}: target.allowed.bits must have shape \[S, W\], got \[3, 2, 1\]"):
            getattr(sk, op)(**call_with(op, bits=bits, row=torch.zeros(3, dtype=torch.int64)))
    with pytest.raises(ValueError, match=r"^sample: rows.allowed.bits must have shape \[S, W\], got \[3, 2, 1\]"):
        sk.sample(**call_with("sample", bits=bits))


@pytest.mark.parametrize("backend", [name for name in backends.NAMES if name in tiers.SIMULATED])
@pytest.mark.parametrize("op", OPS)
def test_what_a_device_finds_wrong_makes_a_row_invalid(op, backend):
    """A GPU's tensors are not checked before the kernels run. Of three requests only the wrong one becomes invalid."""
    call = call_with(op, row=torch.tensor([0, 1, -1]))
    if op not in FLAT:
        call |= {"uniforms": torch.full((3, 2 if op == "verify_chain" else 3), 0.5, dtype=torch.float64)}
    side = "rows" if op in FLAT else "target"
    bad = call[side].logits.clone()
    bad[1] = math.nan
    unmasked = call[side].allowed._replace(row=torch.tensor([0, -1, -1]))
    wanted = backends.run_without_values(
        op, backend, **call | {side: call[side]._replace(logits=bad, allowed=unmasked)}
    )
    for number in (3, -2):
        rows = call[side]._replace(allowed=call[side].allowed._replace(row=torch.tensor([0, number, -1])))
        assert not differ(backends.run_without_values(op, backend, **call | {side: rows}), wanted), number
