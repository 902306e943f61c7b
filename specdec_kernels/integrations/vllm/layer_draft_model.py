# SPDX-License-Identifier: Apache-2.0
"""The model class by which vLLM serves a LayerDraft (decode/models/layer_draft.py) through its EAGLE interface.

vLLM's EAGLE drafter passes tokens with the target's final hidden states that predicted them. It has no row for the
first token of a text, since nothing predicted it, so the draft does not attend to that token.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import ReplicatedLinear
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.llama import LlamaDecoderLayer, LlamaModel
from vllm.model_executor.models.utils import AutoWeightsLoader, get_draft_quant_config, maybe_prefix


class DraftLayer(LlamaDecoderLayer):
    """A Llama layer with the draft's quantization, not the target's."""

    def get_quant_config(self, vllm_config: Any) -> Any:
        return get_draft_quant_config(vllm_config)


class LayerDraftBody(nn.Module):
    """The draft's layers. Before the last one, a projection of the state that predicted each token is added."""

    hf_to_vllm_mapper = LlamaModel.hf_to_vllm_mapper  # q, k, v and gate, up are packed

    def __init__(self, vllm_config: Any, config: Any, prefix: str) -> None:
        super().__init__()
        d, first = config.hidden_size, vllm_config.model_config.get_total_num_hidden_layers()
        self.layers = nn.ModuleList(  # numbered after the target's, since layers share one table of KV caches
            DraftLayer(vllm_config, prefix=maybe_prefix(prefix, f"layers.{first + i}"), config=config)
            for i in range(config.num_hidden_layers)
        )
        self.state = None
        if config.reads_states:
            named = {"prefix": maybe_prefix(prefix, "state"), "quant_config": get_draft_quant_config(vllm_config)}
            self.state = ReplicatedLinear(d, d, bias=True, return_bias=False, **named)
        self.norm = RMSNorm(d, eps=config.rms_norm_eps)
        self.embed_tokens = nn.Module()  # vLLM puts the target's in its place, after it compares their widths
        self.embed_tokens.register_buffer("weight", self.norm.weight.detach().new_zeros(1, d), persistent=False)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Return the normed last states [N, d] of N tokens; states [N, d] are those that predicted them."""
        x, residual = self.embed_tokens(input_ids), None
        for i, layer in enumerate(self.layers):
            if self.state is not None and i == len(self.layers) - 1:
                x = x + self.state(states)
            x, residual = layer(positions, x, residual)
        return self.norm(x, residual)[0]

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        return AutoWeightsLoader(self).load_weights(weights, mapper=self.hf_to_vllm_mapper)


class EagleSpecdecLayerDraft(nn.Module):
    """A LayerDraft, with the embedding of the target and an output head over part of the vocabulary."""

    has_own_embed_tokens, has_own_lm_head = False, True  # vLLM reads these

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        if vllm_config.parallel_config.pipeline_parallel_size > 1:
            got = vllm_config.parallel_config.pipeline_parallel_size
            raise ValueError(f"EagleSpecdecLayerDraft: pipeline_parallel_size must be 1, got {got}")
        self.config = config = vllm_config.speculative_config.draft_model_config.hf_config
        self.model = LayerDraftBody(vllm_config, config, maybe_prefix(prefix, "model"))
        self.lm_head = ParallelLMHead(
            config.draft_vocab_size,
            config.hidden_size,
            quant_config=get_draft_quant_config(vllm_config),
            prefix=maybe_prefix(prefix, "lm_head"),
        )
        self.logits_processor = LogitsProcessor(config.draft_vocab_size)
        ids = torch.zeros(config.draft_vocab_size, dtype=torch.int64, device=self.model.norm.weight.device)
        self.head_ids = nn.Parameter(ids, requires_grad=False)  # the id of each row of the head

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.model.embed_tokens(input_ids)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        hidden_states: torch.Tensor,
        inputs_embeds: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the states that give the logits, and those that the next draft token reads: the same ones."""
        if inputs_embeds is not None:
            raise NotImplementedError("EagleSpecdecLayerDraft: inputs_embeds must be None: it reads token ids only")
        x = self.model(input_ids, positions, hidden_states)
        return x, x

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return logits [N, V], -inf at ids without a row in the head."""
        logits = self.logits_processor(self.lm_head, hidden_states)
        full = logits.new_full((logits.size(0), self.config.vocab_size), -torch.inf)
        return full.index_copy_(1, self.head_ids, logits)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        return AutoWeightsLoader(self).load_weights(weights)
