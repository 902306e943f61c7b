# SPDX-License-Identifier: Apache-2.0
"""The interface between the loop and a model, and an adapter for Hugging Face causal LMs."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from ..transfers import CPU
from .cache_name import arguments, cache_name
from .checks import check_model
from .evaluating import evaluating
from .lean_llama import LeanLlama, rounded
from .packed_linear import pack_linears
from .probe import UNKNOWN, is_one_model, probe
from .slot_cache import Branches, SlotCache, kept

__all__ = ["HFModel", "Model", "adapt"]


class Model(Protocol):
    """A causal LM as the loop uses it: LeanLlama, HFModel, or an engine's own."""

    vocab_size: int  # ids it can embed, and columns of the logits if there is no vocab_map
    vocab_map: Any = None  # sk.VocabMap of a draft whose logits cover other ids than the target's (vocabulary.py)
    max_positions: int
    device: torch.device = CPU  # of ids and logits
    dtype: torch.dtype
    state_size: int | None = None  # size of the last hidden states; None: passes do not write them to the cache
    reads_states: bool = False  # whether forward also takes `states` [n, T, d], which predicted each token
    refuses: Mapping[str, str] = {}  # unsupported features ("batches", "trees") -> what the probe found
    position_note: str = ""  # why max_positions is less than in the model's config

    def new_cache(self, slots: int, capacity: int) -> SlotCache:
        """Return an empty cache, with move(source, target) and clear(slot)."""

    def forward(
        self,
        ids: torch.Tensor,
        start: list[int],
        cache: SlotCache,
        slot: int = 0,
        keep="all",
        branches: Branches | None = None,
    ) -> torch.Tensor | None:
        """Run one pass over ids [n, T].

        Row i belongs to slot `slot + i` and starts at position start[i]. Cached keys before start[i] are valid, later
        ones are stale. An id below 0 is padding: the model may compute it or not, and no token attends to it.

        keep: "all": returns logits [n, T, V]. "present": logits [M, V] of the tokens that are not padding, row by row.
            A list [n]: logits [n, V], of that token of each row. None: no logits.
        branches: the tokens are nodes of trees (slot_cache.Branches). Each attends to the positions before start[i], to
            its ancestors and to itself.
        """


def adapt(model, lean: bool = True, pack: bool = False) -> Model:
    """Wrap a transformers model for the loop, on the device it is on.

    A Llama whose modules are all transformers' own runs through a faster forward pass (LeanLlama), which copies its
    linear layers (on a GPU only those that it joins) and needs their memory a second time. Every other model (other
    architectures, adapters, hooks, parametrizations, quantized weights, patched modules) runs its own forward
    (HFModel), without extra memory. The model's weights, training mode, hooks and config stay unchanged. Dropout is off
    during passes.

    Args:
        model: a transformers causal LM.
        lean: False runs Llamas through their own forward too.
        pack: True hands the model over: on a CPU its linear layers are replaced in place by packed ones
            (packed_linear.py), which are faster there. Other users of the model then no longer find their weights.

    Returns:
        A Model for `generate`, `Session` and drafters. LeanLlama copies the weights as they are now: call `adapt`
        again after the weights or modules change.

    Raises:
        TypeError: a name, or a Model, which is adapted already.
        ValueError: a few probing passes show that the loop cannot serve the model (probe.py).
    """
    wanted = "adapt: model must be a transformers causal LM"
    if isinstance(model, str):
        raise TypeError(f"{wanted}, got {model!r}: load it first, with from_pretrained or decode.load_pair")
    if hasattr(model, "new_cache"):
        raise TypeError(f"{wanted}, got {type(model).__name__}, which is a decode.Model already")
    if lean and LeanLlama.supports(model):
        served = LeanLlama.from_hf(model)
        if is_one_model(model, served):
            return served
    return HFModel(model, pack)


class _Layer(CacheLayerMixin):
    """One layer of a SlotCache in transformers' interface: update() writes at the positions of the current pass."""

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
    """A transformers causal LM run by its own forward, on its own device. Its attention must obey the mask.

    A few passes test the behaviour that the loop relies on (probe.py). A model that fails is refused. One that fails
    only with trees or only with batches is served without them (`refuses`).

    On the CPU a pass attends to the keys present. On other devices keys and values lie in a static cache: every pass
    attends to whole slots under a mask, so its shapes depend only on the batch and its width.

    Args:
        model: not modified; in evaluation mode during passes (evaluating.py).
        pack: as in `adapt`.

    Raises:
        ValueError: a model that cannot be served; the text says why.
    """

    reads_states = False

    def __init__(self, model, pack: bool = False):
        check_model(model)
        config = model.config.get_text_config()
        self.model: Any = pack_linears(model) if pack else model
        self.vocab_size = model.get_input_embeddings().weight.shape[0]
        self.layers, self.device, self.dtype = config.num_hidden_layers, model.device, model.dtype
        self.state_size, self.cache_name = getattr(config, "hidden_size", None), cache_name(model)
        self.takes = arguments(model)
        positions = getattr(config, "max_position_embeddings", None) or 0
        self.max_positions = positions if positions > 0 else UNKNOWN
        found = probe(self)
        self.refuses, self.max_positions, self.position_note = found.refuses, found.positions, found.note

    def new_cache(self, slots, capacity):
        return SlotCache(slots, capacity)

    @torch.inference_mode()
    def forward(self, ids, start, cache, slot=0, keep="all", branches=None):
        positions = cache.begin(start, ids.shape[1], slot, self.device, branches)
        logits = self.run(ids, positions.clamp(max=self.max_positions - 1), cache, scores=keep is not None)
        if keep == "present":
            return logits[ids >= 0]
        return None if keep is None else kept(logits, keep)

    @torch.inference_mode()
    def run(self, ids, positions, cache, scores=True):
        """Run the pass opened by `cache.begin` -> logits [n, T, V]; without `scores` only some tokens' logits."""
        mask = torch.zeros((), dtype=self.dtype, device=self.device)
        asked = dict(
            attention_mask=mask.masked_fill(~cache.visible(), torch.finfo(self.dtype).min),
            position_ids=positions,
            use_cache=True,
            logits_to_keep=0 if scores else 1,
            output_hidden_states=cache.states is not None,
        )
        asked[self.cache_name] = Cache(layers=[_Layer(cache, i) for i in range(self.layers)])
        with evaluating(self.model):
            out = self.model(input_ids=ids.clamp(min=0), **{k: v for k, v in asked.items() if self.takes(k)})
        if cache.states is not None:
            cache.put_states(out.hidden_states[-1].flatten(0, 1))
        return rounded(out.logits)
