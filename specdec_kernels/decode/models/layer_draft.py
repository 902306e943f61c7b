# SPDX-License-Identifier: Apache-2.0
"""A draft model made of a few of the target's own layers.

It has the target's frozen embedding, a few transformer layers initialised as copies of the target's, a final norm, and
the target's output rows of the R most used ids. Only the layers and the norm are trained, and the projection below. A
file holds these and the R ids, matrices in int8 with one scale per row: 7.5 MB for a target of 135M parameters.

It may also read the target's last hidden states. Then the input of its last layer at a token is the output of the
layers before, plus a projection of the state that predicted the token. For tokens that the target has not processed
yet, the draft's own state is used (Li et al. 2024, EAGLE). Without states the projection is left out.

    draft = LayerDraft.load("demo/draft", target, dtype=torch.bfloat16)
    out = draft(input_ids, cache=cache)      # out.logits [B, T, V], -inf outside the R ids
"""

import json
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from .cache_name import cache_name

__all__ = ["LayerDraft", "is_layer_draft", "quantize_rows", "dequantize_rows"]

MODEL_TYPE = "specdec_layer_draft"
STATE = "state."  # prefix of the projection's weight and bias in the file


@dataclass
class LayerDraftOutput:
    logits: torch.Tensor  # [B, T, V]
    cache: object = None


def is_layer_draft(path) -> bool:
    """Return whether `path` is a folder written by LayerDraft.save."""
    config = Path(path) / "config.json"
    return config.is_file() and json.loads(config.read_text()).get("model_type") == MODEL_TYPE


def quantize_rows(weight):
    """Quantize weight [N, K] -> (int8 [N, K], float32 scale [N]). The error is at most scale / 2."""
    weight = weight.detach().float()
    scale = weight.abs().amax(dim=1).clamp_min(1e-30) / 127
    return (weight / scale[:, None]).round().clamp(-127, 127).to(torch.int8), scale


def dequantize_rows(values, scale):
    return values.float() * scale[:, None]


