# SPDX-License-Identifier: Apache-2.0
"""Streaming of a request's text: whole characters only, ending before a stop string."""

from .detokenizer import Detokenizer

__all__ = ["TextStream", "check_stop"]


def check_stop(op: str, stop) -> None:
    """Check stop strings: a tuple or list of non-empty strings.

    Raises:
        TypeError, ValueError: it is something else.
    """
    if not isinstance(stop, (tuple, list)) or not all(isinstance(s, str) for s in stop):
        raise TypeError(f"{op}: stop must be a tuple of strings, got {stop!r:.80}")
    if "" in stop:
        raise ValueError(f"{op}: stop must hold strings of at least one character, got {tuple(stop)!r:.80}")


class TextStream:
    """A decoder of a growing list of ids that ends at the first stop string.

    Special tokens are not part of the text, but stop strings can match them, written as the tokenizer writes them when
    it does not skip them: "<|im_end|>" and "yes<|im_end|>" match where the model ends a turn. The end of the text does
    not depend on how it is split into tokens.

    Args:
        tokenizer: an object with `decode`, as transformers' tokenizers have it.
        stop: the text ends before the first of these that is complete.

    Raises:
        TypeError: stop is no tuple or list of strings.
        ValueError: one of them is empty.
    """

    def __init__(self, tokenizer, stop: tuple[str, ...] = ()):
        check_stop("TextStream", stop)
        self.ids, self.stop = Detokenizer(tokenizer), tuple(stop)
        self.held = ""  # held back: it may be the start of a stop string
        self.shown: list[bool] = []  # for each character of `held`: whether it is part of the text

    def push(self, token: int) -> tuple[str, bool]:
        """Return the text that is certain by now, and whether a stop string was met; the text then ends before it."""
        text, special = self.ids.push(token)
        if not self.stop:
            return text, False
        self.held += text + special
        self.shown += [True] * len(text) + [False] * len(special)
        found = [(at + len(s), at) for s in self.stop if (at := self.held.find(s)) >= 0]
        if found:
            text = self._take(min(found)[1])
            self.held, self.shown = "", []
            return text, True
        hold = max(n for s in self.stop for n in range(len(s)) if self.held.endswith(s[:n]))
        return self._take(len(self.held) - hold), False

    def flush(self) -> str:
        """Return the text that was held back, once the request has ended."""
        return self._take(len(self.held)) + self.ids.flush()

    def _take(self, n: int) -> str:
        """Remove the next n held characters, and return them without special tokens."""
        text = "".join(c for c, shown in zip(self.held[:n], self.shown) if shown)
        self.held, self.shown = self.held[n:], self.shown[n:]
        return text
