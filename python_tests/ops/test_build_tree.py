# SPDX-License-Identifier: Apache-2.0
"""build_tree against the reference (integers: exactly equal) and against trees made by hand."""

import pytest
import torch
from support import backends


def drafts(B, K, L, vocab, seed=0, dtype=torch.int64):
    """Return random drafts. The smaller the vocabulary, the more prefixes they share. Below 50 ids, some drafts end
    early with -1."""
    ids = torch.randint(-1 if vocab < 50 else 0, vocab, (B, K, L), generator=torch.Generator().manual_seed(seed))
    return ids.to(dtype)


def assert_same(got, want):
    for name, a, b in zip(want._fields, got, want):
        assert a.dtype == b.dtype and torch.equal(a, b), f"{name}: got {a.tolist()}, wanted {b.tolist()}"


def check(backend, draft_tokens):
    got, want = (backends.run("build_tree", name, draft_tokens) for name in (backend, "reference"))
    assert_same(got, want)
    return got


@pytest.mark.parametrize("vocab", [1, 2, 3, 100_000])  # from all alike to hardly any shared prefix
@pytest.mark.parametrize("B, K, L", [
    (3, 1, 1),
    (5, 1, 6),  # a chain
    (5, 7, 1),
    (9, 4, 4),
    (6, 5, 7),
    (2, 17, 3),
    (1, 64, 64),
    (1, 130, 2),  # more drafts than Triton compares at once
])  # fmt: skip
def test_agrees_with_the_reference(backend, B, K, L, vocab):
    tree = check(backend, drafts(B, K, L, vocab, seed=K * L))
    assert tree.parents.shape == (B, K * L + 1)
    if vocab == 2 and K > 4:  # some prefixes are shared, not all
        real = (tree.parents >= 0).sum(1)
        assert (real < K * L).all() and (real > 1).any()


def test_by_hand(backend):
    """The drafts begin with A, B, A: the third shares the first draft's node, and draft_nodes keeps the order of the
    drafts."""
    tree = backends.run(
        "build_tree", backend, torch.tensor([[[0, 1, 5], [2, 1, -1], [0, 2, 5]], [[7, -1, 3], [-3, 1, 1], [7, -1, 3]]])
    )
    assert tree.parents.tolist() == [[-1, 0, 0, 1, 2, 1, 3, 5, -1, -1], [-1, 0] + [-1] * 8]
    assert tree.tokens.tolist() == [[-1, 0, 2, 1, 1, 2, 5, 5, -1, -1], [-1, 7] + [-1] * 8]
    assert tree.multiplicity.tolist() == [[3, 2, 1, 1, 1, 1, 1, 1, 0, 0], [3, 2] + [0] * 8]
    assert tree.draft_nodes.tolist() == [[[1, 3, 6], [2, 4, -1], [1, 5, 7]], [[1, -1, -1], [-1, -1, -1], [1, -1, -1]]]


def test_all_drafts_identical(backend):
    tree = check(backend, torch.full((2, 6, 3), 11))
    assert tree.parents.tolist() == [[-1, 0, 1, 2] + [-1] * 15] * 2
    assert tree.multiplicity.tolist() == [[6] * 4 + [0] * 15] * 2


def test_one_token_under_two_parents_is_two_nodes(backend):
    tree = check(backend, torch.tensor([[[1, 9], [2, 9], [1, 9]]]))
    assert tree.draft_nodes.tolist() == [[[1, 3], [2, 4], [1, 3]]]


def test_ids_below_zero_end_a_draft(backend):
    """A negative id ends its draft; later ids are ignored."""
    ids = drafts(20, 5, 4, 4, seed=3)
    ended = (ids < 0).cumsum(2) > 0
    assert ended.any() and not ended.all()
    tree = check(backend, ids)
    assert torch.equal(tree.draft_nodes < 0, ended)
    assert_same(backends.run("build_tree", backend, torch.where(ended, -(2**40), ids)), tree)
    assert_same(backends.run("build_tree", backend, torch.where(ended & (ids >= 0), 77, ids)), tree)


def test_large_ids(backend):
    """Ids that agree in their lower 32 bits are different tokens."""
    tree = check(backend, torch.tensor([[[5, 1], [5 + 2**32, 1], [5, 1 + 2**33]]]))
    assert tree.tokens[0].tolist() == [-1, 5, 5 + 2**32, 1, 1, 1 + 2**33, -1]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_strides(backend, dtype):
    ids = drafts(4, 5, 6, 3, dtype=dtype)
    want = backends.run("build_tree", "reference", ids)
    padded = torch.full((4, 9, 14), -7, dtype=dtype)
    padded[:, 1:6, ::2][:, :, :6] = ids
    assert_same(backends.run("build_tree", backend, padded[:, 1:6, ::2][:, :, :6]), want)
    assert_same(backends.run("build_tree", backend, ids.permute(2, 0, 1).contiguous().permute(1, 2, 0)), want)
    one = ids[:1].expand(3, -1, -1)
    assert_same(backends.run("build_tree", backend, one), backends.run("build_tree", "reference", one))


@pytest.mark.slow_in_triton
def test_batch_mates_and_later_levels_change_nothing(backend):
    ids = drafts(8, 4, 5, 3, seed=9)
    every = backends.run("build_tree", backend, ids)
    for b in (0, 7):
        for a, alone in zip(every, backends.run("build_tree", backend, ids[b : b + 1])):
            assert torch.equal(a[b : b + 1], alone)
    for level in range(1, 5):
        first = backends.run("build_tree", backend, ids[:, :, :level])
        assert torch.equal(every.draft_nodes[:, :, :level], first.draft_nodes)
        nodes = 1 + int((first.parents >= 0).sum(1).min())
        assert torch.equal(every.parents[:, :nodes], first.parents[:, :nodes])


@pytest.mark.parametrize("shape", [(0, 2, 3), (2, 0, 3), (2, 3, 0), (0, 0, 0)])
def test_nothing_to_build_from(backend, shape):
    tree = check(backend, torch.zeros(shape, dtype=torch.int64))
    assert tree.parents.shape == (shape[0], shape[1] * shape[2] + 1) and (tree.parents == -1).all()
    assert (tree.multiplicity[:, :1] == shape[1]).all()


def test_bad_arguments(op_backend):
    build_tree = backends.call("build_tree", op_backend)
    with pytest.raises(ValueError, match="build_tree: draft_tokens must be int32 or int64, got float32"):
        build_tree(torch.zeros(2, 3, 4))
    with pytest.raises(TypeError, match="build_tree: draft_tokens must be a torch.Tensor, got list"):
        build_tree([[[1]]])
    with pytest.raises(ValueError, match=r"build_tree: draft_tokens must have shape \[B, K, L\], got \[3, 4\]"):
        build_tree(torch.zeros(3, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match="build_tree: draft_tokens must hold at most 1024 drafts a request, got 1025"):
        build_tree(torch.zeros(1, 1025, 1, dtype=torch.int64))