class LayerDraft(nn.Module):
    """Causal LM over the target's vocabulary V that scores only the ids in `head_ids` (ascending, [R]).

    target: a transformers LlamaForCausalLM. layers: the indices of the target's layers that it copies.
    Parts: embed (the target's), model (a LlamaModel: layers, norm), head (nn.Linear d -> R), head_ids; state (nn.Linear
    d -> d, initially zero) with `reads_states`, else None.
    """

    embed: nn.Embedding
    model: Any
    head_ids: torch.Tensor

    def __init__(self, target, head_ids, layers=(0, 29), reads_states=False):
        super().__init__()
        from transformers import LlamaModel

        rows = target.get_output_embeddings().weight
        head_ids = torch.as_tensor(head_ids, dtype=torch.int64).unique()
        if head_ids.numel() == 0 or head_ids[0] < 0 or head_ids[-1] >= rows.shape[0]:
            raise ValueError(f"LayerDraft: head_ids must be ids in [0, V={rows.shape[0]}) and not empty")
        self.config, self.layer_ids = deepcopy(target.config), tuple(layers)
        self.config.num_hidden_layers = len(self.layer_ids)
        self.config.vocab_size, vocab_size = 1, self.config.vocab_size  # so that LlamaModel allocates a tiny embedding
        self.config.pad_token_id, pad_token_id = None, self.config.pad_token_id
        self.model = LlamaModel(self.config)
        self.config.vocab_size, self.config.pad_token_id = vocab_size, pad_token_id
        self.head = nn.Linear(rows.shape[1], head_ids.numel(), bias=False)
        self.head.weight = nn.Parameter(rows.detach()[head_ids], requires_grad=False)
        self.register_buffer("head_ids", head_ids)
        self.state = nn.Linear(rows.shape[1], rows.shape[1]) if reads_states else None
        if self.state is not None:
            nn.init.zeros_(self.state.weight), nn.init.zeros_(self.state.bias)
        # The target's parts stay outside the module tree, so that draft.to(...) neither moves nor casts them.
        self.model.embed_tokens = None
        del self.model.rotary_emb
        object.__setattr__(self.model, "rotary_emb", target.model.rotary_emb)
        object.__setattr__(self, "embed", target.get_input_embeddings())

    @property
    def dtype(self):
        return self.model.norm.weight.dtype

    @property
    def device(self):
        return self.model.norm.weight.device

    def copy_layers(self, target):
        """Copy the target's weights: layer i takes those of the target's layer layer_ids[i]."""
        for mine, i in zip(self.model.layers, self.layer_ids):
            mine.load_state_dict(target.model.layers[i].state_dict())
        self.model.norm.load_state_dict(target.model.norm.state_dict())
        return self

    def add_states(self, x, states):
        """Return the last layer's input [B, T, d].

        x: the output of the layers before it. states [B, T, d]: those that predicted each token, zeros where none did;
        None: no states.
        """
        return x if states is None else x + self.state(states.to(self.dtype))

    def hidden(self, input_ids, position_ids=None, attention_mask=None, cache=None, use_cache=False, states=None):
        """Return the last hidden state after the norm [B, T, d]; head() of it are logits [B, T, R], as head_ids."""
        return self._run(input_ids, position_ids, attention_mask, cache, use_cache, states)[0]

    def _run(self, input_ids, position_ids, attention_mask, cache, use_cache, states):
        """Return the last hidden state after the norm, and the cache."""
        name = cache_name(self.model)
        entry = self.model.layers[-1].register_forward_pre_hook(
            lambda _, args: (self.add_states(args[0], states), *args[1:])
        )
        try:
            out = self.model(
                inputs_embeds=self.embed(input_ids).to(self.dtype),
                position_ids=position_ids,
                attention_mask=attention_mask,
                use_cache=bool(use_cache or cache is not None),
                **{name: cache},
            )
            return out.last_hidden_state, getattr(out, name)
        finally:
            entry.remove()

    def scatter(self, reduced):
        """Expand reduced logits [..., R] to [..., V], with -inf at ids outside head_ids."""
        full = reduced.new_full((*reduced.shape[:-1], self.config.vocab_size), -torch.inf)
        return full.index_copy_(-1, self.head_ids, reduced)

    def forward(
        self,
        input_ids,
        attention_mask=None,
        position_ids=None,
        cache=None,
        use_cache=None,
        logits_to_keep=0,
        states=None,
    ):
        """Run the draft like a transformers causal LM -> .logits [B, T, V] and .cache (a transformers Cache, or None).

        attention_mask: None (causal), or 4-D [B, 1, T, S], additive or bool (True = attend). logits_to_keep: n returns
        logits of the last n positions only (0: all). states: as `add_states` takes them.
        """
        hidden, cache = self._run(input_ids, position_ids, attention_mask, cache, use_cache, states)
        return LayerDraftOutput(self.scatter(self.head(hidden[:, -logits_to_keep:])), cache)

    def _trained(self):
        """Return the weights that a file holds, by name."""
        weights = self.model.state_dict()
        state = {} if self.state is None else self.state.state_dict(prefix=STATE)
        return {**weights, **state}

    def save(self, path, head_ids=None, **notes):
        """Write draft.safetensors (int8 rows, float32 scales and norms, int32 ids) and config.json with `notes`.

        head_ids: a subset of the draft's ids to keep (a smaller head makes a step cheaper); None keeps all.
        """
        head_ids = self.head_ids if head_ids is None else torch.as_tensor(head_ids, dtype=torch.int64).unique()
        path = Path(path)
        path.mkdir(parents=True, exist_ok=True)
        tensors = {"head_ids": head_ids.to(torch.int32)}
        for name, w in self._trained().items():
            if w.dim() == 2:
                tensors[name], tensors[name + "_scale"] = quantize_rows(w)
            else:
                tensors[name] = w.detach().float().contiguous()
        save_file(tensors, path / "draft.safetensors")
        shape = {"vocab_size": self.config.vocab_size, "hidden_size": self.config.hidden_size}
        config = {"model_type": MODEL_TYPE, "layers": list(self.layer_ids), **shape, "head_size": head_ids.numel()}
        config["reads_states"] = self.state is not None
        (path / "config.json").write_text(json.dumps({**config, **notes}, indent=2) + "\n")

    @classmethod
    def load(cls, path, target, dtype=None):
        """Load the draft in `path` for `target`, a transformers LlamaForCausalLM. dtype None: the target's."""
        path = Path(path)
        if not is_layer_draft(path):
            raise ValueError(f"LayerDraft.load: {path} holds no draft (a config.json with model_type {MODEL_TYPE!r})")
        config = json.loads((path / "config.json").read_text())
        for key in ("vocab_size", "hidden_size"):
            have = getattr(target.config, key)
            if config[key] != have:
                raise ValueError(f"LayerDraft.load: {path} is for a target with {key}={config[key]}, got {have}")
        tensors = load_file(path / "draft.safetensors")
        draft = cls(target, tensors.pop("head_ids"), config["layers"], config.get("reads_states", False))
        state = {
            name: dequantize_rows(w, tensors[name + "_scale"]) if w.dtype == torch.int8 else w
            for name, w in tensors.items()
            if not name.endswith("_scale")
        }
        if draft.state is not None:
            draft.state.load_state_dict({name: state.pop(STATE + name) for name in ("weight", "bias")})
        draft.model.load_state_dict(state)
        embed = draft.embed.weight
        return draft.to(embed.device, dtype or embed.dtype).eval().requires_grad_(False)
