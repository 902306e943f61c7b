# SPDX-License-Identifier: Apache-2.0
"""vLLM's own V2 sampler and rejection sampler on CPU tensors, its Triton kernels interpreted.

As a program, run in vLLM's environment, it has two modes: `verify` verifies the steps in a file, without the plugin and
with it, and saves both results; `draft` draws drafts with the plugin.
"""

import sys
from types import SimpleNamespace

import torch


def prepare():
    """Import vLLM's modules, with stand-ins where they need a GPU or what Triton's interpreter lacks."""
    import triton
    import triton.language as tl
    from triton.runtime import interpreter
    from triton.runtime.interpreter import InterpreterBuilder

    hasten(interpreter, tl)
    for name, place in (("create_masked_load", 1), ("create_masked_store", 2)):
        setattr(InterpreterBuilder, name, with_bool_masks(getattr(InterpreterBuilder, name), place))
    active = SimpleNamespace(is_active=lambda: True)
    triton.backends.backends.setdefault("cpu", SimpleNamespace(driver=active, compiler=None))
    import vllm.v1.worker.gpu.buffer_utils as buffers
    from vllm.v1.sample.ops import topk_topp_sampler
    from vllm.v1.worker.gpu.sample import states
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler_utils

    states.apply_top_k_top_p = topk_topp_sampler.apply_top_k_top_p_pytorch  # vLLM's own where it has no Triton
    buffers.is_uva_available = lambda: False  # no pinned memory here: plain tensors
    rejection_sampler_utils.tldevice = SimpleNamespace(log1p=triton.jit(_log1p(tl)))


def hasten(interpreter, tl):
    """Make the interpreter patch triton.language once per launch, not for each call in it, without overflow checks.

    This halves its time.
    """
    change, every = interpreter._patch_lang, SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
    interpreter._patch_lang = lambda function: change(every)
    interpreter.InterpretedFunction.__call__ = lambda self, *args, **named: self.rewrite()(*args, **named)
    object.__setattr__(interpreter.interpreter_builder.options, "sanitize_overflow", False)


def with_bool_masks(kept, place):
    """Wrap the interpreter's masked load or store, which fails for a mask combined from a block and a number."""

    def access(self, *given):
        given[place].data = given[place].data.astype(bool)
        return kept(self, *given)

    return access


def _log1p(tl):
    def log1p(x):
        return tl.log(1.0 + x)

    log1p.__globals__["tl"] = tl
    return log1p


def sampler(requests, slots, S, V, K):
    """Return vLLM's Sampler with these requests in these of its S slots."""
    from support.vllm_v2_sampler import END, NATURAL_END, START, full
    from vllm.sampling_params import SamplingParams
    from vllm.v1.worker.gpu.sample.sampler import Sampler
    from vllm.v1.worker.gpu.states import RequestState

    device = torch.device("cpu")
    states = RequestState(S, 64, 64, K, V, device)
    reasoning = SimpleNamespace(
        reasoning_start_token_ids=START, reasoning_end_token_ids=END, natural_reasoning_end_token_ids=NATURAL_END
    )
    of = Sampler(SimpleNamespace(reasoning_config=reasoning), S, V, device, states, num_speculative_tokens=K)
    for b, request in enumerate(full(requests)):
        states.free_indices.append(int(slots[b]))
        text = request["prompt"] + request["output"]
        states.add_request(f"request {b}", len(request["prompt"]), text, len(text), 60)
        params = SamplingParams(
            **{
                name: request[name]
                for name in ("temperature", "top_k", "top_p", "min_p", "seed", "min_tokens", "thinking_token_budget")
            },
            **{f"{x}_penalty": request[f"{x}_penalty"] for x in ("repetition", "frequency", "presence")},
            logit_bias=request["logit_bias"] or None,
            allowed_token_ids=request["allowed_token_ids"] or None,
            stop_token_ids=request["stop_token_ids"],
        )
        params._bad_words_token_ids = request["bad_words"] or None
        of.add_request(int(slots[b]), params)
    states.apply_staged_writes()
    of.apply_staged_writes()
    return of


