# SPDX-License-Identifier: Apache-2.0
"""Incremental decoding of token ids to text, whole characters only, at a cost linear in the number of ids."""

import codecs
import re

__all__ = ["Detokenizer"]

_BROKEN = "\ufffd"  # U+FFFD, which a tokenizer writes for bytes that are not (or not yet) a character
_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")  # a byte-fallback token
_ESCAPED = re.compile("[\udc80-\udcff]")  # a byte that is part of no character, as surrogateescape writes it
# Tokens of context. A window may start inside a character. A character has at most 4 bytes, so no more than the first 3
# tokens of the window are decoded wrongly.
_CONTEXT = 8


class Detokenizer:
    """Decoder of a growing list of ids. Its pieces add up to what the tokenizer decodes from the whole list.

    A token's text may depend on the tokens before it, so a piece is the difference between two decodings of a short
    window of tokens. Only the last character is held back, and only while more bytes could complete it. Special tokens
    have no text and are not part of the window.

    Byte-fallback tokens (<0xE4>) are decoded here: valid characters are kept, and every other byte becomes U+FFFD.
    The tokenizer's own decoder replaces all bytes of a run that has one invalid byte, which a stream cannot do.
    """

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.window: list[int] = []  # the last tokens that carry text
        self.sure = self.pending = ""  # the window's text: what was returned, and an incomplete last character
        self.bytes = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self.last: list[int] = []  # the last token of any kind
        self.kinds: dict[int, tuple[str, int]] = {}

    def push(self, token: int) -> tuple[str, str]:
        """Return the text that is certain now, and separately the text of the token if it is special."""
        kind, byte = self.kinds.get(token) or self.kinds.setdefault(token, self._kind(token))
        text = special = ""
        if kind == "text":
            text = self._finish_bytes() + self._push_text(token)
        elif kind == "byte":
            text = self._push_byte(token, byte)
        elif kind == "special":
            special = self._special_text(token)
        self.last = [token]
        return text, special

    def flush(self) -> str:
        """Return the text that was held back."""
        rest, self.sure, self.pending = self.pending, self.sure + self.pending, ""
        return rest + self._finish_bytes()

    def _push_text(self, token) -> str:
        self.window.append(token)
        before = len(self.sure)
        self._read_window()
        piece = self.sure[before:]
        if len(self.window) >= 2 * _CONTEXT:
            self.window = self.window[-_CONTEXT:]
            self._read_window()
        return piece

    def _read_window(self) -> None:
        text = self._decode(self.window)
        self.sure = text.removesuffix(_BROKEN)
        self.pending = text[len(self.sure) :]

    def _push_byte(self, token, byte) -> str:
        text, alone = self.pending, self._decode([token])
        if not self.window and byte < 128:
            text += alone  # at the start of a text the tokenizer may strip a space
        else:
            text += _ESCAPED.sub(_BROKEN, self.bytes.decode(bytes([byte])))
        self.window, self.sure, self.pending = [token], alone, ""
        return text

    def _finish_bytes(self) -> str:
        return _ESCAPED.sub(_BROKEN, self.bytes.decode(b"", final=True))

    def _kind(self, token) -> tuple[str, int]:
        """Return the id's kind, and its byte value if it is a byte (else 0).

        Kinds: "text", "special", "byte", and "nothing" for an id that the tokenizer does not know.
        """
        text, name = self._decode([token]), token
        if hasattr(self.tokenizer, "convert_ids_to_tokens"):
            name = self.tokenizer.convert_ids_to_tokens(token)
        if name is None:
            return "nothing", 0
        byte = _BYTE.fullmatch(name) if isinstance(name, str) else None
        if byte and text != name:
            return "byte", int(byte[1], 16)
        return ("special" if not text and self._decode([token], skip=False) else "text"), 0

    def _special_text(self, token) -> str:
        """Return the text of a special token, decoded after the token before it."""
        before, both = self._decode(self.last, skip=False), self._decode([*self.last, token], skip=False)
        return both[len(before) :] if both.startswith(before) else self._decode([token], skip=False)

    def _decode(self, ids, skip=True) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
