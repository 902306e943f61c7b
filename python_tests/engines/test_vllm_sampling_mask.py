# SPDX-License-Identifier: Apache-2.0
"""The sampling mask of vLLM's V2 model runner: for each emitted token, the ids that its row kept."""

import os
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from support.vllm_sampling_masks import kept, lists, step

from specdec_kernels.integrations.vllm import sampling_mask

MAX_COMPACT_SUPPORT = 2048  # as in vLLM's module, beside the class


class SamplingMaskTensors(NamedTuple):
    """vLLM's class, with the same fields."""

    token_ids: torch.Tensor
    packed_mask: torch.Tensor
    counts: torch.Tensor
    vocab_size: int
    rows_per_request: int = 1

    @classmethod
    def from_logits(cls, *args):
        raise AssertionError("vLLM's own function was called")


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
def test_beside_vllms_own(most, run_python):
    """vLLM's kernel, interpreted on the same rows, passes the same ids to its scheduler."""
    theirs = run_python(
        "import sys, torch; sys.path[:0] = ['.', 'python_tests']\n"
        "import types; from support import vllm_sampling_masks as t; from bench.peers import vllm\n"
        "vllm.rejection_sample()\n"
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


def test_the_class_is_found_by_its_method():
    assert sys.modules[SamplingMaskTensors.from_logits.__self__.__module__].MAX_COMPACT_SUPPORT == 2048
