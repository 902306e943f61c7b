# SPDX-License-Identifier: Apache-2.0
"""Grammars for `Request.allowed`, by llguidance (the extra `grammar`)."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["Grammar", "Matcher"]

# White space as json.dumps writes it. If any were allowed, a text could go on with white space for ever.
_JSON = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Grammar:
    """A JSON schema or a regular expression that a request's whole text must match.

        grammar = Grammar.json_schema(schema, pair.tokenizer, pair.eos)
        request = Request(prompt, eos=pair.eos, allowed=grammar.matcher())

    Where the text may end, the ids of `eos` are allowed; other special tokens never are. A text that is cut by
    max_new_tokens or by a stop string is the beginning of one that matches. JSON is written on one line, with a space
    after each comma and colon.

    Args:
        kind, source: "JSON schema" and the schema's JSON text, or "regular expression" and the expression, in
            llguidance's (Rust's) syntax.
        tokenizer: a fast tokenizer of transformers.
        eos: the ids that end a request, as in `Request.eos`.

    Raises:
        TypeError: a tokenizer that is not fast.
        ValueError: a source that is no grammar, with llguidance's reason; a tokenizer that llguidance cannot
            read (byte-level ones and those with byte fallback are fine); no end token.
        ModuleNotFoundError: llguidance is not installed.
    """

    def __init__(self, kind: str, source: str, tokenizer: Any, eos: Sequence[int]):
        import llguidance.hf
        from transformers import PreTrainedTokenizerFast

        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise TypeError(f"Grammar: tokenizer must be a fast tokenizer, got {type(tokenizer).__name__}")
        if not eos:
            raise ValueError("Grammar: eos must hold at least one token id, got none")
        self._source = check_grammar(kind, source)
        try:
            self._tokenizer = llguidance.hf.from_tokenizer(tokenizer, eos_token=[*eos])
        except ValueError as error:
            raise ValueError(f"Grammar: tokenizer must be one that llguidance reads: {error}") from None

    @classmethod
    def json_schema(cls, source: str | dict, tokenizer: Any, eos: Sequence[int]) -> "Grammar":
        """Return the grammar of JSON texts that a schema describes. source: the schema, or its JSON text."""
        return cls("JSON schema", source if isinstance(source, str) else json.dumps(source), tokenizer, eos)

    @classmethod
    def regex(cls, source: str, tokenizer: Any, eos: Sequence[int]) -> "Grammar":
        """Return the grammar of texts that a regular expression matches as a whole."""
        return cls("regular expression", source, tokenizer, eos)

    def matcher(self) -> "Matcher":
        """Return a function for `Request.allowed`. Give each request its own."""
        import llguidance

        return Matcher(llguidance.LLMatcher(self._tokenizer, self._source, log_level=0))


class Matcher:
    """A function: text (a list of ids) -> a bit mask of the ids that may follow, as `Request.allowed` returns it.

    One matcher serves all positions of a chain or a tree. From one text to the next it rolls back to their common
    beginning and reads the rest.

    Raises:
        ValueError: a call with a text that the grammar forbids.
    """

    def __init__(self, fresh: Any):
        self._fresh, self._matcher, self._text = fresh, fresh.deep_copy(), list[int]()

    def __call__(self, text: list[int]) -> np.ndarray:
        shared = next((i for i, (a, b) in enumerate(zip(self._text, text)) if a != b), min(len(self._text), len(text)))
        back, rest = len(self._text) - shared, text[shared:]
        if (back and not self._matcher.rollback(back)) or (rest and not self._matcher.consume_tokens(rest)):
            reason = self._matcher.get_error().split("\n")[0]  # later lines print the matcher's state
            self._matcher, self._text = self._fresh.deep_copy(), []  # after an error a matcher stays unusable
            raise ValueError(f"Grammar: the text must be one that the grammar allows: {reason}")
        self._text = list(text)
        return np.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=np.int32)


def check_grammar(kind: str, source: str) -> str:
    """Return a grammar as llguidance takes it.

    kind: "JSON schema" or "regular expression".

    Raises:
        ValueError: the source is no such grammar.
    """
    from llguidance import LLMatcher

    if kind == "JSON schema":
        try:
            schema = json.loads(source)
        except ValueError as error:
            raise ValueError(f"Grammar: the JSON schema must be JSON: {error}") from None
        found = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_JSON)
    else:
        found = LLMatcher.grammar_from_regex(source)
    wrong, reasons = LLMatcher.validate_grammar_with_warnings(found)
    if wrong:
        raise ValueError(f"Grammar: the {kind} must be one that llguidance takes: {' '.join(reasons[0].split())}")
    return found
