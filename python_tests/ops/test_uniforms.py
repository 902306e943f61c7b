# SPDX-License-Identifier: Apache-2.0
"""uniforms: known answers of Philox, equality with the reference, and independence of the batch."""

import numpy as np
import pytest
import torch
from support import backends

from specdec_kernels.reference.uniforms import philox

KNOWN = [  # Random123's kat_vectors, and three vectors with the layout used here: (counter, key, words)
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ("00000000 00000000 00000007 00000000", "000004d2 00000000", "56e604f4 2107acfd e9ac28d3 1debf147"),
    ("00000001 00000000 00000007 00000000", "000004d2 00000000", "324cbeba acba3cf8 d4e428b4 11a504c1"),
    ("00000000 00000001 00000007 00000000", "000004d2 00000000", "dfdb8d6c 39aeca24 3fe250ae 588db555"),
]


def words(text):
    return [int(w, 16) for w in text.split()]


def signed(high, low):
    return int(np.array([(high << 32) | low], dtype=np.uint64).astype(np.int64)[0])


@pytest.mark.parametrize("counter, key, out", KNOWN)
def test_reference_known_answers(counter, key, out):
    assert [int(w) for w in philox(words(counter), words(key))] == words(out)


@pytest.mark.parametrize("counter, key, out", [k for k in KNOWN if words(k[0])[0] < 2])
def test_known_answers(backend, counter, key, out):
    """The counter is (block, offset low, offset high, domain), and the key (seed low, seed high)."""
    (block, low, high, domain), (k0, k1), w = words(counter), words(key), words(out)
    seed, offset = torch.tensor([signed(k1, k0)]), torch.tensor([signed(high, low)])
    got = backends.run("uniforms", backend, seed, offset, 4, domain)[0, 2 * block : 2 * block + 2]
    want = [((w[0] << 32 | w[1]) >> 11) * 2.0**-53, ((w[2] << 32 | w[3]) >> 11) * 2.0**-53]
    assert got.tolist() == want


def test_bit_identical_with_the_reference(backend):
    rng = torch.Generator().manual_seed(0)
    seed = torch.randint(-(2**63), 2**63 - 1, (300,), generator=rng)
    offset = torch.randint(-(2**63), 2**63 - 1, (300,), generator=rng)
    for domain in range(4):
        want = backends.run("uniforms", "reference", seed, offset, 9, domain)
        got = backends.run("uniforms", backend, seed, offset, 9, domain)
        assert got.dtype == torch.float64 and torch.equal(got, want)
        assert (got >= 0).all() and (got < 1).all()


def test_a_slot_does_not_depend_on_n_or_on_batch_mates(backend):
    seed, offset = torch.arange(64), torch.arange(64) * 2**33
    wide = backends.run("uniforms", backend, seed, offset, 16, 0)
    assert torch.equal(backends.run("uniforms", backend, seed, offset, 3, 0), wide[:, :3])
    assert torch.equal(backends.run("uniforms", backend, seed[5:6], offset[5:6], 16, 0), wide[5:6])


def test_no_number_comes_twice(backend):
    """No number repeats over seeds, offsets (high words too), slots and domains. A mutant that ignores one of them
    repeats at once."""
    seed = torch.tensor([0, 1, 2**32, -1]).repeat_interleave(4)
    offset = torch.tensor([0, 1, 2**32, 2**40]).repeat(4)
    every = torch.cat([backends.run("uniforms", backend, seed, offset, 50, d) for d in range(4)]).flatten()
    assert len(every.unique()) == 4 * 16 * 50


def test_bits_are_even(backend):
    """Each of the 53 bits is set half the time. 5 sigma of 200,000 draws detect a bias of 0.6%."""
    u = backends.run("uniforms", backend, torch.arange(20_000), torch.zeros(20_000, dtype=torch.int64), 10, 1).flatten()
    bits = (u * 2.0**53).long()
    for b in range(53):
        share = ((bits >> b) & 1).double().mean().item()
        assert abs(share - 0.5) < 5 * 0.5 / len(u) ** 0.5, f"bit {b}: {share}"


@pytest.mark.parametrize("B, n", [(0, 3), (3, 0), (1, 1)])
def test_empty(backend, B, n):
    assert backends.run(
        "uniforms", backend, torch.zeros(B, dtype=torch.int64), torch.zeros(B, dtype=torch.int64), n, 0
    ).shape == (B, n)


def test_bad_arguments(op_backend):
    uniforms = backends.call("uniforms", op_backend)
    one = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match="uniforms: seed must be int64, got float32"):
        uniforms(one.float(), one, 1, 0)
    with pytest.raises(TypeError, match="uniforms: seed must be a torch.Tensor, got int"):
        uniforms(3, one, 1, 0)
    with pytest.raises(ValueError, match=r"uniforms: offset must have shape \[B=2\], got \[3\]"):
        uniforms(one, torch.zeros(3, dtype=torch.int64), 1, 0)
    with pytest.raises(ValueError, match=r"uniforms: n must be in \[0, 2\^33\], got -1"):
        uniforms(one, one, -1, 0)
    with pytest.raises(ValueError, match="uniforms: domain must be"):
        uniforms(one, one, 1, -1)
