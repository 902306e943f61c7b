# SPDX-License-Identifier: Apache-2.0
"""Grammars of real libraries: every text matches, and at temperature 0 it is that of plain decoding under masks from a
fresh matcher for each token.

The models are tiny, with a byte-level tokenizer; test_grammar_real_pair.py uses the demo's pair.
"""

from dataclasses import replace

import pytest
import torch
from support import plain_views, tiny
from support.drafters import EVERY
from support.half_invalid import HalfInvalidChains, HalfInvalidTrees, split
from support.matchers import LIBRARIES, REGEX, parses
from support.tokenizers import MAKE, SPECIAL
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specdec_kernels.decode import Grammar, ModelDrafter, Request, adapt, generate

pytestmark = pytest.mark.usefixtures("one_thread")
TOKENIZER = MAKE["byte_level"]()
TOKENIZER.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # so that it encodes, too
V, EOS = len(TOKENIZER), tuple(TOKENIZER.convert_tokens_to_ids([*SPECIAL]))
HALF = {"chains": HalfInvalidChains, "trees": HalfInvalidTrees}


@pytest.fixture(scope="module")
def pair():
    hf = tiny.llama(0, V)
    return hf, adapt(hf), adapt(tiny.nearby(tiny.llama(0, V)))


def requests(make, n=4, **parameters):
    """Return requests with a matcher each; the longest text of the grammars fits."""
    prompts = [[*TOKENIZER.encode(f"text {i}: ")] for i in range(n)]
    return [Request(p, 120, eos=EOS, seed=i, allowed=make(), **parameters) for i, p in enumerate(prompts)]


def plain(hf, make, todo):
    """Return the greedy texts. Each token's mask is that of a matcher that has seen no other text."""
    return [plain_views.greedy(hf, replace(r, allowed=lambda text: make()(text))) for r in todo]


def text_of(result):
    assert result.finished == "eos"
    return TOKENIZER.decode(result.tokens, skip_special_tokens=True)


@pytest.mark.parametrize("shape", HALF)
@pytest.mark.parametrize("kind", ["json", "regex"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_half_of_the_drafts_are_invalid(pair, library, kind, shape):
    """Kills: a mask of another position or branch, a matcher that is not rolled back, a call of the matcher on a
    forbidden draft (it raises), a forbidden draft that is accepted."""
    hf, target, _ = pair
    make = LIBRARIES[library](kind, TOKENIZER, EOS)
    todo = requests(make)
    expected = plain(hf, make, todo)
    texts = {tuple(r.prompt): text for r, text in zip(todo, expected)}
    for temperature in (0.0, 1.0):
        drafter = HALF[shape](make(), V, texts if temperature == 0 else None)
        output = generate(target, [replace(r, temperature=temperature) for r in todo], drafter, max_batch=3).check()
        assert all(parses(kind, text_of(r)) for r in output.results), [text_of(r) for r in output.results]
        if temperature == 0:
            assert [r.tokens for r in output.results] == expected
            assert output.stats.accepted > sum(map(len, expected)) / 4
        assert drafter.invalid >= 0.45 * (drafter.valid + drafter.invalid) and drafter.valid > 20
    free = generate(target, [replace(r, allowed=None) for r in todo]).results
    assert not any(parses(kind, TOKENIZER.decode(r.tokens)) for r in free)


@pytest.mark.parametrize("drafter", ["model", "both", "kseq", "traversal", "target_only", "hierarchical"])
def test_drafters_of_the_loop(pair, drafter):
    hf, target, draft = pair
    make = LIBRARIES["llguidance"]("json", TOKENIZER, EOS)
    todo = requests(make)
    output = generate(target, todo, EVERY[drafter](draft), max_batch=3).check()
    assert [r.tokens for r in output.results] == plain(hf, make, todo)
    hot = generate(target, [replace(r, temperature=1.5) for r in todo], EVERY[drafter](draft), max_batch=3).check()
    assert all(parses("json", text_of(r)) for r in (*output.results, *hot.results))


def test_masks_by_hand():
    """For ab|cd the mask allows a or c first, then the letter that completes it, then the end tokens alone, whatever
    the order of calls."""
    pytest.importorskip("llguidance", reason="not installed: llguidance")
    grammar = Grammar.regex("ab|cd", TOKENIZER, EOS)
    matcher = grammar.matcher()
    ids = lambda text: TOKENIZER.encode(text, add_special_tokens=False)
    follow = lambda text: split(matcher(ids(text)), V)[0]
    assert follow("a") == ids("b") and follow("") == sorted(ids("ac")) and follow("c") == ids("d")
    assert follow("cd") == sorted(EOS) and follow("ab") == sorted(EOS) and follow("a") == ids("b")
    with pytest.raises(ValueError, match="Grammar: the text must be one that the grammar allows: .*"):
        matcher(ids("ad"))
    assert follow("c") == ids("d")  # the matcher can still be used


def test_two_requests_do_not_share_a_matcher(pair):
    """Requests in one batch may also share a matcher, since its masks depend only on the text that it is given."""
    hf, target, draft = pair
    make = LIBRARIES["llguidance"]("regex", TOKENIZER, EOS)
    one = make()
    todo = [replace(r, allowed=one) for r in requests(make)]
    output = generate(target, todo, ModelDrafter(draft, 3)).check()
    assert [r.tokens for r in output.results] == plain(hf, make, todo)


def _words():
    """Return a tokenizer that llguidance cannot turn into bytes."""
    words = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    words.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=words)


def test_what_is_refused():
    pytest.importorskip("llguidance", reason="not installed: llguidance")
    for call, error, text in [
        (lambda: Grammar.regex("a", _words(), EOS), ValueError, "tokenizer must be one that llguidance reads: can't"),
        (
            lambda: Grammar.regex("(a", TOKENIZER, EOS),
            ValueError,
            "the regular expression must be one that llguidance t",
        ),
        (lambda: Grammar.json_schema("{a", TOKENIZER, EOS), ValueError, "the JSON schema must be JSON: Expecting prop"),
        (
            lambda: Grammar.json_schema({"type": "x"}, TOKENIZER, EOS),
            ValueError,
            "the JSON schema must be one that llg",
        ),
        (lambda: Grammar.regex(REGEX, TOKENIZER, ()), ValueError, "eos must hold at least one token id, got none"),
        (
            lambda: Grammar.regex(REGEX, tiny.Letters(), EOS),
            TypeError,
            "tokenizer must be a fast tokenizer, got Letters",
        ),
    ]:
        with pytest.raises(error, match="^Grammar: " + text):
            call()


def test_parses_can_fail():
    """Control of `parses`."""
    good = {"json": '{"name": "bo", "age": 7, "tags": ["red"]}', "regex": "abyes12 left"}
    assert all(parses(kind, text) for kind, text in good.items())
    bad = (
        good["json"][:-1],
        good["json"].replace("7", "121"),
        good["json"].replace("red", "rod"),
        '{"name": "bo"}',
        "[1]",
    )
    assert not any(parses("json", text) for text in bad)
    assert not parses("regex", good["regex"] + "s")
    assert torch.equal(torch.tensor(split([5], 3)[0]), torch.tensor([0, 2]))
