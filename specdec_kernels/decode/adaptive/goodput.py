# SPDX-License-Identifier: Apache-2.0
"""What a step costs and what it brings, and so what a drafted token must be worth."""

from collections import deque
from statistics import median
from typing import NamedTuple

__all__ = ["Goodput", "size_of"]

_STEPS = 128  # of one size, whose median says what its passes cost
_MEMORY = 0.98  # weight of the past at each step in what drafts gain: about the last 50 count
_LONG = 0.99  # in what tokens and columns cost, which changes less and is harder to see
_SLOPE = 0.03  # cost of one more token, or of one more column, in passes, until it has been measured
_TRUST = 16.0, 4.0  # how much these guesses count: as so many differences by one token, one column
_SURPRISE = 0.1  # of a pass: by more a difference does not count, something else on the machine took its turn
_PLAIN_EVERY = 64  # steps with drafts, after which one goes without: what plain decoding costs stays known


def size_of(requests: int) -> int:
    """Batches of about one size are measured together: 1, 2-3, 4-7, 8-15 ..."""
    return requests.bit_length()


class _Cost(NamedTuple):
    """Seconds of the target's pass: of none, of one more token scored, of one more column, that is of the longest draft
    being longer by one, which attention over padded rows pays for."""

    base: float = 0.0
    token: float = 0.0
    column: float = 0.0

    def of(self, tokens: int, columns: int) -> float:
        return self.base + self.token * tokens + self.column * columns


class _Size:
    """Steps of about one number of requests."""

    def __init__(self, guess: "_Size | None"):
        self.guess = guess  # the nearest size known when this one came up
        self.passes: deque[tuple[int, int, float]] = deque(maxlen=_STEPS)  # tokens, columns, seconds
        self.requests = 0  # of the last of them
        # Of differences between neighbours: tokens^2, tokens * columns, columns^2, tokens * seconds, columns * seconds.
        self.sums = [0.0] * 5
        self.cost: _Cost = _Cost() if guess is None else guess.cost
        self.seen: set[int] = set()  # numbers of tokens: the first pass of a kind warms up
        self.steps, self.since_plain = 0, 0
        self.gained = self.spent = 0.0  # seconds of plain decoding that the emitted tokens were worth; seconds taken

    def add(self, requests: int, tokens: int, columns: int, seconds: float) -> None:
        """One more pass. What tokens and columns cost is told by neighbours, which the machine's moods, the texts'
        growth and the number of requests leave alone; what a pass costs, by the median."""
        if requests == self.requests:
            self._compare(*self.passes[-1], tokens, columns, seconds)
        self.requests = requests
        self.passes.append((tokens, columns, seconds))
        scored, _, usual = (median(values) for values in zip(*self.passes))
        token, column = self._fit(_SLOPE * usual / (1 + _SLOPE * scored), usual / scored)
        self.cost = _Cost(median(t - token * x - column * w for x, w, t in self.passes), token, column)

    def _compare(self, x, w, t, tokens, columns, seconds):
        x, w, most = tokens - x, columns - w, _SURPRISE * t
        expected = self.cost.token * x + self.cost.column * w
        t = expected + min(max(seconds - t - expected, -most), most)
        new = x * x, x * w, w * w, x * t, w * t
        self.sums = [_LONG * s + y for s, y in zip(self.sums, new)] if x or w else self.sums

    def _fit(self, guess: float, most: float) -> tuple[float, float]:
        """Seconds of a token and of a column by least squares, neither below nothing, a token's at most `most`."""
        guesses = (guess, guess) if self.guess is None else self.guess.cost[1:]
        xx, xw, ww, xt, wt = self.sums
        xx, ww = xx + _TRUST[0], ww + _TRUST[1]
        xt, wt = xt + _TRUST[0] * guesses[0], wt + _TRUST[1] * guesses[1]
        token = (xt * ww - xw * wt) / (xx * ww - xw * xw) if xt * ww > xw * wt else 0.0
        column = (wt - xw * token) / ww
        if column < 0:
            token, column = xt / xx, 0.0
        return min(max(token, 0.0), most), max(column, 0.0)


class Goodput:
    """Tokens per second, by what has been measured.

    Over many steps the tokens per second are highest if each takes just the drafts that are worth more than their cost
    at the best rate there is: a draft that is accepted with chance s (all drafts before it included) and that takes m
    seconds to score is taken iff s > rate m. So the tokens of a batch with the largest survival are taken, up to the
    budget that pays, and none if none does. A column, which all rows share, is taken iff what it holds pays for it too.

    What decides a step was measured before it, never in it: a draft's place is not given by what it turned out to be.
    """

    def __init__(self):
        self.sizes: dict[int, _Size] = {}  # by size_of the batch

    def price(self, requests: int) -> float:
        """What a scored draft must be worth, in tokens."""
        size = self._size(requests)
        return self.rate(requests) * size.cost.token if any(size.cost) else _SLOPE * requests

    def column(self, requests: int) -> float:
        """What the longest draft being longer by one costs beyond that, in tokens."""
        return self.rate(requests) * self._size(requests).cost.column

    def rate(self, requests: int) -> float:
        """Tokens per second: of plain decoding or, where that is more, of the steps of late; 0 before the first."""
        size = self._size(requests)
        seconds = size.cost.of(requests, 0)
        speedup = max(1.0, size.gained / size.spent) if size.spent else 1.0
        return requests / seconds * speedup if seconds else 0.0

    def wants_plain(self, requests: int) -> bool:
        """Whether this step should go without drafts, to see what that costs."""
        size = self._size(requests)
        return size.steps == 1 or size.since_plain >= _PLAIN_EVERY

    def observe(self, outcome) -> None:
        """What a step was (outcome.Outcome)."""
        n, drafted = len(outcome.drafted), sum(outcome.drafted)
        size, tokens, columns, seconds = self._size(n), n + drafted, max(outcome.drafted), outcome.target_seconds
        size.steps += 1
        size.since_plain = 0 if drafted == 0 else size.since_plain + 1
        if tokens not in size.seen:
            size.seen.add(tokens)
            return
        size.add(n, tokens, columns, seconds)
        emitted = n + sum(outcome.accepted)
        size.gained = _MEMORY * size.gained + emitted / n * size.cost.of(n, 0)
        usual = min(seconds, 2 * size.cost.of(tokens, columns))  # beyond it something else on the machine took its turn
        size.spent = _MEMORY * size.spent + usual + outcome.draft_seconds

    def _size(self, requests: int) -> _Size:
        key = size_of(requests)
        if key not in self.sizes:
            known = [k for k, size in self.sizes.items() if size.passes]
            nearest = min(known, key=lambda k: abs(k - key), default=None)
            self.sizes[key] = _Size(None if nearest is None else self.sizes[nearest])
        return self.sizes[key]