def rejection_sampler(of, K, method):
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

    config = SimpleNamespace(
        num_speculative_tokens=K, enable_adaptive_verification=False, rejection_sample_method=method
    )
    return RejectionSampler(of, config, torch.device("cpu"))


def verified(step, method):
    """Verify a step with vLLM's classes; return their sampler and the result."""
    of = sampler(step["requests"], step["slots"], len(step["slots"]) + 9, step["V"], step["K"])
    return of, rejection_sampler(of, step["K"], method)._verify(**step["args"])


def main(steps, out):
    """Verify each step by vLLM ("theirs"), then by the plugin ("mine"); save both, and the plugin's rows."""
    steps = torch.load(steps)
    prepare()
    for step in steps:
        for name in ("idx_mapping_np", "seq_lens_upper_bound_np"):
            step["args"][name] = step["args"][name].numpy()
    results = [{"theirs": verified(step, step["method"])[1]} for step in steps]
    from support.vllm_v2_sampler import full, in_runner

    from specdec_kernels.integrations import vllm as plugin
    from specdec_kernels.integrations.vllm import fallback, views_v2

    plugin.register()
    for step, result in zip(steps, results):
        args = step["args"]
        of, (rows, *mine) = in_runner(lambda step=step: verified(step, step["method"]))
        assert rows is args["logits"] and not fallback.steps
        lengths = [len(sum(request["bad_words"], [])) for request in full(step["requests"])]
        assert of.logits_processors[2].specdec_lengths[step["slots"]].tolist() == lengths
        named = ("logits", "idx_mapping_np", "idx_mapping", "cu_num_logits", "draft_sampled", "pos")
        viewed = views_v2.flat(views_v2.step(of, *(args[name] for name in named), step["K"]))
        result |= {"mine": mine, "rows": viewed._asdict()}
    torch.save([result | {"rows": plain(result["rows"])} for result in results], out)


def plain(rows):
    """Return rows as a dict of dicts, which load without this package's classes."""
    return {name: x._asdict() if hasattr(x, "_asdict") else x for name, x in rows.items()}


def drafted(step, out):
    """Draw drafts by vLLM's drafter with the plugin; save the tokens, the kept rows and the names of patches."""
    step = torch.load(step)
    prepare()
    import vllm.v1.worker.gpu.model_runner  # noqa: F401  # imported before the sampler is made, as in vLLM's worker
    from vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator import StandaloneARSpeculator

    from specdec_kernels.integrations import vllm as plugin

    plugin.register()
    S, slots = len(step["slots"]) + 9, step["slots"]
    of = sampler(step["requests"], slots, S, step["V"], step["K"])
    rejection_sampler(of, step["K"], "standard")
    drafter = object.__new__(StandaloneARSpeculator)  # without a model
    drafter.draft_watermarker = drafter.acceptance_estimator = None
    drafter.use_local_argmax_reduction = drafter.use_fp64_gumbel = False
    drafter.draft_logits = torch.full((S, step["K"], step["V"]), torch.nan)
    drafter.temperature, drafter.seeds = torch.zeros(S), torch.zeros(S, dtype=torch.int64)
    drafter.idx_mapping = torch.zeros(len(slots) + 3, dtype=torch.int32)  # three are padding
    drafter.compute_draft_logits = lambda hidden_states, spec_step_idx: hidden_states
    states = of.sampling_states
    drafter._copy_request_inputs(len(slots), slots.to(torch.int32), states.temperature.gpu, states.seeds.gpu)
    by = (drafter.idx_mapping, drafter.temperature, drafter.seeds, torch.tensor(1), drafter.draft_logits)
    tokens = drafter.sample_draft(step["rows"], step["positions"], *by)
    names = [
        name for name in ("_copy_request_inputs", "sample_draft") if hasattr(getattr(drafter, name), "specdec_kernels")
    ]
    torch.save({"tokens": tokens, "kept": drafter.draft_logits, "patched": names}, out)


if __name__ == "__main__":
    {"verify": main, "draft": drafted}[sys.argv[1]](*sys.argv[2:])
