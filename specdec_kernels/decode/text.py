# SPDX-License-Identifier: Apache-2.0
"""Token ids to text as they arrive: whole characters only, and nothing of a stop string."""

__all__ = ["TextStream"]

_BROKEN = "\ufffd"  # what a tokenizer writes for the first bytes of a character


class TextStream:
    """Decodes a growing list of ids. A token's text may depend on the tokens before it, so each piece is the difference
    between two decodings that start at the same earlier token."""

    def __init__(self, tokenizer, stop: tuple[str, ...] = ()):
        self.tokenizer, self.stop = tokenizer, stop
        self.ids: list[int] = []
        self.first = self.read = 0  # ids[first:read] has been written out already
        self.held = ""  # the start of a stop string, perhaps

    def push(self, token: int) -> tuple[str, bool]:
        """-> (text that is sure by now, whether a stop string was met: then the text ends before it)."""
        self.ids.append(token)
        text = self.held + self._new_text()
        for stop in self.stop:
            if stop in text:
                self.held = ""
                return text[: min(text.find(s) for s in self.stop if s in text)], True
        hold = max((n for s in self.stop for n in range(1, len(s)) if text.endswith(s[:n])), default=0)
        cut = len(text) - hold
        self.held = text[cut:]
        return text[:cut], False

    def flush(self) -> str:
        """What was held back, once the request has ended."""
        rest, self.held = self.held + self._new_text(final=True), ""
        return rest

    def _new_text(self, final=False) -> str:
        before = self._decode(self.ids[self.first : self.read])
        now = self._decode(self.ids[self.first :])
        if len(now) <= len(before) or (now.endswith(_BROKEN) and not final):
            return ""
        self.first, self.read = self.read, len(self.ids)
        return now[len(before) :]

    def _decode(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
