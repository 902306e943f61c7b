# SPDX-License-Identifier: Apache-2.0
"""Grammars of two libraries, for the field `allowed` of requests, and a check that a text matches."""

import json
import re

import pytest
import torch

from specdec_kernels.decode import Grammar

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{1,5}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
REGEX = r"[a-f]{2,6}(yes|no)[0-9]{1,3}( (left|right)){0,2}"


def parses(kind, text):
    """Return whether a text matches SCHEMA, as checked with Python's json, or REGEX, with Python's re."""
    if kind == "regex":
        return re.fullmatch(REGEX, text) is not None
    try:
        x = json.loads(text)
    except ValueError:
        return False
    name, age, tags = (x.get(key) for key in ("name", "age", "tags")) if isinstance(x, dict) else (None,) * 3
    right = (
        isinstance(name, str)
        and re.fullmatch("[a-z]{1,5}", name)
        and type(age) is int
        and 0 <= age <= 120
        and len(x) == 3
    )
    return bool(right) and isinstance(tags, list) and len(tags) <= 2 and all(tag in ("red", "blue") for tag in tags)


def llguidance(kind, tokenizer, eos):
    pytest.importorskip("llguidance", reason="not installed: llguidance")
    grammar = (Grammar.regex if kind == "regex" else Grammar.json_schema)(
        REGEX if kind == "regex" else SCHEMA, tokenizer, eos
    )
    return grammar.matcher


def xgrammar(kind, tokenizer, eos):
    xgr = pytest.importorskip("xgrammar", reason="not installed: xgrammar")
    info = xgr.TokenizerInfo.from_huggingface(tokenizer, stop_token_ids=[*eos])
    compiler = xgr.GrammarCompiler(info, max_threads=1)
    compiled = (
        compiler.compile_regex(REGEX)
        if kind == "regex"
        else compiler.compile_json_schema(json.dumps(SCHEMA), any_whitespace=False)
    )
    return lambda: XMatcher(xgr, compiled, info.vocab_size)


class XMatcher:
    """One matcher of xgrammar for all texts: it rolls back to the beginning that a text shares with the last one."""

    def __init__(self, xgr, compiled, V):
        self.matcher, self.text = xgr.GrammarMatcher(compiled, max_rollback_tokens=-1), []
        self.words = torch.zeros(1, (V + 31) // 32, dtype=torch.int32)

    def __call__(self, text):
        shared = 0
        while shared < min(len(text), len(self.text)) and text[shared] == self.text[shared]:
            shared += 1
        if back := len(self.text) - shared:
            self.matcher.rollback(back)
        self.text = text[:shared]
        for token in text[shared:]:
            if not self.matcher.accept_token(token):
                raise ValueError(f"asked about {text}")
            self.text.append(token)
        self.words.fill_(-1)
        self.matcher.fill_next_token_bitmask(self.words)
        return self.words[0]


LIBRARIES = {"llguidance": llguidance, "xgrammar": xgrammar}
