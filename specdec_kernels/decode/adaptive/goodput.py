# SPDX-License-Identifier: Apache-2.0
"""Measured cost and gain of a step, and from them the price that a drafted token must be worth."""

from collections import deque
from statistics import median
from typing import NamedTuple

__all__ = ["Goodput", "size_of"]

_STEPS = 128  # passes that are kept of one size class, for medians over them
_MEMORY = 0.98  # decay per step of the measured gain of drafts: about the last 50 steps count
_LONG = 0.99  # decay of the measured cost of tokens and columns, which changes less and is noisier
_SLOPE = 0.03  # first guess of the cost of one more token or column, as a fraction of a pass's fixed cost
_TRUST = 16.0, 4.0  # a guess weighs as much as this many pairs of passes: those a token apart, those a column apart
_SURPRISE = 0.1  # as a fraction of a pass: larger deviations are clipped, since something else ran on the machine
_PLAIN_EVERY = 64  # steps with drafts, after which one runs without, to keep the cost of plain decoding known


def size_of(requests: int) -> int:
    """Return the size class of a batch: 1, 2-3, 4-7, 8-15, ... requests. A class is measured as one."""
    return requests.bit_length()


class _Cost(NamedTuple):
    """Seconds of the target's pass: a fixed part, a part per scored token and a part per column.

    The number of columns is the length of the longest draft. Other rows are padded to it, and attention reads padding.
    """

    base: float = 0.0
    token: float = 0.0
    column: float = 0.0

    def of(self, tokens: int, columns: int) -> float:
        return self.base + self.token * tokens + self.column * columns


class _Size:
    """Measurements of the steps of one size class."""

    def __init__(self, guess: "_Size | None"):
        self.guess = guess  # when this class was first used: the nearest class with measurements; or None
        self.passes: deque[tuple[int, int, float]] = deque(maxlen=_STEPS)  # tokens, columns, seconds
        self.requests = 0  # requests of the last pass
        # Decaying sums over pairs of consecutive passes with equally many requests. With dt, dc, ds the differences in
        # tokens, columns and seconds, the sums are those of dt^2, dt*dc, dc^2, dt*ds, dc*ds.
        self.sums = [0.0] * 5
        self.cost: _Cost = _Cost() if guess is None else guess.cost
        self.seen: set[int] = set()  # token counts seen: the first pass with each is a warm-up and is not measured
        self.steps, self.since_plain = 0, 0
        self.gained = self.spent = 0.0  # seconds that plain decoding would need for the emitted tokens; seconds taken

    def add(self, requests: int, tokens: int, columns: int, seconds: float) -> None:
        """Record one pass.

        The costs of tokens and columns are fitted to differences between consecutive passes with equally many requests,
        in which slow drifts (the machine's load, growing texts) cancel. The fixed cost is a median over passes.
        """
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
        """Fit the seconds of a token (at most `most`) and of a column by least squares, both >= 0."""
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
    """Tokens per second as measured, and the price of a draft token that follows from it.

    Over many steps, tokens per second are highest if each step takes exactly the drafts that are worth more than their
    cost at the best rate. Let a draft survive with probability s (all drafts before it accepted too) and take m seconds
    to score. Its cost in tokens is rate * m, since decoding gives that many in m seconds, and it is taken iff
    s > rate * m. So the drafts of a batch with the largest survival are taken, as long as they pay. All rows share a
    column, so a column is taken iff the drafts in it together also pay for the column.

    A step is decided from earlier measurements only. Whether a token is drafted never depends on its value.
    """

    def __init__(self):
        self.sizes: dict[int, _Size] = {}  # by size_of the batch

    def price(self, requests: int) -> float:
        """Return the cost of scoring one draft token, in tokens."""
        size = self._size(requests)
        return self.rate(requests) * size.cost.token if any(size.cost) else _SLOPE * requests

    def column(self, requests: int) -> float:
        """Return the cost of one more column, in tokens."""
        return self.rate(requests) * self._size(requests).cost.column

    def rate(self, requests: int) -> float:
        """Return tokens per second of plain decoding or of recent steps, whichever is more; 0 without measurements."""
        size = self._size(requests)
        seconds = size.cost.of(requests, 0)
        speedup = max(1.0, size.gained / size.spent) if size.spent else 1.0
        return requests / seconds * speedup if seconds else 0.0

    def wants_plain(self, requests: int) -> bool:
        """Return whether this step should run without drafts, to measure plain decoding."""
        size = self._size(requests)
        return size.steps == 1 or size.since_plain >= _PLAIN_EVERY

    def observe(self, outcome) -> None:
        """Learn from a step's outcome (outcome.Outcome)."""
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
        usual = min(seconds, 2 * size.cost.of(tokens, columns))  # clipped: beyond it something else ran on the machine
        size.spent = _MEMORY * size.spent + usual + outcome.draft_seconds

    def _size(self, requests: int) -> _Size:
        key = size_of(requests)
        if key not in self.sizes:
            known = [k for k, size in self.sizes.items() if size.passes]
            nearest = min(known, key=lambda k: abs(k - key), default=None)
            self.sizes[key] = _Size(None if nearest is None else self.sizes[nearest])
        return self.sizes[key]
