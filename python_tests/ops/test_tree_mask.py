# SPDX-License-Identifier: Apache-2.0
"""tree_mask against the reference (masks are bits, so exactly equal), and used in SDPA and FlexAttention, compared with
attention over one path at a time."""

import math

import pytest
import torch
from support import backends
from torch.nn.attention.flex_attention import create_block_mask, create_mask

import specdec_kernels as sk

FORMATS = ("bool", "additive", "uint8", "uint32", "uint64")
ADDITIVE = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def trees(B, N, seed=0, depth=None, padding=0.1):
    """Return random parents, with a different tree for each request. Some nodes are padding, inside and at the end."""
    generator = torch.Generator().manual_seed(seed)
    nodes = torch.arange(N)
    low = torch.zeros(N, dtype=torch.int64) if depth is None else (nodes - depth).clamp(min=0)
    parents = low + (torch.rand(B, N, generator=generator) * (nodes - low)).long()
    parents[torch.rand(B, N, generator=generator) < padding] = -1
    parents[:, 0] = -1
    for b in range(0, B, 2):
        parents[b, N - N // 4 * (b % 3) :] = -1
    return parents


def bits(x):
    """Return the mask with unsigned words viewed as signed ones, which torch can compare."""
    same = {torch.uint32: torch.int32, torch.uint64: torch.int64}
    return x.view(same[x.dtype]) if x.dtype in same else x


def assert_same(got, want):
    for name, a, b in zip(want._fields, got, want):
        assert a.dtype == b.dtype and torch.equal(bits(a), bits(b)), name
    assert (got.status == 0).all() and got.status.dtype == torch.int32


def check(backend, *args, **kwargs):
    got = backends.run("tree_mask", backend, *args, **kwargs)
    assert_same(got, backends.run("tree_mask", "reference", *args, **kwargs))
    return got


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "B, N", [(4, 1), (3, 6), (2, 31), (2, 32), (2, 33), (3, 64), (5, 65), (2, 130), (1, 1024), (1, 1030)]
)
def test_the_nodes_alone(op_backend, format, B, N):
    got = check(op_backend, trees(B, N, seed=N), torch.arange(B) * 7, format)
    if N == 65:
        assert 0 < int((got.depth > 3).sum()) and 0 < int((got.depth == 0).sum()) < B * N


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("num_keys", [0, 1, 7, 31, 32, 33, 63, 64, 65, 96, 150, 301])
def test_prefix_columns(op_backend, format, num_keys):
    """Prefixes are shorter than the mask, equally long, or longer, so trees fit, are cut off, or have no column."""
    prefix = torch.tensor([0, 3, 33, 64, 90, 149, 400])
    check(op_backend, trees(7, 45, seed=num_keys), prefix, format, num_keys=num_keys)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("start", [0, 20, 65, torch.tensor([0, 1, 40, 64, 65, 100, 500])])
def test_the_tree_apart_from_its_prefix(op_backend, format, start):
    """The tree's columns come after a padded prefix or overlap its end. Where they overlap, the mask is the tree's."""
    prefix = torch.tensor([0, 3, 33, 64, 65, 10, 20])
    check(op_backend, trees(7, 37, seed=5), prefix, format, num_keys=120, tree_start=start)


@pytest.mark.parametrize("dtype", ADDITIVE)
@pytest.mark.parametrize("keys", [{}, {"num_keys": 29}])
def test_additive_dtypes(op_backend, dtype, keys):
    mask = check(op_backend, trees(3, 21, seed=2), 8, "additive", dtype=dtype, **keys).mask
    assert mask.dtype == dtype and set(mask.unique().tolist()) == {0.0, -math.inf}


def test_golden(op_backend):
    got = backends.run("tree_mask", op_backend, torch.tensor([[-1, 0, 0, 1, 1, 2]]), 7, "uint32")
    assert bits(got.mask).tolist() == [[[1], [3], [5], [11], [19], [37]]]
    assert got.depth.tolist() == [[0, 1, 1, 2, 2, 2]] and got.positions.tolist() == [[7, 8, 8, 9, 9, 9]]


def test_a_chain_is_the_causal_mask(op_backend):
    N = 200
    got = backends.run("tree_mask", op_backend, torch.arange(-1, N - 1)[None], 5, num_keys=N + 5)
    assert torch.equal(got.mask[0], torch.ones(N, N + 5, dtype=torch.bool).tril(5))
    assert torch.equal(got.positions[0], torch.arange(5, N + 5))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_strides(op_backend, dtype):
    parents = trees(4, 40, seed=4).to(dtype)
    want = backends.run("tree_mask", "reference", parents, torch.arange(4), num_keys=50)
    apart = torch.full((40, 9), -5, dtype=dtype)
    apart[:, 1::2] = parents.T
    lengths = torch.stack([torch.arange(4).to(dtype), torch.full((4,), -9, dtype=dtype)], 1)[:, 0]
    assert_same(backends.run("tree_mask", op_backend, apart[:, 1::2].T, lengths, num_keys=50), want)


