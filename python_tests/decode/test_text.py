# SPDX-License-Identifier: Apache-2.0
"""Streamed text: equal to the decoding of the whole at linear cost, with stop strings that may contain special
tokens."""

import functools
import json
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tiny, tokenizers
from support.tokenizers import BYTES, MAKE, PIECES, SPECIAL, WORDS, decoded
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from specdec_kernels.decode import Request, adapt, generate
from specdec_kernels.decode.text import TextStream

KINDS = [pytest.param(k, marks=[pytest.mark.thorough] * (k == "smollm2")) for k in MAKE]  # 12 s to read that one
BY_BYTES = ("byte_level", "smollm2")


@functools.cache
def special(tokenizer):
    return {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}


@functools.cache
def vocabulary(tokenizer):
    return tokenizer.get_vocab()


def known(tokenizer, ids):
    """Return the ids without special tokens and ids that the tokenizer does not know."""
    return [i for i in ids if i < len(vocabulary(tokenizer)) and i not in special(tokenizer)]


def expected(tokenizer, ids):
    """Return the decoding of the whole. In a run of byte tokens with invalid ones, valid characters are kept."""
    names = tokenizer.convert_ids_to_tokens(ids := known(tokenizer, ids))
    fallback = BYTES[0] in vocabulary(tokenizer)
    out, end = "", 0
    for is_bytes, run in groupby(names, lambda name: fallback and name in BYTES):
        run = list(run)
        start, end = end, end + len(run)
        text = decoded(tokenizer, ids[:end])[len(decoded(tokenizer, ids[:start])) :]
        if is_bytes and text == "\ufffd" * len(run):
            values = [BYTES.index(name) for name in run]
            first = decoded(tokenizer, ids[:1]) if start == 0 and values[0] < 128 else None
            text = (first or "") + bytes(values[first is not None :]).decode("utf-8", "surrogateescape")
            text = "".join("\ufffd" if "\udc80" <= c <= "\udcff" else c for c in text)
        out += text
    return out


def streamed(tokenizer, ids, stop=()):
    """Return the pieces, and whether a stop string was met."""
    stream, pieces = TextStream(tokenizer, stop), []
    for i in ids:
        text, stopped = stream.push(i)
        pieces.append(text)
        if stopped:
            return pieces, True
    return [*pieces, stream.flush()], False


@st.composite
def ids_of(draw, tokenizer):
    """Return runs of any ids, of ids that are parts of characters, and of special and unknown ones."""
    V, vocab = len(vocabulary(tokenizer)), vocabulary(tokenizer)
    names = [name for name in BYTES if name in vocab] or [t for t in vocab if len(t) <= 3]
    parts = [vocab[name] for name in names]
    ranges = [st.integers(0, V + 3), st.sampled_from(parts), st.integers(V - 3, V + 3)]
    character = st.sampled_from(["\u4f60", "\U0001f600", "\u00e9"]).map(lambda c: spelled(tokenizer, c))
    one = st.one_of(*(r.map(lambda i: [i]) for r in ranges), character)
    return sum(draw(st.lists(one, max_size=40)), [])


def spelled(tokenizer, text):
    """Return the ids of a text, byte by byte if the vocabulary has bytes."""
    vocab = vocabulary(tokenizer)
    names = [BYTES[b] for b in text.encode()]
    if names[0] not in vocab:
        names = [tokenizers.alphabet()[b] for b in text.encode()]
    return [vocab[name] for name in names if name in vocab]


@pytest.mark.parametrize("kind", KINDS)
def test_text_is_the_decoding_of_the_whole(kind):
    tokenizer = MAKE[kind]()

    @settings(max_examples=100, deadline=None, derandomize=True, database=None)
    @given(ids_of(tokenizer))
    def check(ids):
        pieces, _ = streamed(tokenizer, ids)
        assert "".join(pieces) == expected(tokenizer, ids)
        if kind in (*BY_BYTES, "word_piece"):
            # no run of byte tokens: exactly the decoding of the whole
            assert expected(tokenizer, ids) == decoded(tokenizer, ids)
            for n in range(len(ids)):  # and nothing is held back except one character that may be incomplete
                so_far = decoded(tokenizer, ids[: n + 1])
                assert "".join(pieces[: n + 1]) == so_far.removesuffix("\ufffd")

    check()


