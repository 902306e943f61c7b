# SPDX-License-Identifier: Apache-2.0
"""The number of tokens to draft: fixed, or chosen from measurements."""

from collections import defaultdict, deque
from statistics import median

from .acceptance import Acceptance, Kind
from .goodput import Goodput, size_of

__all__ = ["AdaptiveGamma", "FixedGamma", "make_gamma"]

_STEPS = 64  # the drafter's pass time is a median over this many steps with drafts
_PATIENCE = 16, 256  # steps without a draft before one is tried: at first, and at most
_GUESS = 0.7  # acceptance probability of a draft before any measurement


class FixedGamma:
    """A fixed draft length."""

    adaptive = False

    def __init__(self, gamma: int):
        self.max = gamma

    def begin(self, requests: int, drafting: int, columns: int = 0) -> bool:
        return True

    def keep(self, row: int, kind: Kind) -> bool:
        return True

    def pays(self) -> bool:
        return True

    def limit(self, requests: int, drafting: int) -> int:
        return self.max

    def observe(self, outcome) -> None:
        pass


class AdaptiveGamma:
    """A draft length chosen from measured costs and acceptance rates (goodput.py).

    While the best length is 0, a draft is still tried from time to time.

    In each step, begin() returns whether to draft at all, keep() whether a row takes one more token, and pays() whether
    one more pass of the drafter is worth its time. keep() is given the token's kind: what is known of it before it is
    drawn, such as its index (acceptance.Kind). learn() records the step's outcome.

    Args:
        max_gamma: the most tokens a row drafts.
        goodput: measurements of the target's steps, which drafters for the same target may share.
    """

    adaptive = True

    def __init__(self, max_gamma: int = 8, goodput: Goodput | None = None):
        self.max, self.goodput = max_gamma, Goodput() if goodput is None else goodput
        self.acceptance = Acceptance()
        # Seconds of a drafter's pass in recent steps, by size_of the batch. The first step after
        # steps without drafts is left out: in it the drafter also processes the tokens emitted meanwhile.
        self.passes: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_STEPS))
        # Steps since the last draft; how many of them before a draft is tried; whether this step tries one.
        self.idle, self.patience, self.trial = 0, _PATIENCE[0], False

    def begin(self, requests: int, drafting: int, columns: int = 0) -> bool:
        """Start a step of `requests` requests, `drafting` of which may take drafts; return whether to draft.

        columns: a draft length that the step is expected to have in any case, by another drafter. Drafts up to it add
            no column (goodput.py).
        """
        self.kinds: list[list[Kind]] = [[] for _ in range(requests)]
        self.survival, self.worth = [1.0] * requests, [0.0] * requests  # of each row's draft so far
        self.price, self.rate = self.goodput.price(requests), self.goodput.rate(requests)
        self.pass_cost = self.rate * median(self.passes[size_of(requests)] or [0.0])
        self.column, self.columns = self.goodput.column(requests), columns
        self.began = drafting > 0 and not self.goodput.wants_plain(requests)
        self.paused, self.trial = self.idle > 0, self.began and self.idle >= self.patience
        if self.began and not self.trial:
            self.began = drafting * self.promise(self.price) >= self.level_cost(0)
        return self.began

    def level_cost(self, length: int) -> float:
        """Return the cost, in tokens, of one more drafter pass and column after `length` tokens of the longest draft.

        The price of scoring the added tokens is not part of it.
        """
        return self.pass_cost + self.column * (length >= self.columns)

    def promise(self, price: float) -> float:
        """Return the expected gain from a row's first draft token, less its price, in tokens."""
        return self.acceptance.promise(price, _GUESS)

    def keep(self, row: int, kind: Kind) -> bool:
        """Return whether the draft of row `row` gets one more token, of this kind."""
        survival = self.survival[row] * self.acceptance.chance(kind)
        if survival <= self.price and not (self.trial and not self.kinds[row]):
            return False
        self.survival[row] = survival
        self.worth[row] += survival - self.price
        self.kinds[row].append(kind)
        return True

    def usual_worth(self, requests: int) -> float:
        """Return the average value of a row's draft in a batch of `requests`, less its scoring cost, in tokens."""
        price, mean = self.goodput.price(requests), self.acceptance.mean(_GUESS)
        return sum(max(0.0, mean**i - price) for i in range(1, self.max + 1))

    def pays(self) -> bool:
        """Return whether one more drafter pass may pay, for the rows that took a token in the last one."""
        longest, chance = max(map(len, self.kinds)), self.acceptance.mean(_GUESS)
        worth = (s * chance - self.price for s, kinds in zip(self.survival, self.kinds) if len(kinds) == longest)
        return sum(w for w in worth if w > 0) > self.level_cost(longest)

    def limit(self, requests: int, drafting: int) -> int:
        """Return one draft length for all rows: begin, keep and pays in one call, with a token's index as its kind."""
        length, more = 0, self.begin(requests, drafting)
        while more and length < self.max and all(self.keep(row, Kind(length, _GUESS)) for row in range(requests)):
            length += 1
            more = self.pays()
        return length

    def observe(self, outcome) -> None:
        """Learn from a step in which this object chose all drafts."""
        self.goodput.observe(outcome)
        self.learn(outcome)

    def learn(self, outcome, rows=None, passes: int | None = None) -> None:
        """Learn from the drafts of `rows` (None: all), made in `passes` passes (None: one per token of the longest)."""
        rows = range(len(outcome.drafted)) if rows is None else rows
        if not rows:
            return
        drafted = [outcome.drafted[i] for i in rows]
        for i, d in zip(rows, drafted):
            a = outcome.accepted[i]
            for place, kind in enumerate(self.kinds[i][: min(a + 1, d)]):
                self.acceptance.observe(kind, place < a)
        if self.began and not self.paused:
            self.passes[size_of(len(outcome.drafted))].append(outcome.draft_seconds / (passes or max(1, *drafted)))
        if any(drafted):
            self.patience = min(2 * self.patience, _PATIENCE[1]) if self.trial else _PATIENCE[0]
        self.idle = 0 if any(drafted) else self.idle + 1


def make_gamma(op: str, gamma: int | str, max_gamma: int = 8):
    """Return a FixedGamma for an integer, an AdaptiveGamma for "auto". op: the name in error texts."""
    if gamma == "auto":
        return AdaptiveGamma(max_gamma)
    if not isinstance(gamma, int) or isinstance(gamma, bool) or gamma < 1:
        raise ValueError(f'{op}: gamma must be an integer >= 1 or "auto", got {gamma!r}')
    return FixedGamma(gamma)
