# SPDX-License-Identifier: Apache-2.0
"""The modules that carry an engine's names: nothing of the engine is imported, signatures are theirs, examples run."""

import doctest
import inspect
import subprocess
import sys

import pytest

from specdec_kernels.integrations import flashinfer, sglang

OUTPUTS = "predicts accept_index accept_token_num"
LINKS = "candidates retrive_index retrive_next_token retrive_next_sibling"
COINS = "uniform_samples uniform_samples_for_final_sampling target_probs draft_probs"
THRESHOLDS = "threshold_single threshold_acc deterministic"
SIGNATURES = {  # as FlashInfer 0.7.2 and SGLang 0.5.23 have them
    flashinfer.chain_speculative_sampling: "draft_probs draft_token_ids target_probs maybe_output_accepted_token_num "
    "maybe_output_emitted_draft_token_num deterministic generator seed offset",
    sglang.tree_speculative_sampling_target_only: f"{OUTPUTS} {LINKS} {COINS} {THRESHOLDS}",
    sglang.verify_tree_greedy: f"{OUTPUTS} {LINKS} target_predict",
    sglang.chain_speculative_sampling_triton: f"{OUTPUTS} {LINKS} {COINS} {THRESHOLDS} block_verification",
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


def test_examples_print_what_they_say():
    [test] = doctest.DocTestFinder(recurse=False).find(
        flashinfer.chain_speculative_sampling, globs=vars(flashinfer) | {}
    )
    assert test.examples
    assert doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test).failed == 0
