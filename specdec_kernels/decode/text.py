# SPDX-License-Identifier: Apache-2.0
"""The text of a request as it arrives: whole characters only, and nothing of a stop string."""

from .detokenizer import Detokenizer

__all__ = ["TextStream", "check_stop"]


def check_stop(op: str, stop) -> None:
    """Raise TypeError or ValueError for what cannot be searched for."""
    if not isinstance(stop, (tuple, list)) or not all(isinstance(s, str) for s in stop):
        raise TypeError(f"{op}: stop must be a tuple of strings, got {stop!r:.80}")
    if "" in stop:
        raise ValueError(f"{op}: stop must hold strings of at least one character, got {tuple(stop)!r:.80}")


class TextStream:
    """Decodes a growing list of ids and ends at the first stop string.

    Special tokens are no part of the text, but stop strings see them, written as the tokenizer writes them when it
    does not skip them: "<|im_end|>" and "yes<|im_end|>" are met where the model ends a turn. Where the text ends does
    not depend on how tokens cut it.

    Args:
        tokenizer: with `decode`, as transformers' tokenizers have it.
        stop: the text ends before the first of them that is complete.

    Raises:
        TypeError: stop is no tuple or list of strings.
        ValueError: one of them is empty.
    """

    def __init__(self, tokenizer, stop: tuple[str, ...] = ()):
        check_stop("generate", stop)
        self.ids, self.stop = Detokenizer(tokenizer), tuple(stop)
        self.held = ""  # the start of a stop string, perhaps
        self.shown: list[bool] = []  # for each of its characters: whether it is part of the text

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
        """Return what was held back, once the request has ended."""
        return self._take(len(self.held)) + self.ids.flush()

    def _take(self, n: int) -> str:
        """The next n characters, without special tokens."""
        text = "".join(c for c, shown in zip(self.held[:n], self.shown) if shown)
        self.held, self.shown = self.held[n:], self.shown[n:]
        return text
