# SPDX-License-Identifier: Apache-2.0
"""Tiny random models of the causal LM classes that the installed transformers has."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from specdec_kernels.decode import adapt

VOCABULARY = 64
# size -> the names of attributes that get this size in a config that has them
SIZES = {
    64: "vocab_size encoder_hash_byte_group_vocab text_vocab_size padded_vocab_size vocab_size_per_layer_input",
    256: "max_position_embeddings n_positions max_target_positions max_sequence_length n_ctx",
    32: "hidden_size n_embd d_model embedding_size attention_hidden_size emb_dim embed_dim width lru_width dim_model",
    48: "intermediate_size n_inner ffn_dim d_ff decoder_ffn_dim encoder_ffn_dim d_inner ffn_hidden_size dense_ffn"
    " dim_ff shared_intermediate_size shared_expert_intermediate_size intermediate_size_mlp dense_intermediate_size"
    " feed_forward_proj_dim",
    16: "moe_intermediate_size q_lora_rank kv_lora_rank expert_ffn_hidden_size hidden_size_per_layer_input"
    " moe_ffn_hidden_size latent_size",
    2: "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_encoder_layers"
    " num_decoder_layers num_key_value_heads n_kv_heads num_experts_per_tok moe_topk top_k_experts moe_top_k topk"
    " num_kv_heads",
    4: "num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads"
    " num_local_experts num_experts n_routed_experts moe_num_experts num_encoder_attention_heads"
    " num_decoder_attention_heads",
    8: "sliding_window head_dim attention_head_dim qk_nope_head_dim qk_rope_head_dim v_head_dim d_kv d_head dim_head"
    " rotary_dim global_head_dim attention_head_size swa_head_dim swa_v_head_dim",
    1: "n_group topk_group n_groups num_codebooks",
}
SMALL = {name: size for size, names in SIZES.items() for name in names.split()}
# Latent attention has as many key heads as query heads.
MLA = (
    "axk1 axk2 bailing_hybrid deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa kimi_linear minicpm3 youtu"
)
# Further values for single classes.
SPECIAL: dict[str, dict] = {
    **{name: dict(num_key_value_heads=4) for name in MLA.split()},
    "dots1": dict(n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2),
    "lfm2_moe": dict(layer_types=["full_attention"] * 2),
    "longcat_flash": dict(num_key_value_heads=4, qk_head_dim=16),
    "granitemoehybrid": dict(mamba_n_heads=8, mamba_d_head=8, layer_types=["linear_attention", "full_attention"]),
    "reformer": dict(axial_pos_embds=False, attn_layers=["local", "lsh"]),
    "deepseek_v2": dict(num_key_value_heads=4, num_experts_per_tok=2),
    "ernie4_5_moe": dict(moe_k=2),
    "gpt_neo": dict(window_size=8),
    "nemotron": dict(num_key_value_heads=2),
    "xmod": dict(default_language="en_XX", languages=["en_XX"]),
    "bamba": dict(mamba_n_heads=8, mamba_d_head=8),
    "mamba2": dict(num_heads=8, head_dim=8),
    "zaya": dict(num_experts_per_tok=1),
    "olmo_hybrid": dict(layer_types=["linear_attention", "full_attention"]),
    "roc_bert": dict(pronunciation_vocab_size=64, shape_vocab_size=64),
}


def names():
    """Return the model types, one for each class."""
    seen = {}
    for name, made in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        seen.setdefault(made, name)
    return sorted(seen.values())


def _shrunk(values, layers=None):
    """Shrink the sizes of a config and of its nested configs. Lists with one entry per layer are cut."""
    if not all(isinstance(name, str) for name in values):  # a dict by layer: the first two stay
        return {i: value for i, value in values.items() if str(i) in "01"}
    out = {}
    layers = layers or next((values[k] for k in ("num_hidden_layers", "n_layer", "num_layers") if k in values), None)
    for name, value in values.items():
        if isinstance(value, dict):
            value = _shrunk(value, None if "num_hidden_layers" in value else layers)
        elif name.endswith(("_token_id", "_token_index")) and isinstance(value, int):
            value = min(value, VOCABULARY - 1)
        elif name == "head_dim" and value is None:
            value = SMALL[name]
        elif name in SMALL and isinstance(value, int) and not isinstance(value, bool):
            value = SMALL[name]
        elif isinstance(value, list) and len(value) == layers:
            value = (list(dict.fromkeys(value)) + value)[:2] if isinstance(value[0], str) else value[:2]
        out[name] = value
    return out


def config(name, full_attention=False, **more):
    """Return a small config. full_attention: in every layer, if the config has that choice."""
    cls = type(AutoConfig.for_model(name))
    values = _shrunk(cls().to_dict())
    for key in ("architectures", "transformers_version", "dtype", "model_type"):
        values.pop(key, None)
    every = {"is_decoder": True}
    if full_attention:
        # layer_types decides: a window left in the config then applies to no layer
        named = values.get("layer_types") is not None
        every |= dict(layer_types=["full_attention"] * 2) if named else dict(sliding_window=None)
    values |= {key: value for key, value in every.items() if key in values}
    return cls(**{**values, **SPECIAL.get(name, {}), **more})


def build(name, seed=0, **more):
    """Make a model with weights large enough that its passes distinguish positions and keys."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config(name, **more)).float().eval().requires_grad_(False)
    for weight in model.parameters():
        if weight.dim() >= 2:
            weight.normal_(0, 1.2 / weight.shape[-1] ** 0.5)
    model.generation_config = GenerationConfig(pad_token_id=0)
    return model


def outcome(name, **more):
    """Return (kind, error text, model, served model, options), where kind is "unbuilt", "refused" or "served".

    If a class is refused for the windows of its layers, it is tried again without windows, if its config allows that.
    """
    try:
        model = build(name, **more)
        plain(model, [1, 2, 3], 2)
    except Exception as error:  # a class of transformers that this recipe cannot build
        return "unbuilt", f"{type(error).__name__}: {str(error).strip()[:200]}", None, None, more
    try:
        return "served", "", model, adapt(model), more
    except ValueError as error:
        if "must have full attention in every layer" in str(error) and not more:
            again = outcome(name, full_attention=True)
            if again[0] == "served":
                return again
        return "refused", str(error), model, None, more


def plain(model, prompt, tokens):
    """Return the tokens of transformers' own generate."""
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False)
    return out[0, len(prompt) :].tolist()