@pytest.mark.parametrize("kind", ["byte_fallback", "unigram"])
def test_valid_bytes_are_the_decoding_of_the_whole(kind):
    """Characters in byte tokens with special tokens among their bytes: none is changed, and none waits for the next."""
    tokenizer = MAKE[kind]()
    for text in ("\u4f60\U0001f600\u00e9" * 9, " a\u4f60 b", "\u00e9 x", "\ufffd\ufffda"):
        ids = spelled(tokenizer, text)
        ids = sum(([i, len(vocabulary(tokenizer)) - 1] for i in ids), [])
        pieces, _ = streamed(tokenizer, ids)
        assert "".join(pieces) == decoded(tokenizer, ids) and pieces[-1] == ""


def test_the_inputs_are_not_vacuous():
    """Invalid bytes occur, and a run of byte tokens sometimes differs from the tokenizer's own decoding."""
    fallback, level = MAKE["byte_fallback"](), MAKE["byte_level"]()
    ids = [0xFF, *spelled(fallback, "\u4f60")]
    assert (decoded(fallback, ids), "".join(streamed(fallback, ids)[0])) == ("\ufffd" * 4, "\ufffd\u4f60")
    inside = level.convert_tokens_to_ids(["".join(tokenizers.alphabet()[b] for b in PIECES[0])])
    pieces, _ = streamed(level, [0xE4, 0xBD, *inside * 3, 0xA0])
    assert pieces == ["", "", *["\u4f60"] * 3, "\u4f60", ""]  # every token ends inside a character


ENDLESS = {
    "invalid bytes": lambda t: [b"\xff"],
    "first bytes": lambda t: [b"\xe4"],
    "last bytes": lambda t: [b"\xa0"],
    "inside characters": lambda t: [b"\xa0", b"\xe4", b"\xbd"],
    "characters": lambda t: [b"\xe4", b"\xbd", b"\xa0"],
    "broken ones": lambda t: [b"\xe4", b"\xbd"],
    "special tokens": lambda t: [SPECIAL[0]],
    "unknown ids": lambda t: [None],
    "words": lambda t: ["foo", " foo"],
    "the replacement character": lambda t: ["\ufffd"],
    "spaces": lambda t: [" "],
}


def ids_named(tokenizer, names):
    vocab = vocabulary(tokenizer)
    for name in names:
        if name is None:
            yield len(vocabulary(tokenizer)) + 7
        elif isinstance(name, bytes):
            byte = BYTES[name[0]]
            yield vocab[byte if byte in vocab else tokenizers.alphabet()[name[0]]]
        else:
            letters = "".join(tokenizers.alphabet()[b] for b in name.encode())
            yield next(vocab[x] for x in (name.replace(" ", "\u2581"), letters, name) if x in vocab)


@pytest.mark.parametrize("what", ENDLESS)
@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "unigram"])
def test_an_endless_run_costs_the_same_at_every_token(kind, what):
    """The number of ids decoded per token is at most two windows and their neighbours, after 1,000 tokens as after
    10."""
    tokenizer = MAKE[kind]()
    counting = tokenizers.Counting(tokenizer)
    stream, ids = TextStream(counting, ("zz",)), list(ids_named(tokenizer, ENDLESS[what](tokenizer)))
    for i in range(1000):
        before = counting.ids
        stream.push(ids[i % len(ids)])
        assert counting.ids - before <= 2 * 16 + 8
        assert len(stream.ids.window) <= 16 and len(stream.held) <= 1


def spoken(kind):
    """Return ids of words only, whose text does not depend on what follows, and special ones."""
    tokenizer = MAKE[kind]()
    vocab = vocabulary(tokenizer)
    if kind == "word_piece":
        return [i for name, i in vocab.items() if name != "[UNK]"]
    if kind == "smollm2":
        return [1, 2, *(tokenizer.encode(x)[0] for x in (" foo", "foo", "a", "b", " ", ".", "<", "im"))]
    names = [w for w in WORDS if w.isascii()]
    return list(ids_named(tokenizer, [*names, *SPECIAL, tokenizers.NOT_SPECIAL]))


STOPS = st.one_of(
    st.sampled_from([SPECIAL[0], "foo" + SPECIAL[0], SPECIAL[0] + SPECIAL[1], "o" + SPECIAL[0] + "a", "im_end", "|>b"]),
    st.sampled_from([SPECIAL[1] + " foo", "think>", "<", "foo foo", "oa", "ab", ".", "  "]),
    st.text("abfo. ", min_size=1, max_size=4),
)