def test_one_tree_for_all(op_backend):
    parents, prefix = trees(1, 20, seed=8), torch.tensor([4, 0, 11])
    got = backends.run("tree_mask", op_backend, parents[0], prefix, num_keys=31)
    assert_same(got, backends.run("tree_mask", "reference", parents.expand(3, -1), prefix, num_keys=31))
    assert_same(
        backends.run("tree_mask", op_backend, parents[0], 4), backends.run("tree_mask", "reference", parents, 4)
    )


def test_batch_mates_change_nothing(op_backend):
    parents, prefix = trees(6, 50, seed=6), torch.arange(6) * 9
    for format in FORMATS:
        every = backends.run("tree_mask", op_backend, parents, prefix, format, num_keys=77)
        for a, alone in zip(
            every, backends.run("tree_mask", op_backend, parents[3:4], prefix[3:4], format, num_keys=77)
        ):
            assert torch.equal(bits(a[3:4]), bits(alone))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("B, N", [(0, 5), (3, 0), (0, 0)])
def test_empty(op_backend, format, B, N):
    got = backends.run("tree_mask", op_backend, torch.zeros(B, N, dtype=torch.int32), 0, format)
    assert got.mask.numel() == 0 and got.depth.shape == got.positions.shape == (B, N) and got.status.tolist() == [0] * B


# ---- trees that cannot be -------------------------------------------------------------------------------------------


def refuses(backend):
    """Return whether values are checked: on CPU tensors, unless the CPU simulates a GPU."""
    return backend in ("cpu", "triton-interpret")


BAD = [  # request, node, parent
    (0, 0, 0), (1, 0, 3), (0, 4, 4), (1, 5, 7), (1, 9, -2), (0, 9, 2**31 - 1),
]  # fmt: skip


@pytest.mark.parametrize("b, i, parent", BAD)
def test_impossible_parents(op_backend, b, i, parent):
    """Impossible parents raise on the CPU, with the argument named. On a device the node counts as padding, a status
    bit is set, and other requests stay the same."""
    parents = trees(2, 10, seed=1, padding=0)
    good = parents.clone()
    parents[b, i], good[b, i] = parent, -1
    if refuses(op_backend):
        with pytest.raises(ValueError, match=rf"tree_mask: parents\[{b}, {i}\] must be in \[-1, {i}\), got {parent}"):
            backends.run("tree_mask", op_backend, parents, 3)
        if op_backend == "cpu":
            return
        got = backends.run_without_values("tree_mask", op_backend, parents, 3, num_keys=13)
    else:
        got = backends.run("tree_mask", op_backend, parents, 3, num_keys=13)
    assert got.status.tolist() == [int(b == 0), int(b == 1)]
    assert_same(got._replace(status=got.status * 0), backends.run("tree_mask", "reference", good, 3, num_keys=13))


@pytest.mark.parametrize("length", [-1, 2**62, 2**63 - 1, -(2**63)])
def test_impossible_lengths(op_backend, length):
    parents, prefix = trees(3, 10, seed=1), torch.tensor([4, length, 2])
    for args, name in (({"prefix_len": prefix}, "prefix_len"), ({"tree_start": prefix}, "tree_start")):
        if refuses(op_backend):
            with pytest.raises(
                ValueError, match=rf"tree_mask: {name} must be >= 0 and below 2\^62, got {length} at index 1"
            ):
                backends.run("tree_mask", op_backend, parents, num_keys=14, **args)
            continue
        got = backends.run("tree_mask", op_backend, parents, num_keys=14, **args)
        assert got.status.tolist() == [0, sk.STATUS_INVALID_PREFIX, 0]
        args[name] = torch.tensor([4, 0, 2])
        assert_same(
            got._replace(status=got.status * 0), backends.run("tree_mask", "reference", parents, num_keys=14, **args)
        )


