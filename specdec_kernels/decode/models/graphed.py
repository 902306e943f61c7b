# SPDX-License-Identifier: Apache-2.0
"""A model whose passes are replayed as CUDA graphs: on a GPU a small model's launches take longer than its work."""

from weakref import WeakKeyDictionary

import torch

from ..transfers import upload
from .slot_cache import Branches, SlotCache

__all__ = ["Graphed"]


class _Pass:
    """A captured pass of one shape, with its inputs and logits at fixed addresses."""

    def __init__(self, run, inputs: list[torch.Tensor], pool):
        self.inputs, self.graph = [x.clone() for x in inputs], torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool):
            self.logits = run(*self.inputs)

    def __call__(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        for mine, new in zip(self.inputs, inputs):
            mine.copy_(new, non_blocking=True)
        self.graph.replay()
        return self.logits.clone()  # the next replay overwrites them


class Graphed:
    """A wrapper of a model on a GPU (LeanLlama, HFModel) that replays its passes as CUDA graphs, with the same results.

        target, draft = Graphed(pair.target), Graphed(pair.draft)

    The shapes of a step's passes depend only on the batch and the width (slot_cache.py). The first pass of a shape runs
    normally, as a warm-up; the second is captured; later ones are replayed. There is one graph for each cache
    and shape (batch size, width, arguments), kept as long as the cache. Prompts, whose lengths vary, run normally.

    Raises:
        ValueError: the model is not on a GPU.
    """

    def __init__(self, model):
        if model.device.type != "cuda":
            raise ValueError(f"Graphed: model must be on a GPU, got one on {model.device}")
        self.model, self.device = model, model.device
        self.vocab_size, self.max_positions = model.vocab_size, model.max_positions
        self.vocab_map = getattr(model, "vocab_map", None)
        self.dtype, self.state_size, self.reads_states = model.dtype, model.state_size, model.reads_states
        self.refuses, self.position_note = getattr(model, "refuses", {}), getattr(model, "position_note", "")
        self.pool = torch.cuda.graph_pool_handle()
        self.passes: WeakKeyDictionary = WeakKeyDictionary()  # cache -> {shape: None after one pass, then a _Pass}

    def new_cache(self, slots: int, capacity: int) -> SlotCache:
        return self.model.new_cache(slots, capacity)

    @torch.inference_mode()
    def forward(self, ids, start, cache, slot=0, keep="all", branches: Branches | None = None, states=None):
        """Run one pass, as Model.forward does."""
        passes, given = self.passes.setdefault(cache, {}), {} if states is None else {"states": states}
        shape = *ids.shape, keep == "all", None if branches is None else branches.parents.shape[1], *given
        if slot or keep is None or shape not in passes:
            if not slot and keep is not None:
                passes[shape] = None
            return self.model.forward(ids, start, cache, slot, keep, branches, **given)
        cache.check(start, ids.shape[1], slot, branches)
        inputs = [ids, upload(start, self.device), *given.values()]
        inputs += [] if keep == "all" else [upload(keep, self.device)]
        inputs += [] if branches is None else [branches.parents, upload(branches.first, self.device)]
        if passes[shape] is None:
            passes[shape] = _Pass(self._runs(cache, keep == "all", [*given]), inputs, self.pool)
        return passes[shape](inputs)

    def _runs(self, cache, everything, names):
        def run(ids, start, *rest):
            given, rest = dict(zip(names, rest)), rest[len(names) :]
            keep = "all" if everything else rest[0]
            tree = rest[len(rest) - 2 :] if len(rest) > 1 else ()
            return self.model.forward(ids, start, cache, 0, keep, Branches(*tree) if tree else None, **given)

        return run
