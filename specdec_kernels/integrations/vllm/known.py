# SPDX-License-Identifier: Apache-2.0
"""The vLLM versions that this plugin supports, and the parameters of the functions that it replaces."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

VERSIONS = ("0.32", "0.33")  # tests run with the first; the second was only checked by reading its code

SAMPLER = "vllm.v1.sample.rejection_sampler"
PARAMS = "vllm.sampling_params"
MODELS = "vllm.model_executor.models.registry"
PROCESSORS = "vllm.v1.sample.logits_processor"
PROPOSER = "vllm.v1.spec_decode.llm_base_proposer"
RUNNER = "vllm.v1.worker.gpu_model_runner"
SAMPLER_V2 = "vllm.v1.worker.gpu.spec_decode.rejection_sampler"  # of the V2 model runner
SPECULATOR_V2 = "vllm.v1.worker.gpu.spec_decode.speculator"
RUNNER_V2 = "vllm.v1.worker.gpu.model_runner"
SCHEDULER = "vllm.v1.core.sched.scheduler"
LOGGERS = "vllm.v1.metrics.loggers"
BAD_WORDS_V2 = "vllm.v1.worker.gpu.sample.bad_words"
OUTPUT_V2 = "vllm.v1.worker.gpu.sample.output"

_REJECTION_SAMPLE = (
    "draft_token_ids num_draft_tokens max_spec_len cu_num_draft_tokens draft_probs target_logits bonus_token_ids "
    "sampling_metadata synthetic_mode synthetic_conditional_rates use_fp64_gumbel"
)
_FLY = " fly_window_size fly_entropy_threshold fly_entropy_top_k"
_PROPOSE = (
    "self num_speculative_tokens target_token_ids target_positions target_hidden_states next_token_ids "
    "token_indices_to_sample common_attn_metadata sampling_metadata mm_embed_inputs num_rejected_tokens_gpu "
    "slot_mappings"
)
_FIRST_PASS = (
    "self target_token_ids next_token_ids target_positions target_hidden_states token_indices_to_sample cad "
    "num_rejected_tokens_gpu"
)
_REJECTION_SAMPLE_V2 = (
    "target_logits draft_logits draft_sampled cu_num_logits pos idx_mapping expanded_idx_mapping expanded_local_pos "
    "temperature seed num_speculative_steps synthetic_conditional_rates use_fp64 use_block_verification contexts "
    "watermarking watermarking_skip_mask watermark_key"
)
_VERIFY_V2 = (
    "self logits draft_logits draft_sampled pos cu_num_logits idx_mapping idx_mapping_np expanded_idx_mapping "
    "expanded_local_pos seq_lens_upper_bound_np verify_draft_sampled"
)
_COPY_V2 = "self num_reqs idx_mapping temperature seeds dummy_run"
_DRAFT_V2 = (
    "self hidden_states sample_src_positions idx_mapping temperature seeds draft_step draft_logits spec_step_idx"
)
_SCHEDULER = (
    "self vllm_config kv_cache_config structured_output_manager block_size hash_block_size mm_registry "
    "include_finished_set log_stats"
)
_RECORD = "self scheduler_stats iteration_stats mm_cache_stats engine_idx"
# (module, function in it): the names of its parameters, one text for each known form
PARAMETERS = {
    (SAMPLER, "RejectionSampler.__init__"): ("self sampler spec_config device",),
    (SAMPLER, "RejectionSampler.forward"): ("self metadata draft_probs logits sampling_metadata",),
    (SAMPLER, "RejectionSampler.apply_logits_processors"): ("self logits sampling_metadata metadata",),
    (SAMPLER, "rejection_sample"): (_REJECTION_SAMPLE, _REJECTION_SAMPLE + _FLY),
    (PARAMS, "SamplingParams._validate_spec_decode"): ("self speculative_config",),
    (PROCESSORS, "build_logitsprocs"): ("vllm_config device is_pin_memory is_pooling_model custom_logitsprocs",),
    (SAMPLER, "expand_batch_to_tokens"): ("x cu_num_tokens num_tokens replace_from replace_to",),
    (PROPOSER, "SpecDecodeBaseProposer.propose"): (_PROPOSE,),
    (PROPOSER, "SpecDecodeBaseProposer.set_inputs_first_pass"): (_FIRST_PASS,),
    (PROPOSER, "SpecDecodeBaseProposer._sample_from_logits"): ("self logits sampling_metadata",),
    (RUNNER, "GPUModelRunner._sample"): ("self logits spec_decode_metadata",),
    (RUNNER, "apply_grammar_bitmask"): ("scheduler_output grammar_output input_batch logits",),
    (RUNNER, "GPUModelRunner._get_spec_decode_draft_probs"): ("self spec_decode_metadata",),
    (SAMPLER_V2, "RejectionSampler.__init__"): ("self sampler spec_config device watermark_key",),
    (SAMPLER_V2, "RejectionSampler._verify"): (_VERIFY_V2,),
    (SPECULATOR_V2, "DraftModelSpeculator._copy_request_inputs"): (_COPY_V2,),
    (SPECULATOR_V2, "DraftModelSpeculator.sample_draft"): (_DRAFT_V2, _DRAFT_V2 + " num_steps"),
    (RUNNER_V2, "GPUModelRunner.sample"): ("self hidden_states input_batch grammar_output",),
    (SAMPLER_V2, "rejection_sample"): (_REJECTION_SAMPLE_V2, _REJECTION_SAMPLE_V2 + _FLY),
    (SCHEDULER, "Scheduler.__init__"): (_SCHEDULER,),
    (SCHEDULER, "Scheduler.update_from_output"): ("self scheduler_output model_runner_output",),
    (LOGGERS, "PrometheusStatLogger.__init__"): ("self vllm_config engine_indexes",),
    (LOGGERS, "PrometheusStatLogger.record"): (_RECORD,),
    (LOGGERS, "LoggingStatLogger.record"): (_RECORD,),
    (LOGGERS, "LoggingStatLogger.log"): ("self",),
    (BAD_WORDS_V2, "BadWordsState.add_request"): ("self req_idx sampling_params",),
    (OUTPUT_V2, "SamplingMaskTensors.from_logits"): (
        "logits cu_num_logits num_sampled_tokens max_num_kept rows_per_request",
    ),
}


def find(module: Any, name: str) -> tuple[Any, str, Callable]:
    """Return the object that holds the function of this dotted name, the name's last part, and the function."""
    *path, last = name.split(".")
    for part in path:
        module = getattr(module, part)
    return module, last, getattr(module, last)


def mismatches(modules: dict[str, Any], version: str) -> list[str]:
    """Return why these modules of vLLM cannot be patched, one line per reason; [] if they are as expected."""
    if not version.startswith(tuple(f"{known}." for known in VERSIONS)):
        return [f"vLLM {version} is not one of {', '.join(VERSIONS)}"]
    found = []
    for (module, name), forms in PARAMETERS.items():
        if module in modules:
            try:
                function = find(modules[module], name)[2]
            except AttributeError:
                found.append(f"{module}.{name} is missing")
                continue
            came = " ".join(inspect.signature(function).parameters)
            if came not in forms:
                found.append(f"{module}.{name} takes ({came}), not ({forms[-1]})")
    return found