def test_bad_arguments(op_backend):
    tree_mask, parents = backends.call("tree_mask", op_backend), trees(2, 5)
    with pytest.raises(ValueError, match="tree_mask: parents must be int32 or int64, got float32"):
        tree_mask(parents.float())
    with pytest.raises(ValueError, match=r"tree_mask: parents must have shape \[B, N\], got \[1, 2, 5\]"):
        tree_mask(parents[None])
    with pytest.raises(ValueError, match="tree_mask: format must be 'bool', .* got 'int8'"):
        tree_mask(parents, 0, "int8")
    with pytest.raises(TypeError, match="tree_mask: dtype must be float32, float64, bfloat16 or float16, got int32"):
        tree_mask(parents, 0, "additive", dtype=torch.int32)
    with pytest.raises(ValueError, match=r"tree_mask: prefix_len must be >= 0 and below 2\^62, got -3"):
        tree_mask(parents, -3)
    with pytest.raises(TypeError, match="tree_mask: prefix_len must be a number or a tensor, got float"):
        tree_mask(parents, 1.0)
    with pytest.raises(ValueError, match=r"tree_mask: tree_start must have shape \[2\] or \[1\], got \[3\]"):
        tree_mask(parents, tree_start=torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"tree_mask: num_keys must be in \[0, 2\^30\] or None, got -1"):
        tree_mask(parents, num_keys=-1)


# ---- as attention wants it ------------------------------------------------------------------------------------------


def attended_alone(q, k, v, parents, prefix):
    """Return each real node's attention over the prefix and its own path, one node at a time."""
    out = torch.zeros_like(q)
    for i in range(q.shape[-2]):
        path, j = [], i
        while j >= 0:
            path, j = [prefix + j, *path], int(parents[j])
        keys = [*range(prefix), *path] if path[0] == prefix else path
        scores = torch.einsum("hd,hkd->hk", q[:, i], k[:, keys]) / math.sqrt(q.shape[-1])
        out[:, i] = torch.einsum("hk,hkd->hd", scores.softmax(-1), v[:, keys])
    return out


@pytest.mark.parametrize("format", ["bool", "additive"])
def test_sdpa_attends_to_each_path(op_backend, format):
    B, N, H, D = 3, 12, 2, 8
    parents, prefix = trees(B, N, seed=11), torch.tensor([5, 0, 9])
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(B, H, N, D, dtype=torch.float64, generator=generator)
    k, v = torch.randn(2, B, H, N + 9, D, dtype=torch.float64, generator=generator)
    mask = backends.run("tree_mask", op_backend, parents, prefix, format, num_keys=N + 9, dtype=torch.float64).mask
    got = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None])
    for b in range(B):
        assert torch.allclose(
            got[b], attended_alone(q[b], k[b], v[b], parents[b], int(prefix[b])), rtol=1e-12, atol=1e-12
        )


def flex(parents, prefix, start, N, keys):
    """Return the mask that FlexAttention makes from mask_mod, and its blocks."""
    mod = sk.tree_mask_mod(parents, prefix, tree_start=start)
    device = str(parents.device)
    blocks = create_block_mask(mod, len(parents), None, N, keys, device=device, BLOCK_SIZE=32)
    return create_mask(mod, len(parents), None, N, keys, device=device), blocks.to_dense()


@pytest.mark.parametrize(
    "prefix, start", [(0, None), (torch.tensor([3, 40, 64]), None), (torch.tensor([3, 40, 64]), 70)]
)
def test_mask_mod(op_backend, prefix, start):
    N, keys = 45, 130
    parents = trees(3, N, seed=13)
    got, blocks = backends.there(op_backend, flex, parents, prefix, start, N, keys)
    want = backends.run("tree_mask", "reference", parents, prefix, num_keys=keys, tree_start=start).mask
    assert torch.equal(got[:, 0], want)
    tiles = (
        torch.nn.functional.pad(want, (0, -keys % 32, 0, -N % 32))
        .unflatten(2, (-1, 32))
        .unflatten(1, (-1, 32))
        .any(4)
        .any(2)
    )
    assert torch.equal(blocks[:, 0].bool(), tiles) and not tiles.all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_mask_mod_in_flex_attention():
    from torch.nn.attention.flex_attention import flex_attention

    B, N, H, D = 2, 12, 2, 16
    parents, prefix = trees(B, N, seed=3), torch.tensor([5, 9])
    q, k, v = torch.randn(3, B, H, N + 9, D, generator=torch.Generator().manual_seed(2))
    q = q[:, :, :N].contiguous()
    blocks = create_block_mask(sk.tree_mask_mod(parents, prefix), B, None, N, N + 9, device="cpu")
    mask = sk.tree_mask(parents, prefix, num_keys=N + 9).mask[:, None]
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert torch.allclose(flex_attention(q, k, v, block_mask=blocks), want, rtol=1e-5, atol=1e-6)
