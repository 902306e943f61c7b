# SPDX-License-Identifier: Apache-2.0
"""How many tokens to draft: a fixed number, or the best one for what has been measured so far."""

from ...theory import best_gamma

__all__ = ["AdaptiveGamma", "FixedGamma", "make_gamma"]

_DECAY = 0.97  # weight of the past at each step: about the last 30 steps count
_MARGIN = 0.03  # cost of one more row in the target's pass, in passes, until it has been measured


class FixedGamma:
    def __init__(self, gamma: int):
        self.value = self.max = gamma

    def observe(self, *_):
        pass


class AdaptiveGamma:
    """theory.best_gamma of the running acceptance rate and of the measured cost of one more drafted token.

    The walltime factor (1 - a^(g+1)) / ((1 - a)(g c + 1)) takes a pass over g+1 tokens to cost as much as over one. On
    a CPU, or at large batch, each row costs something; a pass of t0 + g m and a draft of g d seconds is the same
    formula with c = (m + d) / t0, and a least-squares line through the passes seen gives t0 and m.
    """

    def __init__(self, max_gamma: int = 8, alpha: float = 0.5):
        self.max = max_gamma
        self.accepted, self.tested = 4 * alpha, 4.0  # a prior worth four tests
        self.sums = [0.0] * 5  # of 1, g, seconds, g^2, g*seconds
        self.seen: set[tuple[int, int]] = set()  # rows, width
        self.usual: dict[int, float] = {}  # rows -> seconds of a pass, outliers clipped
        self.draft_cost, self.slope = 0.0, _MARGIN
        # each width's first pass is not timed: it warms up
        self.trials = [min(g, max_gamma) for g in (4, 4, 1, 1, 2, 6)]
        self.value = self.trials.pop(0)

    @property
    def alpha(self) -> float:
        return self.accepted / self.tested

    def observe(self, drafted: list[int], accepted: list[int], draft_seconds: float, target_seconds: float, mine=None):
        """One step, as Drafter.observe has it. mine: the requests whose drafts were of this length, None for all."""
        mine, rows, width = range(len(drafted)) if mine is None else mine, len(drafted), max(drafted)
        self.accepted = _DECAY * self.accepted + sum(accepted[i] for i in mine)
        self.tested = _DECAY * self.tested + sum(min(accepted[i] + 1, drafted[i]) for i in mine)
        # A pass far slower than usual was interrupted by something else on the machine.
        usual = self.usual.get(rows, target_seconds)
        self.usual[rows] = usual + 0.2 * (min(target_seconds, 2 * usual) - usual)
        if (rows, width) in self.seen and width > 0 and max(target_seconds, draft_seconds) < 3 * usual:
            new = (1.0, width, target_seconds, width * width, width * target_seconds)
            self.sums = [_DECAY * s + x for s, x in zip(self.sums, new)]
            share = draft_seconds / width / target_seconds
            self.draft_cost = share if self.draft_cost == 0 else 0.9 * self.draft_cost + 0.1 * share
        self.seen.add((rows, width))
        best = self.trials.pop(0) if self.trials else best_gamma(min(self.alpha, 1.0), self.cost(), self.max)
        self.value = max(1, best)

    def cost(self) -> float:
        """c: what one more drafted token costs, in passes of the target over one token."""
        n, g, t, gg, gt = self.sums
        if n > 3 and gg / n - (g / n) ** 2 > 0.05:
            slope = (n * gt - g * t) / (n * gg - g * g)
            base = (t - slope * g) / n
            if base > 0:
                self.slope = min(max(slope / base, 0.0), 1.0)
        return self.slope + self.draft_cost * (1 + self.slope * (g / n if n else 0))


def make_gamma(gamma: int | str, max_gamma: int = 8):
    """A number, or "auto"."""
    if gamma == "auto":
        return AdaptiveGamma(max_gamma)
    if not isinstance(gamma, int) or isinstance(gamma, bool) or gamma < 1:
        raise ValueError(f'gamma must be an integer >= 1 or "auto", got {gamma!r}')
    return FixedGamma(gamma)