def stopped_text(tokenizer, ids, stops):
    """Return, found character by character, the text before the first complete stop string, and the tokens until
    then."""
    whole, shown, ends = "", [], []
    for n, i in enumerate(ids):
        skip = i not in special(tokenizer)
        before = ids[:n] if skip else ids[:n][-1:]
        more = decoded(tokenizer, [*before, i], skip)[len(decoded(tokenizer, before, skip)) :]
        whole, shown = whole + more, shown + [skip] * len(more)
        ends.append(len(whole))
    for end in range(1, len(whole) + 1):
        lengths = [len(s) for s in stops if whole[:end].endswith(s)]
        if lengths:
            text = "".join(c for c, yes in zip(whole[: end - max(lengths)], shown) if yes)
            return text, next(n + 1 for n, e in enumerate(ends) if e >= end)
    return "".join(c for c, yes in zip(whole, shown) if yes), None


@pytest.mark.parametrize("kind", KINDS)
def test_stop_strings_see_special_tokens(kind):
    """The text, and the token at which it ends, equal those of a search through the whole text, character by
    character."""
    tokenizer, met = MAKE[kind](), set()

    @settings(max_examples=150, deadline=None, derandomize=True, database=None)
    @given(st.lists(st.sampled_from(spoken(kind)), max_size=20), st.lists(STOPS, min_size=1, max_size=3))
    def check(ids, stops):
        want, tokens = stopped_text(tokenizer, ids, stops)
        pieces, stopped = streamed(tokenizer, ids, tuple(stops))
        assert "".join(pieces) == want and stopped == (tokens is not None)
        assert not stopped or len(pieces) == tokens
        met.add((stopped, any("|" in s for s in stops)))

    check()
    assert len(met) == 4  # with and without special tokens in them, found and not


def test_a_turn_ends_where_the_model_ends_it():
    """SPECIAL[0] is not part of the text, and the part of the stop string before it is not shown either."""
    tokenizer = MAKE["byte_level"]()
    ids = list(ids_named(tokenizer, ["a", " foo", SPECIAL[0], "b"]))
    assert streamed(tokenizer, ids) == (["a", " foo", "", "b", ""], False)
    assert streamed(tokenizer, ids, (SPECIAL[0],)) == (["a", " foo", ""], True)
    assert streamed(tokenizer, ids, (" foo" + SPECIAL[0],)) == (["a", "", ""], True)
    assert streamed(tokenizer, ids, ("foo" + SPECIAL[0] + "c",)) == (["a", " ", "", "foob", ""], False)
    typed = [*ids[:2], *spelled(tokenizer, SPECIAL[0])]
    assert streamed(tokenizer, typed, (SPECIAL[0],))[1]  # typed as text, it stops too


def test_in_the_loop():
    """A special token as the stop string of a request ends it at that token; otherwise the token is skipped."""
    tokenizer = tokenizers.byte_level()
    model = tiny.llama(3, vocab=len(tokenizer))
    free = tiny.greedy(model, [5, 6, 7], 12)
    at = next(n for n in range(4, 12) if free[n] not in free[:n])
    name = "<|end|>"
    says = json.loads(tokenizer.backend_tokenizer.to_str())
    says["model"]["vocab"] = {name if i == free[at] else t: i for t, i in says["model"]["vocab"].items()}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(says)))
    tokenizer.add_special_tokens({"additional_special_tokens": [name]})
    for stop, tokens in (((), free), ((name,), free[: at + 1])):
        result = generate(adapt(model), [Request([5, 6, 7], 12, stop=stop)], tokenizer=tokenizer).results[0]
        assert result.tokens == tokens and result.text == decoded(tokenizer, tokens)
        assert result.finished == ("stop" if stop else "length")


@pytest.mark.parametrize(
    ("stop", "error", "says"),
    [
        (("",), ValueError, r"stop must hold strings of at least one character, got \(''?,?\)"),
        (("a", ""), ValueError, r"stop must hold strings of at least one character, got \('a', ''\)"),
        ("abc", TypeError, r"stop must be a tuple of strings, got 'abc'"),
        ((b"a",), TypeError, r"stop must be a tuple of strings, got \(b'a',\)"),
        ((7,), TypeError, r"stop must be a tuple of strings, got \(7,\)"),
        (None, TypeError, r"stop must be a tuple of strings, got None"),
    ],
)
def test_stop_strings_that_are_none(stop, error, says):
    with pytest.raises(error, match=says):
        TextStream(tiny.Letters(), stop)
