# SPDX-License-Identifier: Apache-2.0
"""Predictions of calls, with the floors that their bytes set."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tools.gpu_model import calls, walks
from tools.gpu_model.calls import TAILS, Setting
from tools.gpu_model.constants import BANDS, constants
from tools.gpu_model.costs import Costs
from tools.machine_code.gpus import GPUS, Band


@dataclass(frozen=True)
class Model:
    """A GPU, and the costs that were read from the kernels."""

    gpu: str
    costs: Costs

    def band(self, us: Callable[[Setting], float]) -> Band:
        """Return a time as kind, middle, hard, with every constant at the same point of its band."""
        kind, middle, hard = (us(Setting(self.gpu, self.costs, band)) for band in BANDS)
        return kind, middle, hard

    def in_a_graph(self, us: Callable[[Setting], float]) -> Band:
        """Return the time of a call among many in a graph: with a gap in place of the first launch and last event."""
        return self.band(lambda s: us(s) + s.c["gap_us"] - s.c["first_us"])


@dataclass(frozen=True)
class Prediction:
    name: str
    us: Band
    note: str

    def __str__(self) -> str:
        kind, middle, hard = self.us
        return f"{self.name:58s} {kind:7.1f} -{middle:7.1f} -{hard:7.1f}  {self.note}"


def predictions(model: Model, Bs: Iterable[int], G: int, V: int, alpha: float) -> Iterable[Prediction]:
    """Yield the predictions of calls. A single kseq_rho is predicted with a cluster of blocks and with one block."""
    yield from ours(model, Bs, G, V, alpha)
    chosen = [(B, walks.blocks_of(Setting(model.gpu, model.costs), B)) for B in Bs if B > 1]
    for N, width in [(1, walks.WIDEST), (1, 1), *chosen]:
        us = model.band(lambda s: walks.walk(s, N, V, walks.KSEQ, width))
        yield Prediction(f"kseq_rho k=4, given logits and stats, N={N}", us, f"{width} block{'s' * (width > 1)} each")


def ours(model: Model, Bs: Iterable[int], G: int, V: int, alpha: float) -> Iterable[Prediction]:
    memory = GPUS[model.gpu].memory

    def floor(nbytes: float, us: Band) -> str:
        least = nbytes / memory * 1e6
        return f"floor {least:.1f} us -> {100 * least / us[1]:.0f} %"

    for one_hot in (False, True):
        for B in Bs:
            us = model.band(lambda s: calls.verify_chain(s, B, G, V, alpha=alpha, one_hot=one_hot)[0])
            middle = Setting(model.gpu, model.costs)
            parts = calls.verify_chain(middle, B, G, V, alpha=alpha, one_hot=one_hot)[1]
            note = f"judge {parts['judge']:.1f}, finish {parts['finish']:.1f}; {floor(parts['floor_MB'] * 1e6, us)}"
            yield Prediction(f"verify_chain exact, {'one-hot drafts' if one_hot else 'draft stats'}, B={B}", us, note)
    for B in Bs:
        N = B * (G + 1)
        us = model.band(lambda s: calls.row_stats(s, N, V))
        yield Prediction(f"row_stats, N={N}", us, floor(N * V * 2, us))


def tails(model: Model) -> Iterable[str]:
    """Yield lines with the count of each tail, beside the constants that stand for it."""
    if not model.costs.tails:
        return
    at = [constants(model.gpu, band) for band in BANDS]
    head = "tail: clocks, kind - middle - hard"
    yield f"{head:34s} {'instructions':>12s} {'longest path':>24s} {'assumed':>22s}  taken, middle"
    for name, stands in TAILS.items():
        if tail := model.costs.tails.get(name):
            assumed = [sum(c[constant] for constant in stands) for c in at]
            taken = Setting(model.gpu, model.costs).tail(name).clocks
            clocks = lambda band: " - ".join(f"{x:.0f}" for x in band)
            yield (
                f"{name + ' (' + ' + '.join(stands) + ')':34s} {tail.instructions:12d} {clocks(tail.clocks):>24s} "
                f"{clocks(assumed):>22s} {taken:6.0f}"
            )
