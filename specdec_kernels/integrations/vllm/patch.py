# SPDX-License-Identifier: Apache-2.0
"""Replacement of vLLM's functions by the plugin's, in two parts.

The modules of V1's and V2's rejection samplers are imported at once, since they are small. The runner and the drafter
are looked up when the first rejection sampler is made: by then its process has imported them, and other processes need
not.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

import specdec_kernels
from specdec_kernels.integrations.vllm import (
    draft,
    draft_v2,
    grammar,
    known,
    layer_draft,
    metrics,
    processors,
    race,
    sampling_mask,
    verify,
    verify_v2,
    views_v2,
)
from specdec_kernels.integrations.vllm.fallback import log
from specdec_kernels.integrations.vllm.method import METHODS, method, races


def every() -> None:
    """Patch vLLM in this process, unless SPECDEC_VLLM_METHOD has an unknown value."""
    if method() not in METHODS:
        text = "specdec_kernels %s: SPECDEC_VLLM_METHOD=%r is not race: vLLM is not patched"
        log.warning(text, specdec_kernels.__version__, method())
        return
    samplers()
    stats()
    models()


def samplers() -> None:
    """Make vLLM's rejection samplers verify by ``verify_chain``."""
    v1, params, procs = (_imported(name) for name in (known.SAMPLER, known.PARAMS, known.PROCESSORS))
    if v1 and params and procs and _may_patch({known.SAMPLER: v1, known.PARAMS: params, known.PROCESSORS: procs}):
        wrap(params, "SamplingParams._validate_spec_decode", processors.validate_spec_decode)
        wrap(procs, "build_logitsprocs", _build_logitsprocs)
        runner: Any = sys.modules.get(known.RUNNER)
        if runner:  # it has imported the function by name, before it was replaced
            runner.build_logitsprocs = procs.build_logitsprocs
        wrap(v1, "RejectionSampler.apply_logits_processors", processors.apply_logits_processors)
        wrap(v1, "RejectionSampler.__init__", _made)
        wrap(v1, "RejectionSampler.forward", verify.forward)
        wrap(v1, "rejection_sample", verify.rejection_sample)
        wrap(v1, "expand_batch_to_tokens", verify.expand_batch_to_tokens)
    triton = v1 and _imported("vllm.triton_utils")
    v2 = triton and triton.HAS_TRITON and _imported(known.SAMPLER_V2)
    if v2 and _may_patch({known.SAMPLER_V2: v2}):
        wrap(v2, "RejectionSampler.__init__", _made_v2)
        wrap(v2, "RejectionSampler._verify", verify_v2.verify)
        wrap(v2, "rejection_sample", verify_v2.rejection_sample)
    words = v2 and _imported(known.BAD_WORDS_V2)
    if words and _may_patch({known.BAD_WORDS_V2: words}):
        wrap(words, "BadWordsState.add_request", views_v2.bad_words_added)
    output = v2 and _imported(known.OUTPUT_V2)
    if output and _may_patch({known.OUTPUT_V2: output}):
        wrap(output, "SamplingMaskTensors.from_logits", sampling_mask.from_logits)


def stats() -> None:
    """Make vLLM's metrics and log show what the plugin does, and its scheduler refuse what a race cannot serve."""
    scheduler, loggers = (_imported(name) for name in (known.SCHEDULER, known.LOGGERS))
    if scheduler and loggers and _may_patch({known.SCHEDULER: scheduler, known.LOGGERS: loggers}):
        metrics.declare(loggers.SchedulerStats)
        wrap(scheduler, "Scheduler.__init__", race.made_scheduler)
        wrap(scheduler, "ModelRunnerOutput.__init__", metrics.made_output)
        wrap(scheduler, "Scheduler.update_from_output", metrics.update_from_output)
        wrap(loggers, "PrometheusStatLogger.__init__", metrics.made_prometheus)
        wrap(loggers, "PrometheusStatLogger.record", metrics.record_prometheus)
        wrap(loggers, "LoggingStatLogger.record", metrics.record_log)
        wrap(loggers, "LoggingStatLogger.log", metrics.write_log)


def models() -> None:
    """Make vLLM know the architecture of the demo's draft."""
    if registry := _imported(known.MODELS):
        layer_draft.register(registry.ModelRegistry)


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        log.warning("specdec_kernels %s: vLLM is not patched: %s", specdec_kernels.__version__, error)
        return None


