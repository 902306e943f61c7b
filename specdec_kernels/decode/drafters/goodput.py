# SPDX-License-Identifier: Apache-2.0
"""What a step costs and what it brings, and so what a drafted token must be worth."""

__all__ = ["Goodput", "size_of"]

_MEMORY = 0.98  # weight of the past at each step: about the last 50 count
_SLOPE = 0.03  # cost of one more token in the target's pass, in passes, until it has been measured
_TRUST = 16.0  # how much that guess counts: as so much spread of the lengths seen (steps times variance)
_PLAIN_EVERY = 64  # steps with drafts, after which one goes without: what plain decoding costs stays known


def size_of(requests: int) -> int:
    """Batches of about one size are measured together: 1, 2-3, 4-7, 8-15 ..."""
    return requests.bit_length()


class _Size:
    """Steps of about one number of requests."""

    def __init__(self, guess: "_Size | None"):
        self.guess = guess  # the nearest size known when this one came up
        self.sums = [0.0] * 5  # of 1, tokens scored, seconds, tokens^2, tokens * seconds
        self.seen: set[int] = set()  # numbers of tokens: the first pass of a kind warms up
        self.steps, self.since_plain = 0, 0
        self.gained = self.spent = 0.0  # seconds of plain decoding that the emitted tokens were worth; seconds taken

    def line(self) -> tuple[float, float]:
        """Seconds of a step as a line over the tokens scored -> (of no token, of one more)."""
        n, x, t, xx, xt = self.sums
        if not n:
            return (0.0, 0.0) if self.guess is None else self.guess.line()
        x, t = x / n, t / n
        guess = _SLOPE * t / (1 + _SLOPE * x) if self.guess is None else self.guess.line()[1]
        slope = (xt - n * x * t + _TRUST * guess) / (xx - n * x * x + _TRUST)
        slope = min(max(slope, 0.0), t / x)
        return t - slope * x, slope

    def seconds(self, tokens: int) -> float:
        base, slope = self.line()
        return base + slope * tokens


class Goodput:
    """Tokens per second, by what has been measured.

    Over many steps the tokens per second are highest if each takes just the drafts that are worth more than their cost
    at the best rate there is: a draft that is accepted with chance s (all drafts before it included) and that takes m
    seconds to score is taken iff s > rate m. So the tokens of a batch with the largest survival are taken, up to the
    budget that pays, and none if none does.

    What decides a step was measured before it, never in it: a draft's place is not given by what it turned out to be.
    """

    def __init__(self):
        self.sizes: dict[int, _Size] = {}  # by size_of the batch

    def price(self, requests: int) -> float:
        """What a scored draft must be worth, in tokens."""
        return self.rate(requests) * self._size(requests).line()[1] or _SLOPE * requests

    def rate(self, requests: int) -> float:
        """Tokens per second: of plain decoding or, where that is more, of the steps of late; 0 before the first."""
        size = self._size(requests)
        seconds = size.seconds(requests)
        speedup = max(1.0, size.gained / size.spent) if size.spent else 1.0
        return requests / seconds * speedup if seconds else 0.0

    def wants_plain(self, requests: int) -> bool:
        """Whether this step should go without drafts, to see what that costs."""
        size = self._size(requests)
        return size.steps == 1 or size.since_plain >= _PLAIN_EVERY

    def observe(self, outcome) -> None:
        """What a step was (outcome.Outcome)."""
        n, drafted = len(outcome.drafted), sum(outcome.drafted)
        size, tokens, seconds = self._size(n), n + drafted, outcome.target_seconds
        size.steps += 1
        size.since_plain = 0 if drafted == 0 else size.since_plain + 1
        if tokens not in size.seen:
            size.seen.add(tokens)
            return
        if size.sums[0] > 4 and seconds > 2 * size.seconds(tokens):
            return  # something else on the machine interrupted it
        new = (1.0, tokens, seconds, tokens * tokens, tokens * seconds)
        size.sums = [_MEMORY * s + x for s, x in zip(size.sums, new)]
        emitted = n + sum(outcome.accepted)
        size.gained = _MEMORY * size.gained + emitted / n * size.seconds(n)
        size.spent = _MEMORY * size.spent + seconds + outcome.draft_seconds

    def _size(self, requests: int) -> _Size:
        key = size_of(requests)
        if key not in self.sizes:
            known = [k for k, size in self.sizes.items() if size.sums[0]]
            nearest = min(known, key=lambda k: abs(k - key), default=None)
            self.sizes[key] = _Size(None if nearest is None else self.sizes[nearest])
        return self.sizes[key]
