# SPDX-License-Identifier: Apache-2.0
"""Checks of a transformers model's config and parts. probe.py tests its behaviour, by passes."""

from transformers import masking_utils

__all__ = ["check_model"]


def check_model(model) -> None:
    """Refuse a model whose config already shows that the loop's cache and mask do not fit it.

    Raises:
        ValueError: it does not fit; the text names what was wanted and what was found.
    """
    name = type(model).__name__
    for part in ("config", "get_input_embeddings", "forward"):
        if not hasattr(model, part):
            raise ValueError(f"HFModel: model must be a transformers causal LM, got {name} without {part}")
    config = model.config.get_text_config()
    if not getattr(config, "num_hidden_layers", None):
        raise ValueError(f"HFModel: {name} must have a config with num_hidden_layers, got none")
    devices = {str(weight.device) for weight in model.parameters()}
    if len(devices) > 1 or "meta" in devices:
        raise ValueError(f"HFModel: {name} must lie on one device, got {', '.join(sorted(devices))}")
    if not model.dtype.is_floating_point:
        raise ValueError(f"HFModel: {name} must have a floating-point dtype, got {model.dtype}")
    _check_layers(config, name)
    _check_attention(config, name)


def _check_layers(config, name: str) -> None:
    """Refuse layers that keep less than the whole sequence: they need another kind of cache."""
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    kept = sorted(kinds - {"full_attention"}) if kinds else [f"sliding_window={window}"] if window else []
    if kept:
        raise ValueError(f"HFModel: {name} must have full attention in every layer, got {', '.join(kept)}")


def _check_attention(config, name: str) -> None:
    """Refuse attention that does not take the loop's additive mask [n, 1, T, S]."""
    implementation = getattr(config, "_attn_implementation", None)
    if implementation is None:
        return
    dense = (masking_utils.sdpa_mask, masking_utils.eager_mask)
    mask = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS.get(implementation)
    if "paged" in implementation or (mask is not None and mask not in dense):
        raise ValueError(
            f"HFModel: attn_implementation of {name} must take a mask [n, 1, T, S], as 'sdpa' and 'eager' do, got "
            f"{implementation!r}: call model.set_attn_implementation('sdpa') first"
        )
