# SPDX-License-Identifier: Apache-2.0
"""Write what production.py needs beside the models of smollm2.py, made of their weights: heads that draft for the model
`shallow`, that model as a MiMo with a predictor, a LoRA adapter with random entries, and a pair of models whose heads
two ranks can share.

They draft badly, since nothing is trained: the set-ups are tried, not their speed.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

KEPT_HEADS, KEPT_PAIRS = 6, 2  # of 9 and 3, of 64 dimensions: two ranks have 3 and 1 each


def read(folder: Path):
    return json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")


def write(folder: Path, config: dict, weights: dict, tokenizer: Path):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file({name: x.contiguous() for name, x in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    for file in (*tokenizer.glob("*token*"), *tokenizer.glob("generation_config.json")):
        (folder / file.name).write_bytes(file.read_bytes())


def layer(weights: dict, i: int) -> dict:
    """Return the weights of one layer by their names in it."""
    begin = f"model.layers.{i}."
    return {name.removeprefix(begin): x.clone() for name, x in weights.items() if name.startswith(begin)}


def joined(*parts: float):
    """Return the matrix that adds its inputs, each times a number."""
    return torch.cat([x * torch.eye(576, dtype=torch.bfloat16) for x in parts], 1)


def size(x):
    """Return the root mean square of a row, averaged over the rows: about what a norm divides by."""
    return x.float().square().mean(-1).sqrt().mean()


def eagle(config: dict, weights: dict):
    """The first two layers on the embedding, with the target's output head: vLLM's Llama head takes no other.

    An EAGLE head lacks the first and the last norm. The first one's weights are multiplied into the next matrix, with
    one size for all rows.
    """
    made = {f"layers.{i}.{name}": x for i in (0, 1) for name, x in layer(weights, i).items()}
    begin = made.pop("layers.0.input_layernorm.weight") / size(weights["model.embed_tokens.weight"])
    for name in ("q", "k", "v"):
        made[f"layers.0.self_attn.{name}_proj.weight"] *= begin
    made |= {"fc.weight": joined(1, 0)}
    return config | {"num_hidden_layers": 2}, made


def eagle3(config: dict, weights: dict):
    """A layer that attends to the embedding and to a hidden state. It has no token's own embedding in its output."""
    one = layer(weights, 3)
    for name in ("q", "k", "v"):
        x = one[f"self_attn.{name}_proj.weight"]
        one[f"self_attn.{name}_proj.weight"] = torch.cat([x, x], 1)
    one = {f"midlayer.{name}": x for name, x in one.items()}
    one["midlayer.hidden_norm.weight"] = weights["model.norm.weight"].clone()
    one |= {"fc.weight": joined(0, 0, 1), "norm.weight": weights["model.norm.weight"].clone()}
    made = {"num_hidden_layers": 1, "architectures": ["LlamaForCausalLMEagle3"]}
    return config | made | {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}, one


def medusa(config: dict, weights: dict):
    """Three heads that repeat the last token."""
    heads = {f"blocks.{i}.layers.0.weight": torch.zeros(576, 576, dtype=torch.bfloat16) for i in range(3)}
    heads |= {f"lm_heads.{i}.weight": weights["model.embed_tokens.weight"].clone() for i in range(3)}
    made = {"model_type": "medusa", "architectures": ["MedusaModel"], "hidden_size": 576, "num_heads": 3}
    return made | {"num_hidden_layers": 1, "vocab_size": config["vocab_size"], "dtype": "bfloat16"}, heads


def mimo(config: dict, weights: dict):
    """The target itself as a MiMo (a Llama whose q, k and v have a bias, here 0), with a predictor of its
    first layer."""
    weights = dict(weights)
    predictor = {f"model.mtp_layers.0.{name}": x for name, x in layer(weights, 0).items()}
    predictor["model.mtp_layers.0.final_layernorm.weight"] = weights["model.norm.weight"].clone()
    for name in ("token_layernorm", "hidden_layernorm"):
        predictor[f"model.mtp_layers.0.{name}.weight"] = torch.ones(576, dtype=torch.bfloat16)
    predictor["model.mtp_layers.0.input_proj.weight"] = joined(0, float(size(weights["model.embed_tokens.weight"])))
    weights |= predictor
    for name in [x for x in weights if x.split(".")[-2] in ("q_proj", "k_proj", "v_proj")]:
        weights[name.replace(".weight", ".bias")] = torch.zeros(weights[name].size(0), dtype=torch.bfloat16)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    made = {"model_type": "qwen2", "architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    return config | made | {"use_sliding_window": False, "tie_word_embeddings": False}, weights


def even(config: dict, weights: dict):
    """The model without its last heads, so that two ranks can share them."""
    kept = {}
    for name, x in weights.items():
        part = name.split(".")[-2]
        if part == "q_proj":
            x = x[: KEPT_HEADS * 64]
        elif part in ("k_proj", "v_proj"):
            x = x[: KEPT_PAIRS * 64]
        elif part == "o_proj":
            x = x[:, : KEPT_HEADS * 64]
        kept[name] = x.clone()
    return config | {"num_attention_heads": KEPT_HEADS, "num_key_value_heads": KEPT_PAIRS}, kept


def adapter(folder: Path, weights: dict):
    """A LoRA adapter with random entries, large enough to change the text."""
    torch.manual_seed(0)
    rank, entries = 8, {}
    for name, x in weights.items():
        if name.split(".")[-2] in ("q_proj", "v_proj"):
            at = f"base_model.model.{name.removesuffix('.weight')}"
            entries[f"{at}.lora_A.weight"] = torch.randn(rank, x.size(1)) * 0.05
            entries[f"{at}.lora_B.weight"] = torch.randn(x.size(0), rank) * 0.05
    folder.mkdir(parents=True, exist_ok=True)
    made = {"peft_type": "LORA", "r": rank, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(made | {"task_type": "CAUSAL_LM"}))
    save_file(entries, folder / "adapter_model.safetensors")


def make(models: Path) -> Path:
    """Write all of these to models/production, if they are not there."""
    to, target = models / "production", models / "shallow"
    if not (to / "adapter").exists():
        for form in (eagle, eagle3, medusa, mimo, even):
            write(to / form.__name__, *form(*read(target)), target)
        write(to / "even_draft", *even(*read(models / "shallower")), target)
        adapter(to / "adapter", read(target)[1])
    return to
