# SPDX-License-Identifier: Apache-2.0
"""The machinery of the other tests: sending data to a backend's process and back, and the count of differing
requests."""

import os
from collections import Counter

import pytest
import torch
from support import cases, tally
from support.worker import Worker


@pytest.fixture(scope="module")
def other():
    return Worker("cpu elsewhere", {"SPECDEC_BACKEND": "cpu"})


def layout(x):
    return x.stride(), x.storage_offset(), x.data_ptr() % 64, x


def dies():
    os._exit(3)


def refuses(x):
    raise ValueError(f"op: x must be 1, got {x}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "x",
    [
        torch.arange(6.0).reshape(2, 3),
        torch.randn(4, 5).T,
        torch.zeros(0, 3),
        torch.ones(1, 7).expand(9, -1),
        torch.tensor(2**62),
        cases.strided(torch.randn(3, 5).bfloat16(), 3, 7),
        torch.randn(100).half()[33:40],
        torch.tensor([True, False]),
    ],
    ids=["dense", "transposed", "empty", "expanded", "scalar", "strided and shifted", "slice", "bool"],
)
def test_a_tensor_arrives_as_it_is(other, x):
    """A tensor arrives with its strides and its offset in a storage that is aligned to 64 bytes. It comes back with its
    values, dtype and strides."""
    stride, offset, alignment, back = other.call(layout, x)
    assert (stride, offset) == (x.stride(), x.storage_offset()) and (
        x.numel() == 0 or alignment == offset * x.element_size() % 64
    )
    assert torch.equal(back, x) and back.dtype == x.dtype and back.stride() == x.stride()


def test_exceptions_come_back_as_themselves(other):
    with pytest.raises(ValueError, match="^op: x must be 1, got 2$"):
        other.call(refuses, 2)
    assert other.call(abs, -3) == 3


def meets_a_gpu_error():
    raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


def test_an_error_of_a_gpu_ends_the_process():
    """After such an error all later calls would fail, and with them tests that have done nothing wrong."""
    worker = Worker("cpu elsewhere", {"SPECDEC_BACKEND": "cpu"})
    with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
        worker.call(meets_a_gpu_error)
    assert not worker.alive()


@pytest.mark.thorough
@pytest.mark.slow
def test_a_process_that_dies_says_so():
    doomed = Worker("doomed", {"SPECDEC_BACKEND": "cpu"})
    with pytest.raises(ChildProcessError, match="doomed: the worker died in dies, exit code 3"):
        doomed.call(dies)
    assert not doomed.alive()


def test_too_many_flips_are_seen(monkeypatch):
    """Too many flips fail a single comparison. They also fail a session in which each comparison alone would pass."""
    monkeypatch.setattr(tally, "compared", Counter())
    monkeypatch.setattr(tally, "flipped", Counter())
    monkeypatch.setattr(tally, "running", "cpu")
    with pytest.raises(AssertionError, match="2 flips inside the band in 9000 requests"):
        tally.record(9000, 2)
    tally.record(9000, 0)
    assert tally.over_the_cap() == []
    tally.record(100, 1)
    assert tally.over_the_cap() == ["cpu"]
