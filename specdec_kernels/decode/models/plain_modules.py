# SPDX-License-Identifier: Apache-2.0
"""Checks that a module computes exactly what its class and weights define.

With adapters, hooks, parametrizations, quantization or patches a module computes something else than its class and
weights say. A forward pass built from the weights alone would ignore that silently. So it is built only for modules
that pass these checks.
"""

import torch
from torch import nn

__all__ = ["is_plain", "is_plain_linear", "is_plain_llama"]

_STATE_DICT_HOOKS = ("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks")
_SAVING = (*_STATE_DICT_HOOKS, "_load_state_dict_post_hooks")  # for saving and loading, never called in a forward pass
_ATTENTION = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention")
_FIXED_ROPE = ("default", "linear", "llama3", "yarn")  # types whose angles do not depend on the sequence length


def is_plain(module: nn.Module, kind: type, parameters: tuple[str, ...] = ()) -> bool:
    """Return whether `module` is exactly a `kind` with these parameters, and its calls run the class's own forward.

    So it has no hooks, nothing is overridden on the instance, and no parameter is a tensor subclass.
    """
    written = (kind.__module__, nn.Module.__module__)  # containers inherit nn.Module's forward
    if type(module) is not kind or kind.forward.__module__ not in written:
        return False
    own = vars(module)
    hooks = [name for name in own if name.endswith("_hooks") and name not in _SAVING and own[name]]
    overridden = [name for name in own if callable(getattr(kind, name, None))]
    there = {name: weight for name, weight in module._parameters.items() if weight is not None}
    return not hooks and not overridden and tuple(there) == parameters and all(map(_is_dense, there.values()))


def _is_dense(weight: torch.Tensor) -> bool:
    plain = type(weight) is nn.Parameter and type(weight.data) is torch.Tensor
    return plain and weight.is_floating_point() and weight.layout == torch.strided and not weight.is_meta


def is_plain_linear(module: nn.Module) -> bool:
    """Return whether `module` is a plain y = x W^T (+ b)."""
    names = ("weight",) if getattr(module, "bias", None) is None else ("weight", "bias")
    return is_plain(module, nn.Linear, names)


def _hooked_everywhere() -> bool:
    """Return whether hooks are registered for all modules of the process."""
    return any(value for name, value in vars(nn.modules.module).items() if _is_global_hooks(name, value))


def _is_global_hooks(name: str, value) -> bool:
    return name.startswith("_global_") and name.endswith("_hooks") and hasattr(value, "__len__")


def is_plain_llama(model: nn.Module) -> bool:
    """Return whether `model` is a transformers LlamaForCausalLM whose results follow from its weights and config alone.

    Every module must be the one that the class makes, without biases or hooks, and all weights must share one dtype and
    device.
    """
    from transformers.models.llama import modeling_llama as llama

    if type(model) is not llama.LlamaForCausalLM or _hooked_everywhere():
        return False
    expected = _llama_modules(llama, model)
    found = dict(model.named_modules(remove_duplicate=False))
    if found.keys() != expected.keys() or not all(is_plain(found[name], *expected[name]) for name in found):
        return False
    placed = {(weight.dtype, weight.device) for weight in model.parameters()}
    return len(placed) == 1 and _follows_config(model)


def _llama_modules(llama, model) -> dict[str, tuple]:
    """Return name -> (class, parameters) of every module of a LlamaForCausalLM without biases."""
    weight, linear = ("weight",), (nn.Linear, ("weight",))
    modules: dict[str, tuple] = {
        "": (llama.LlamaForCausalLM,),
        "model": (llama.LlamaModel,),
        "model.embed_tokens": (nn.Embedding, weight),
        "model.layers": (nn.ModuleList,),
        "model.norm": (llama.LlamaRMSNorm, weight),
        "model.rotary_emb": (llama.LlamaRotaryEmbedding,),
        "lm_head": linear,
    }
    layer: dict[str, tuple] = {
        "": (llama.LlamaDecoderLayer,),
        ".self_attn": (llama.LlamaAttention,),
        **{f".self_attn.{name}_proj": linear for name in "qkvo"},
        ".mlp": (llama.LlamaMLP,),
        **{f".mlp.{name}_proj": linear for name in ("gate", "up", "down")},
        ".mlp.act_fn": (type(llama.ACT2FN["silu"]),),
        ".input_layernorm": (llama.LlamaRMSNorm, weight),
        ".post_attention_layernorm": (llama.LlamaRMSNorm, weight),
    }
    for i in range(model.config.num_hidden_layers):
        modules |= {f"model.layers.{i}{name}": what for name, what in layer.items()}
    return modules


def _follows_config(model) -> bool:
    """Return whether the modules' settings equal the config's, and the config asks for nothing unsupported."""
    config, body = model.config, model.model
    rope = (config.rope_parameters or {}).get("rope_type", "default")
    norms = [body.norm, *(n for x in body.layers for n in (x.input_layernorm, x.post_attention_layernorm))]
    attentions = [x.self_attn for x in body.layers]
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    groups = config.num_attention_heads // config.num_key_value_heads
    return (
        rope in _FIXED_ROPE
        and config.hidden_act == "silu"
        and config._attn_implementation in _ATTENTION
        and body.embed_tokens.max_norm is None
        and all(norm.variance_epsilon == config.rms_norm_eps for norm in norms)
        and all(
            (a.layer_idx, a.head_dim, a.num_key_value_groups, a.scaling) == (i, head_dim, groups, head_dim**-0.5)
            for i, a in enumerate(attentions)
        )
    )