def _made(upstream: Callable, self: Any, sampler: Any, spec_config: Any = None, device: Any = None) -> None:
    """Replacement of ``RejectionSampler.__init__``: patch V1's runner and drafter too.

    The drafter then draws by ``sample``. By now vLLM's logging is set up, and this process has imported both modules.
    """
    upstream(self, sampler, spec_config, device)
    verify.made(self, spec_config)
    if races():
        race.made(self)
    _runner()
    _say_so()


def _build_logitsprocs(upstream: Callable, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
    """Replacement of ``build_logitsprocs``, which V1's runner calls: without speculation a race patches that runner."""
    if races() and not vllm_config.speculative_config:
        _runner()
        _say_so()
    return processors.build_logitsprocs(upstream, vllm_config, *args, **kwargs)


def _runner() -> None:
    """Patch V1's runner and drafter, if this process has imported them."""
    modules = {name: sys.modules[name] for name in (known.RUNNER, known.PROPOSER) if name in sys.modules}
    if len(modules) == 2 and _may_patch(modules):
        wrap(modules[known.RUNNER], "GPUModelRunner._sample", draft.runner_sample)
        wrap(modules[known.RUNNER], "apply_grammar_bitmask", grammar.apply_grammar_bitmask)
        wrap(modules[known.RUNNER], "GPUModelRunner._get_spec_decode_draft_probs", draft.draft_rows)
        wrap(modules[known.PROPOSER], "SpecDecodeBaseProposer.propose", draft.propose)
        wrap(modules[known.PROPOSER], "SpecDecodeBaseProposer.set_inputs_first_pass", draft.set_inputs_first_pass)
        wrap(modules[known.PROPOSER], "SpecDecodeBaseProposer._sample_from_logits", draft.sample_from_logits)


def _made_v2(upstream: Callable, self: Any, *args: Any, **kwargs: Any) -> None:
    """Replacement of V2's ``RejectionSampler.__init__``: patch V2's runner, and its drafter if the runner is patched.

    Without the runner's part, verification would not know the filters that drafts were drawn with.
    """
    upstream(self, *args, **kwargs)
    draft_v2.made(self)
    runner, speculator = (sys.modules.get(name) for name in (known.RUNNER_V2, known.SPECULATOR_V2))
    if runner and _may_patch({known.RUNNER_V2: runner}):
        wrap(runner, "GPUModelRunner.sample", verify_v2.runner_sample)
    if hasattr(runner, "_specdec_kernels") and speculator and _may_patch({known.SPECULATOR_V2: speculator}):
        wrap(speculator, "DraftModelSpeculator._copy_request_inputs", draft_v2.copy_request_inputs)
        wrap(speculator, "DraftModelSpeculator.sample_draft", draft_v2.sample_draft)
    _say_so()


def _say_so() -> None:
    ours = [name for name in known.PARAMETERS if hasattr(_function(*name), "specdec_kernels")]
    named = ", ".join(name for _, name in ours)
    log.info("specdec_kernels %s verifies for vLLM: %s", specdec_kernels.__version__, named)


def wrap(module: Any, name: str, ours: Callable) -> None:
    """Replace upstream(...) by ours(upstream, ...)."""
    holder, last, upstream = known.find(module, name)

    @functools.wraps(upstream)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return ours(upstream, *args, **kwargs)

    replaced.specdec_kernels = specdec_kernels.__version__  # type: ignore[attr-defined]
    setattr(holder, last, staticmethod(replaced) if inspect.ismethod(upstream) else replaced)  # bound: a classmethod


def _function(module: str, name: str) -> Any:
    return known.find(sys.modules[module], name)[2] if module in sys.modules else None


def _may_patch(modules: dict[str, Any]) -> bool:
    """Return whether these modules are as expected and not patched yet; mark them as patched if so."""
    if all(hasattr(module, "_specdec_kernels") for module in modules.values()):
        return False
    version = sys.modules["vllm"].__version__
    if found := known.mismatches(modules, version):
        names, ours = ", ".join(modules), specdec_kernels.__version__
        log.warning("specdec_kernels %s: not patched: %s: %s", ours, names, "; ".join(found))
        return False
    for module in modules.values():
        module._specdec_kernels = specdec_kernels.__version__
    return True
