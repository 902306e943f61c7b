# SPDX-License-Identifier: Apache-2.0
"""A LayerDraft (decode/models/layer_draft.py) as a folder that vLLM loads as an EAGLE draft.

    layer_draft.write("demo/draft", "models/target", "models/trained")

    vllm serve models/target --speculative-config '{"method": "eagle", "model": "models/trained", ...}'

With the plugin on, vLLM knows the folder's architecture (layer_draft_model.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

ARCHITECTURE = "EagleSpecdecLayerDraft"  # "Eagle" first: vLLM adds it to other names
MODEL = f"specdec_kernels.integrations.vllm.layer_draft_model:{ARCHITECTURE}"


def register(registry: Any) -> None:
    """Add the architecture to vLLM's ModelRegistry. The class is imported when a model of it is loaded."""
    registry.register_model(ARCHITECTURE, MODEL)


def write(draft: str | Path, target: str | Path, folder: str | Path) -> None:
    """Write config.json and model.safetensors of a draft for vLLM, in float32.

    Args:
        draft: a folder written by LayerDraft.save.
        target: a Llama's folder, as transformers saves it: its config, its embedding or output rows.
        folder: is made where it is missing.

    Raises:
        ValueError: `draft` holds no LayerDraft, or one for another target.
    """
    from safetensors.torch import load_file, save_file

    from specdec_kernels.decode.models.layer_draft import dequantize_rows, is_layer_draft

    draft, target, folder = Path(draft), Path(target), Path(folder)
    if not is_layer_draft(draft):
        raise ValueError(f"layer_draft.write: draft must be a folder written by LayerDraft.save, got {draft}")
    given, config = (json.loads((x / "config.json").read_text()) for x in (draft, target))
    for key in ("vocab_size", "hidden_size"):
        if given[key] != config[key]:
            raise ValueError(f"layer_draft.write: {draft} is for a target with {key}={given[key]}, got {config[key]}")
    saved = load_file(draft / "draft.safetensors")
    ids = saved.pop("head_ids").to(torch.int64)
    tensors = {"head_ids": ids, "lm_head.weight": output_rows(target)[ids].float().contiguous()}
    for name, x in saved.items():
        if not name.endswith("_scale"):
            whole = dequantize_rows(x, saved[f"{name}_scale"]) if x.dtype == torch.int8 else x.float()
            tensors[f"model.{name}"] = whole.contiguous()
    changed = {"architectures": [ARCHITECTURE], "num_hidden_layers": len(given["layers"]), "dtype": "float32"}
    changed |= {"draft_vocab_size": len(ids), "reads_states": given.get("reads_states", False)}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config | changed, indent=2) + "\n")


def output_rows(target: Path) -> torch.Tensor:
    """Return the output rows [V, d] of the model in a folder: those of the embedding if it has no others."""
    from safetensors import safe_open

    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        for path in sorted(target.glob("*.safetensors")):
            with safe_open(path, "pt") as file:
                if name in file.keys():
                    return file.get_tensor(name)
    raise ValueError(f"layer_draft.write: target must hold lm_head.weight or model.embed_tokens.weight, got {target}")
