# SPDX-License-Identifier: Apache-2.0
"""The sampling mask of vLLM's V2 model runner: of each emitted token, the ids that its row kept."""

import os
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from test_vllm_v2 import run_python  # noqa: F401  # a fixture

from specdec_kernels.integrations.vllm import sampling_mask

MAX_COMPACT_SUPPORT = 2048  # as in vLLM's module, beside the class


class SamplingMaskTensors(NamedTuple):
    """vLLM's, by its fields."""

    token_ids: torch.Tensor
    packed_mask: torch.Tensor
    counts: torch.Tensor
    vocab_size: int
    rows_per_request: int = 1

    @classmethod
    def from_logits(cls, *args):
        raise AssertionError("vLLM's own function was called")


def step(V, K, seed=0):
    """Rows that filters have cut, of requests with up to K drafts; how many tokens each emitted."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, K + 1, (9,), generator=generator)
    cu = torch.cat([torch.zeros(1), (lengths + 1).cumsum(0)]).to(torch.int32)
    rows = torch.randn(int(cu[-1]), V, generator=generator)
    keep = torch.rand(len(rows), 1, generator=generator)
    rows = rows.where(torch.rand(rows.shape, generator=generator) < keep, -torch.inf)
    rows[torch.arange(len(rows)), torch.randint(V, (len(rows),), generator=generator)] = 1.0
    sampled = (torch.rand(9, generator=generator) * (lengths + 1)).to(torch.int32) + 1
    return rows, cu, sampled


def kept(mask, b, i):
    """The ids that request b's row i kept, as vLLM reads a mask; and by its bits."""
    row = b * mask.rows_per_request + i
    n = int(mask.counts[row])
    bits = np.unpackbits(mask.packed_mask[row].numpy(), count=mask.vocab_size, bitorder="little")
    ids = np.flatnonzero(bits).tolist()
    return mask.token_ids[row, :n].tolist() if n <= mask.token_ids.size(1) else ids, ids


@pytest.mark.parametrize("V", [1, 8, 37, 1030])
@pytest.mark.parametrize("most", [0, 5, 1 << 20])
def test_the_ids_of_every_emitted_token(V, most):
    rows, cu, sampled = step(V, 3)
    mask = sampling_mask.from_logits(SamplingMaskTensors.from_logits, rows, cu, sampled, most, 4)
    assert isinstance(mask, SamplingMaskTensors) and mask[3:] == (V, 4)
    assert mask.token_ids.shape == (36, min(most, V)) and mask.packed_mask.shape == (36, -(-V // 8))
    assert mask.token_ids.dtype == mask.counts.dtype == torch.int32 and mask.packed_mask.dtype == torch.uint8
    for b, n in enumerate(sampled.tolist()):
        for i in range(4):
            ids = rows[cu[b] + i].isfinite().nonzero()[:, 0].tolist() if i < n else []
            assert kept(mask, b, i) == (ids, ids), (b, i)


VLLM = os.environ.get("SPECDEC_TEST_VLLM")


@pytest.mark.thorough
@pytest.mark.skipif(not VLLM, reason="SPECDEC_TEST_VLLM names no environment with vLLM: make test-vllm")
@pytest.mark.parametrize("most", [3, 64])
def test_beside_vllms_own(most, run_python):  # noqa: F811
    """vLLM's kernel, interpreted, on the same rows: what it hands to its scheduler is the same."""
    theirs = run_python(
        "import sys, torch; sys.path[:0] = ['.', 'python_tests', 'python_tests/engines']\n"
        "import types, test_vllm_sampling_mask as t; from bench.peers import vllm; vllm.rejection_sample()\n"
        "none = types.SimpleNamespace(LogprobsTensors=object, SamplingMaskLists=object)\n"
        "sys.modules['vllm.v1.outputs'] = none  # what its scheduler is told; it imports the engine\n"
        "from vllm.v1.worker.gpu.sample.output import SamplingMaskTensors as own\n"
        f"torch.save(tuple(t.lists(own.from_logits(*t.step(37, 3), {most}, 4))), sys.argv[1])",
        SPECDEC_BENCH_VLLM=str(next((Path(VLLM) / "lib").glob("python3*/site-packages"))),
        TRITON_INTERPRET="1",
    )
    rows, cu, sampled = step(37, 3)
    mask = sampling_mask.from_logits(SamplingMaskTensors.from_logits, rows, cu, sampled, most, 4)
    assert lists(mask) == theirs


def lists(mask):
    """What a mask holds of the tokens that were emitted."""
    sampled = step(37, 3)[2].tolist()
    return tuple(kept(mask, b, i)[0] for b, n in enumerate(sampled) for i in range(n))


def test_the_class_is_found_by_its_method():
    assert sys.modules[SamplingMaskTensors.from_logits.__self__.__module__].MAX_COMPACT_SUPPORT == 2048
