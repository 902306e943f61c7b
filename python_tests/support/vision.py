# SPDX-License-Identifier: Apache-2.0
"""Tiny models of the vision-language classes that the installed transformers has."""

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

V = 64
_WIDTHS = (
    "hidden_size embed_dim d_model mm_hidden_size projection_dim out_hidden_size text_hidden_size image_size".split()
)
_SMALL = {
    **dict.fromkeys(_WIDTHS, 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim"), 48),
    **dict.fromkeys(("num_hidden_layers", "depth", "num_layers", "layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "num_heads", "attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "patch_size"), 16),
    **dict.fromkeys(("n_routed_experts", "num_experts", "num_local_experts"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_experts_per_tok", "mlp_ratio"), 2),
    **{"head_dim": 8, "vocab_size": V, "text_vocab_size": V, "num_position_embeddings": 16},
}
_LARGEST = 8e6  # parameters; a model whose config has other names for sizes may be larger


def classes() -> list[str]:
    names = (n[0] if isinstance(n, tuple) else n for n in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.values())
    return sorted({name for name in names if hasattr(transformers, name)})


def _shrunk(config: dict) -> dict:
    for name, value in list(config.items()):
        if name in ("rope_scaling", "rope_parameters") and isinstance(value, dict):
            value["mrope_section"] = [2, 1, 1]  # adds up to half a head's width; for models that read it
        elif isinstance(value, dict):
            _shrunk(value)
        elif name in _SMALL and type(value) is int:
            config[name] = _SMALL[name]
        elif name == "layer_types":
            del config[name]
        elif isinstance(name, str) and name.endswith("token_id") and type(value) is int and value >= V:
            config[name] = V - 4
    return config


def tiny(name: str):
    """Make a model of a class with random weights. Raises the class's error if it cannot be made so small."""
    kind = getattr(transformers, name)
    config = kind.config_class.from_dict(_shrunk(kind.config_class().to_dict()))
    with torch.device("meta"):
        size = sum(p.numel() for p in kind(config).parameters())
    if size > _LARGEST:
        raise ValueError(f"{size / 1e6:.0f} million parameters")
    torch.manual_seed(0)
    model = kind(config).float().eval().requires_grad_(False)
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.normal_(0, 0.25)
    return model
