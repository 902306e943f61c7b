# SPDX-License-Identifier: Apache-2.0
"""What the loop asks of a model, and the adapter for any Hugging Face causal LM with ordinary attention."""

from typing import Any, Protocol

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from ..transfers import CPU
from .cache_name import cache_name
from .lean_llama import LeanLlama
from .packed_linear import pack_linears
from .slot_cache import Branches, SlotCache, kept

__all__ = ["HFModel", "Model", "adapt"]


class Model(Protocol):
    """A causal LM as the loop sees it: LeanLlama, HFModel, or an engine's own."""

    vocab_size: int  # columns of its logits; ids it can embed
    max_positions: int
    device: torch.device = CPU  # of its ids and logits
    dtype: torch.dtype
    state_size: int | None = None  # of its last hidden states, where its passes leave them in a cache that keeps them
    reads_states: bool = False  # whether forward also takes states [n, T, d], those that predicted each token

    def new_cache(self, slots: int, capacity: int) -> SlotCache:
        """An empty cache, with move(source, target)."""

    def forward(
        self,
        ids: torch.Tensor,
        start: list[int],
        cache: SlotCache,
        slot: int = 0,
        keep="all",
        branches: Branches | None = None,
    ) -> torch.Tensor | None:
        """Row i of ids [n, T] belongs to slot `slot + i` and starts at position start[i]; older keys there stay, newer
        are stale. An id below 0 is no token: whether it is computed is up to the model, nobody sees its keys.

        keep "all": logits [n, T, V]; "present": logits [M, V] of the tokens that are there, row by row; a list [n]:
            logits [n, V] of that token of each row; None: no logits.
        branches: the tokens are nodes of trees (cache.Branches), each of which sees what lies before start[i], its
            ancestors and itself.
        """


def adapt(model, lean: bool = True, pack: bool = True) -> Model:
    """Serve a transformers model, on the device it is on: with the lean Llama pass where it fits, else with its own
    forward. On the CPU its linears are packed once; elsewhere they stay as they are."""
    if lean and pack and LeanLlama.supports(model):
        return LeanLlama.from_hf(model)
    return HFModel(model, pack)


class _Layer(CacheLayerMixin):
    """One layer of a SlotCache, as transformers sees it: update() writes at the positions of the pass that is under
    way."""

    def __init__(self, cache: SlotCache, index: int):
        super().__init__()
        self.cache, self.index = cache, index
        self.is_initialized = True

    def lazy_initialization(self, key_states, value_states):
        pass

    def update(self, key_states, value_states, *args, **kwargs):
        keys, values = (x.transpose(1, 2).flatten(0, 1) for x in (key_states, value_states))
        return self.cache.update(self.index, keys, values)

    def get_mask_sizes(self, query_length):
        return self.cache.length, 0

    def get_seq_length(self):
        return self.cache.length - self.cache.positions.shape[1]

    def get_max_length(self):
        return self.cache.capacity

    get_max_cache_shape = get_max_length  # its name up to transformers 5.12 at least


class HFModel:
    """Any transformers causal LM whose layers all attend to the whole sequence, on the device it is on.

    On the CPU its linears are packed in place (packed_linear.py). Elsewhere its keys and values lie in a static cache:
    every pass attends to whole slots under a mask, so its shapes depend on the batch and its width alone.
    """

    def __init__(self, model, pack: bool = True):
        config = model.config.get_text_config()
        self._refuse_other_caches(config, type(model).__name__)
        self.model: Any = pack_linears(model.eval()) if pack else model.eval()
        self.vocab_size = model.get_input_embeddings().weight.shape[0]
        self.max_positions = getattr(config, "max_position_embeddings", None) or 2**31
        self.layers, self.device, self.cache_name = config.num_hidden_layers, model.device, cache_name(model)
        self.dtype, self.state_size, self.reads_states = model.dtype, config.hidden_size, False

    @staticmethod
    def _refuse_other_caches(config, name):
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
        if kinds != {"full_attention"} or window:
            kept = ", ".join(sorted(kinds - {"full_attention"})) or f"sliding_window={window}"
            raise ValueError(f"HFModel: {name} must have full attention in every layer, got {kept}")

    def new_cache(self, slots, capacity):
        return SlotCache(slots, capacity)

    @torch.inference_mode()
    def forward(self, ids, start, cache, slot=0, keep="all", branches=None):
        positions = cache.begin(start, ids.shape[1], slot, self.device, branches)
        dtype = self.model.dtype
        mask = torch.zeros((), dtype=dtype, device=self.device).masked_fill(~cache.visible(), torch.finfo(dtype).min)
        out = self.model(
            input_ids=ids.clamp(min=0),
            attention_mask=mask,
            position_ids=positions.clamp(max=self.max_positions - 1),
            use_cache=True,
            logits_to_keep=1 if keep is None else 0,
            output_hidden_states=cache.states is not None,
            **{self.cache_name: Cache(layers=[_Layer(cache, i) for i in range(self.layers)])},
        )
        if cache.states is not None:
            cache.put_states(out.hidden_states[-1].flatten(0, 1))
        logits = out.logits
        if keep == "present":
            return logits[ids >= 0]
        return None if keep is None else kept(logits, keep)
