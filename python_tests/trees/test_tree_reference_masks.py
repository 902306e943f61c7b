# SPDX-License-Identifier: Apache-2.0
"""reference.build_tree and reference.tree_mask against trees and masks made by hand."""

import itertools
import math

import numpy as np
import pytest
import torch

from specdec_kernels import reference


def test_build_tree_by_hand():
    drafts = torch.tensor([[[0, 1, 5], [2, 1, -1], [0, 2, 5]], [[7, -1, 3], [-3, 1, 1], [7, -1, 3]]])
    tree = reference.build_tree(drafts)
    assert tree.parents.tolist() == [[-1, 0, 0, 1, 2, 1, 3, 5, -1, -1], [-1, 0] + [-1] * 8]
    assert tree.tokens.tolist() == [[-1, 0, 2, 1, 1, 2, 5, 5, -1, -1], [-1, 7] + [-1] * 8]
    assert tree.multiplicity.tolist() == [[3, 2, 1, 1, 1, 1, 1, 1, 0, 0], [3, 2] + [0] * 8]
    assert tree.draft_nodes.tolist() == [[[1, 3, 6], [2, 4, -1], [1, 5, 7]], [[1, -1, -1], [-1, -1, -1], [1, -1, -1]]]
    assert [x.dtype for x in tree] == [torch.int32, torch.int64, torch.int32, torch.int32]


def test_build_tree_invariants():
    drafts = torch.randint(-1, 3, (40, 5, 4), generator=torch.Generator().manual_seed(1))
    tree = reference.build_tree(drafts)
    whole = reference.build_tree(drafts[:, :, :2])
    for b in range(40):
        parents, tokens, nodes = tree.parents[b].tolist(), tree.tokens[b].tolist(), tree.draft_nodes[b]
        real = [i for i, parent in enumerate(parents) if parent >= 0]
        assert real == list(range(1, len(real) + 1)) and all(parents[i] < i for i in real)
        assert len({(parents[i], tokens[i]) for i in real}) == len(real)  # distinct siblings
        for k, path in enumerate(nodes.tolist()):
            length = next((l for l in range(4) if drafts[b, k, l] < 0), 4)
            assert [tokens[i] for i in path[:length]] == drafts[b, k, :length].tolist() and path[length:] == [-1] * (
                4 - length
            )
            assert [parents[i] for i in path[:length]] == [0, *path][:length]
        firsts = {i: min(k for k in range(5) if i in nodes[k]) for i in real}
        for i, j in itertools.combinations(real, 2):
            assert parents[i] != parents[j] or firsts[i] < firsts[j]  # siblings in order of first appearance
        assert tree.multiplicity[b, 1 : len(real) + 1].tolist() == [int((nodes == i).sum()) for i in real]
        assert torch.equal(nodes[:, :2], whole.draft_nodes[b])  # further levels do not change the node indices


@pytest.mark.parametrize("shape", [(0, 2, 3), (2, 0, 3), (2, 3, 0)])
def test_build_tree_of_nothing(shape):
    tree = reference.build_tree(torch.zeros(shape, dtype=torch.int64))
    assert tree.parents.shape == (shape[0], shape[1] * shape[2] + 1) and (tree.parents == -1).all()
    assert tree.draft_nodes.shape == shape


PARENTS = torch.tensor([[-1, 0, 0, 1, 1, 2]], dtype=torch.int32)


def test_tree_mask_golden():
    mask, depth, positions = reference.tree_mask(PARENTS, 7, "uint32")
    assert mask.tolist() == [[[1], [3], [5], [11], [19], [37]]] and mask.dtype == torch.uint32
    assert depth.tolist() == [[0, 1, 1, 2, 2, 2]] and positions.tolist() == [[7, 8, 8, 9, 9, 9]]
    nodes = reference.tree_mask(PARENTS).mask[0]
    edges = torch.zeros(6, 6)
    edges[range(1, 6), PARENTS[0, 1:].long()] = 1
    assert torch.equal(nodes, torch.linalg.inv(torch.eye(6) - edges).round().bool())  # (I - A)^-1
    additive = reference.tree_mask(PARENTS, format="additive", dtype=torch.bfloat16).mask
    assert (
        additive.dtype == torch.bfloat16
        and torch.equal(additive == 0, nodes[None])
        and (additive[~nodes[None]] == -math.inf).all()
    )


def test_tree_mask_prefix_columns():
    prefix = torch.tensor([2, 4])
    parents = torch.tensor([[-1, 0, 1], [-1, 0, -1]])
    want = [["11100", "11110", "11111"], ["11111000", "11111100", "00000010"]]
    tail = reference.tree_mask(parents, prefix, num_keys=8).mask.int()
    assert ["".join(map(str, row)) for row in tail[0].tolist()] == [row + "000" for row in want[0]]
    assert ["".join(map(str, row)) for row in tail[1].tolist()] == want[1]  # node 2 is padding: it attends to itself
    apart = reference.tree_mask(parents, prefix, num_keys=7, tree_start=4).mask.int()
    assert ["".join(map(str, row)) for row in apart[0].tolist()] == ["1100100", "1100110", "1100111"]


def test_tree_mask_packed_bits():
    rng = np.random.default_rng(2)
    parents = torch.tensor([[-1] + [int(rng.integers(0, i)) for i in range(1, 70)]] * 2)
    bits = reference.tree_mask(parents, torch.tensor([3, 5]), num_keys=77).mask
    for format, width in (("uint32", 32), ("uint64", 64)):
        words = reference.tree_mask(parents, torch.tensor([3, 5]), format, num_keys=77).mask
        assert words.shape == (2, 70, -(-77 // width))
        for b, i, j in ((0, 69, 0), (0, 69, 72), (1, 40, 45), (1, 0, 76)):
            assert (int(words[b, i, j // width]) >> (j % width)) & 1 == int(bits[b, i, j])
    packed = reference.tree_mask(parents, torch.tensor([3, 5]), "uint8", num_keys=77).mask
    assert packed.shape == (2, -(-70 * 77 // 8))
    for b, i, j in ((0, 69, 72), (1, 33, 12), (1, 69, 74)):
        at = i * 77 + j
        assert (int(packed[b, at // 8]) >> (at % 8)) & 1 == int(bits[b, i, j])


def test_tree_mask_refuses():
    with pytest.raises(ValueError, match=r"tree_mask: parents\[0, 1\] must be in \[-1, 1\), got 1"):
        reference.tree_mask(torch.tensor([[-1, 1]]))
    with pytest.raises(ValueError, match=r"tree_mask: parents\[0, 0\] must be in \[-1, 0\), got 0"):
        reference.tree_mask(torch.tensor([[0, 0]]))
    with pytest.raises(ValueError, match="tree_mask: format must be"):
        reference.tree_mask(PARENTS, format="int8")
