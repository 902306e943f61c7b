# SPDX-License-Identifier: Apache-2.0
"""How many tokens to draft: a fixed number, or what pays by what has been measured so far."""

from collections import defaultdict, deque
from statistics import median

from .acceptance import Acceptance, Kind
from .goodput import Goodput, size_of

__all__ = ["AdaptiveGamma", "FixedGamma", "make_gamma"]

_STEPS = 64  # with drafts, by which a pass of the drafter is timed
_PATIENCE = 16, 256  # steps without a draft after which one is tried: at first, at last
_GUESS = 0.7  # the chance of a draft of which nothing is known yet


class FixedGamma:
    """Always the same number."""

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
    """Drafts that are worth their cost, by Goodput; none where none is, with a trial now and then.

    A step: begin() says whether to draft at all, keep() whether a row takes one more token, whose kind is told before
    it is drawn, pays() whether one more pass of the drafter is worth its seconds; learn() hears what became of it.

    Args:
        max_gamma: at most so many tokens a row.
        goodput: of the target that verifies; shared by the drafters of one loop.
    """

    adaptive = True

    def __init__(self, max_gamma: int = 8, goodput: Goodput | None = None):
        self.max, self.goodput = max_gamma, Goodput() if goodput is None else goodput
        self.acceptance = Acceptance()
        # Seconds of a pass in the steps of late, by size_of the batch; without those that caught up after a pause.
        self.passes: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_STEPS))
        self.idle, self.patience, self.trial = 0, _PATIENCE[0], False

    def begin(self, requests: int, drafting: int, columns: int = 0) -> bool:
        """Before a step of so many requests, so many of which may be drafted for: whether to. columns: so long the
        longest draft is, whatever these are."""
        self.kinds: list[list[Kind]] = [[] for _ in range(requests)]
        self.survival, self.worth = [1.0] * requests, [0.0] * requests  # of its draft so far, in tokens
        self.price, self.rate = self.goodput.price(requests), self.goodput.rate(requests)
        self.pass_cost = self.rate * median(self.passes[size_of(requests)] or [0.0])
        self.column, self.columns = self.goodput.column(requests), columns
        self.began = drafting > 0 and not self.goodput.wants_plain(requests)
        self.paused, self.trial = self.idle > 0, self.began and self.idle >= self.patience
        if self.began and not self.trial:
            self.began = drafting * self.promise(self.price) >= self.level_cost(0)
        return self.began

    def level_cost(self, length: int) -> float:
        """Of drafts that are longer by one than this, in tokens, beside the tokens' own."""
        return self.pass_cost + self.column * (length >= self.columns)

    def promise(self, price: float) -> float:
        """What a row's first draft is worth beyond the price on average, in tokens."""
        return self.acceptance.promise(price, _GUESS)

    def keep(self, row: int, kind: Kind) -> bool:
        """Whether row number `row` takes one more token, of this kind."""
        survival = self.survival[row] * self.acceptance.chance(kind)
        if survival <= self.price and not (self.trial and not self.kinds[row]):
            return False
        self.survival[row] = survival
        self.worth[row] += survival - self.price
        self.kinds[row].append(kind)
        return True

    def usual_worth(self, requests: int) -> float:
        """What a row's draft is worth on average, in a batch of so many, beyond what scoring it costs, in tokens."""
        price, mean = self.goodput.price(requests), self.acceptance.mean(_GUESS)
        return sum(max(0.0, mean**i - price) for i in range(1, self.max + 1))

    def pays(self) -> bool:
        """Whether one more pass, for the rows that took a token in the last, may pay."""
        longest, chance = max(map(len, self.kinds)), self.acceptance.mean(_GUESS)
        worth = (s * chance - self.price for s, kinds in zip(self.survival, self.kinds) if len(kinds) == longest)
        return sum(w for w in worth if w > 0) > self.level_cost(longest)

    def limit(self, requests: int, drafting: int) -> int:
        """All of these at once, where a token's place is all that is known of it -> so many tokens for every row."""
        length, more = 0, self.begin(requests, drafting)
        while more and length < self.max and all(self.keep(row, Kind(length, _GUESS)) for row in range(requests)):
            length += 1
            more = self.pays()
        return length

    def observe(self, outcome) -> None:
        """What became of a step whose drafts are all this one's."""
        self.goodput.observe(outcome)
        self.learn(outcome)

    def learn(self, outcome, rows=None, passes: int | None = None) -> None:
        """What became of the drafts of these rows, made in so many passes; None: of all, in one for each token."""
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


def make_gamma(gamma: int | str, max_gamma: int = 8):
    """A number, or "auto"."""
    if gamma == "auto":
        return AdaptiveGamma(max_gamma)
    if not isinstance(gamma, int) or isinstance(gamma, bool) or gamma < 1:
        raise ValueError(f'gamma must be an integer >= 1 or "auto", got {gamma!r}')
    return FixedGamma(gamma)
