# SPDX-License-Identifier: Apache-2.0
"""The modules with an engine's names import nothing of the engine and have its signatures."""

import inspect
import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from specdec_kernels.integrations import flashinfer, sglang

OUTPUTS = "predicts accept_index accept_token_num"
LINKS = "candidates retrive_index retrive_next_token retrive_next_sibling"
COINS = "uniform_samples uniform_samples_for_final_sampling target_probs draft_probs"
THRESHOLDS = "threshold_single threshold_acc deterministic"
SIGNATURES = {  # as in FlashInfer 0.7.2 and SGLang 0.5.23
    flashinfer.chain_speculative_sampling: "draft_probs draft_token_ids target_probs maybe_output_accepted_token_num "
    "maybe_output_emitted_draft_token_num deterministic generator seed offset",
    sglang.tree_speculative_sampling_target_only: f"{OUTPUTS} {LINKS} {COINS} {THRESHOLDS}",
    sglang.verify_tree_greedy: f"{OUTPUTS} {LINKS} target_predict",
    sglang.chain_speculative_sampling_triton: f"{OUTPUTS} {LINKS} {COINS} {THRESHOLDS} block_verification",
    sglang.chain_block_speculative_sampling_triton: f"{OUTPUTS} {LINKS} {COINS} {THRESHOLDS}",
    sglang.BlockwiseRejection.execute: "candidates target_logits draft_logits target_temperatures draft_temperatures "
    "noise cutoff_verify_lens",
    sglang.make_rejection_noise: "random_seed device",
    sglang.build_tree_kernel_efficient: "parent_list selected_index verified_seq_len tree_mask positions retrive_index "
    "retrive_next_token retrive_next_sibling topk depth draft_token_num tree_mask_mode",
}


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda function: function.__qualname__)
def test_signatures(function):
    assert " ".join(inspect.signature(function).parameters) == SIGNATURES[function]


def test_nothing_of_an_engine_is_imported():
    code = (
        "import sys, specdec_kernels, specdec_kernels.integrations as i, specdec_kernels.integrations.vllm\n"
        "assert 'specdec_kernels.integrations.sglang' not in sys.modules\n"
        "import specdec_kernels.integrations.sglang, specdec_kernels.integrations.flashinfer\n"
        "import specdec_kernels.integrations.transformers\n"
        "assert not {'sglang', 'sgl_kernel', 'flashinfer', 'vllm', 'transformers'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_call_looks_at_a_value():
    """torch.compile and CUDA graphs require that a call reads no values. These calls work on fake tensors, which have
    none."""
    B, N, S, V = 3, 6, 4, 8
    with FakeTensorMode():
        ids = lambda *shape: torch.empty(shape, dtype=torch.int64)
        out = lambda n, s: (ids(B * n).int(), ids(B, s).int(), ids(B).int())
        links, coins = [ids(B, N) for _ in range(4)], [torch.empty(B, N), torch.empty(B)]
        sglang.tree_speculative_sampling_target_only(*out(N, S), *links, *coins, torch.empty(B, N, V), None, 0.5, 0.5)
        sglang.verify_tree_greedy(*out(N, S), *links, ids(B, N))
        chain = [torch.empty(B, S), torch.empty(B), torch.empty(B, S, V), torch.empty(B, S - 1, V)]
        for block in (False, True):
            sglang.chain_speculative_sampling_triton(
                *out(S, S), *[ids(B, S)] * 2, None, None, *chain, block_verification=block
            )
        accepted, bonus, cut = sglang.BlockwiseRejection.execute(
            candidates=ids(B, S),
            target_logits=torch.empty(B * S, V),
            draft_logits=torch.empty(B, S, V),
            target_temperatures=torch.empty(B, 1),
            draft_temperatures=torch.empty(B, 1),
            noise=sglang.RejectionNoise(1, ids(1)),
            cutoff_verify_lens=ids(B),
        )
        assert accepted.shape == bonus.shape == cut.shape == (B,)
        for mode, size in enumerate((torch.bool, torch.bool, torch.uint8)):
            mask = torch.empty(1000, dtype=size)
            buffers = (mask, ids(B * N), *(ids(B, N) for _ in range(3)))
            sglang.build_tree_kernel_efficient(ids(B, 5), ids(B, N - 1), ids(B), *buffers, 2, 3, N, mode)
        tokens, *_ = flashinfer.chain_speculative_sampling(
            torch.empty(B, S, V), ids(B, S), torch.empty(B, S + 1, V), seed=ids(B), offset=ids(B)
        )
        assert tokens.shape == (B, S + 1) and tokens.dtype == torch.int32
