# SPDX-License-Identifier: Apache-2.0
"""`bad_words` of requests in the decode loop: the text equals plain decoding's with the same bad words, and no output
holds one. Some words begin in the output and would end inside a draft."""

import math
from dataclasses import replace

import pytest
import torch
from support import plain_views, tiers, tiny
from support.drafters import EVERY, UNDER_VIEWS

import specdec_kernels as sk
from specdec_kernels import testing
from specdec_kernels.decode import (
    ModelDrafter,
    PromptLookupDrafter,
    Request,
    TokenCascade,
    TreeDrafter,
    adapt,
    generate,
)
from specdec_kernels.decode.bad_words import BadWords
from specdec_kernels.decode.sequence import Batch, Sequence

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def models():
    return tiny.served()["lean"]


def words_of(hf, request):
    """Return words of one to three ids from different places of the request's own text, and one that begins there and
    ends in another id."""
    free = plain_views.greedy(hf, request)
    return ((free[5],), tuple(free[0:2]), tuple(free[2:5]), tuple(free[7:9]), (free[8], free[9], 31))


def mixed(hf):
    """Return eight requests. Two of three have bad words from their own texts; some of these also have a penalty, a
    bias and min_tokens."""
    more = [{}, {}, dict(presence_penalty=0.6, logit_bias={5: 2.0}, min_tokens=7, eos=(0, 3, 9))]
    todo = [replace(r, max_new_tokens=14, **more[i % 3]) for i, r in enumerate(tiny.requests())]
    return [replace(r, bad_words=() if i % 3 == 1 else words_of(hf, r)) for i, r in enumerate(todo)]


def holds(text, word):
    return any(tuple(text[i : i + len(word)]) == word for i in range(len(text)))


@pytest.mark.parametrize("kind", UNDER_VIEWS)
def test_greedy_is_plain_decoding(models, kind):
    """Kills: the words of another request or position; a window (the last tokens before a position) of another branch,
    one that holds the prompt, and one that lacks the drafts or the output before them."""
    hf, target, draft = models
    todo = mixed(hf)
    output = generate(target, todo, EVERY[kind](draft), max_batch=3).check()
    expected = [plain_views.greedy(hf, r) for r in todo]
    assert [r.tokens for r in output.results] == expected
    free = [plain_views.greedy(hf, replace(r, bad_words=())) for r in todo]
    assert [a == b for a, b in zip(expected, free)] == [i % 3 == 1 for i in range(8)]
    assert not any(holds(text, word) for text, r in zip(expected, todo) for word in r.bad_words)
    assert kind in ("plain", "lookup") or output.stats.accepted > 5


def test_what_is_forbidden_by_hand():
    """Words [1, 2] and [3, 1, 4] after the prompt 9, 3, 1: the prompt does not count, drafts do. A word of one id, [7],
    is a bias and not listed here."""
    request = Request([9, 3, 1], 9, bad_words=((7,), (1, 2), (3, 1, 4)))
    fresh, later = Sequence(0, request), Sequence(1, request)
    later.extend([5, 3])
    words = BadWords(Batch([fresh, later]))
    chain = torch.tensor([[3, 1, 6], [1, 1, -1]])
    assert words.forbidden(words.along_chain(chain)).tolist() == [
        [[-1, -1], [-1, -1], [2, 4], [-1, -1]],
        [[-1, -1], [2, 4], [2, -1], [-1, -1]],
    ]
    # root -> 3 -> 1, root -> 1 -> 1, and a node of padding
    parents = torch.tensor([[-1, 0, 0, 1, 2, -1]] * 2, dtype=torch.int32)
    tokens = torch.tensor([[-1, 3, 1, 1, 1, -1]] * 2)
    assert words.forbidden(words.in_tree(parents, tokens))[:, :5].tolist() == [
        [[-1, -1], [-1, -1], [2, -1], [2, 4], [2, -1]],
        [[-1, -1], [-1, -1], [2, 4], [2, 4], [2, -1]],
    ]
    drafted = torch.tensor([[[3, 1], [1, 3]], [[1, 3], [3, 1]]])
    assert words.forbidden(words.after(drafted)).tolist() == [[[2, 4], [-1, -1]], [[-1, -1], [2, 4]]]


PROMPT, V = [1], 4
BAD = dict(bad_words=((2, 2), (0, 1, 3), (3, 0)), logit_bias={3: 0.5}, frequency_penalty=0.4)
CASES = {
    "token": (lambda d: ModelDrafter(d, 3), {}),
    "block": (lambda d: ModelDrafter(d, 3), dict(verify="block")),
    "lookup": (lambda d: PromptLookupDrafter(3, 2, 1), {}),
    "kseq": (lambda d: TreeDrafter(d, "kseq", 2, 3), {}),
    "traversal": (lambda d: TreeDrafter(d, "traversal", shape=(2, 2, 1)), {}),
    "target_only": (lambda d: TreeDrafter(d, "target_only", shape=(2, 1, 1)), {}),
}
THOROUGH = "lookup", "target_only", "block", "kseq"


def decoded(drafter, n=tiers.draws(8000), verify="token", status=0):
    target, draft = tiny.llama(3, V, 0.15), tiny.llama(4, V, 0.15)
    request = Request(PROMPT, 4, temperature=1.0, **BAD)
    todo = [replace(request, seed=i) for i in range(n)]
    output = generate(adapt(target), todo, drafter(adapt(draft)), max_batch=2000, verify=verify)
    assert output.stats.status == status
    law = plain_views.texts(plain_views.laws(target, request), request)
    return [r.tokens for r in output.results], output.stats, law


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.thorough if kind in THOROUGH else ()) for kind in CASES]
)
@pytest.mark.slow
def test_joint_law(kind):
    """Words may end at any position of a draft. With 8,000 draws a bias of total variation 0.1 is found 99 times in
    100."""
    drafter, options = CASES[kind]
    tokens, stats, law = decoded(drafter, **options)
    check = testing.check_tokens(tokens, law)
    assert check.passed and check.cells > 20 and check.detects < tiers.shift(0.1), check
    assert len(law) < V**4 and set(map(tuple, tokens)) <= set(law) and 0.1 < stats.alpha < 0.98, stats


@pytest.mark.slow
def test_joint_law_finds_the_first_window_on_every_row(monkeypatch):
    """Control of the test above."""
    honest = BadWords.along_chain
    monkeypatch.setattr(BadWords, "along_chain", lambda self, x: honest(self, x)[:, :1].expand(-1, x.shape[1] + 1, -1))
    tokens, _, law = decoded(CASES["token"][0], 4000, status=sk.STATUS_INVALID_DRAFT)
    assert not testing.check_tokens(tokens, law | {tuple(t): 0.0 for t in tokens if tuple(t) not in law}).passed


def test_what_is_refused(models):
    _, target, draft = models
    request = Request([1, 2], 5, bad_words=((7, 8),), temperature=1.0)
    rules = "rule must be one of exact, lenience, lossy, typical, relaxed, thresholds where bad_words forbids ids"
    for drafter, changed, text in [
        (ModelDrafter(draft), dict(rule="synthetic", alpha=0.5), rules),
        (None, dict(bad_words=((7,), (3, 32))), r"bad_words ids must lie in \[0, V=32\), request 0 has 32"),
        (TokenCascade(draft), dict(rule="chow"), rules),
    ]:
        with pytest.raises(ValueError, match=text):
            generate(target, [replace(request, **changed)], drafter)


def test_a_word_of_one_id_is_a_bias(models):
    """A bad word of one id equals a bias of -inf. It overrides another bias of the same id."""
    hf, target, draft = models
    todo = [Request(r.prompt, 12, bad_words=((3,), (5,)), logit_bias={3: 9.0}) for r in tiny.requests()]
    same = [replace(r, bad_words=(), logit_bias={3: -math.inf, 5: -math.inf}) for r in todo]
    got = [generate(target, x, ModelDrafter(draft, 3)).check().results for x in (todo, same)]
    assert [r.tokens for r in got[0]] == [r.tokens for r in got[1]] == [plain_views.greedy(hf, r) for r in todo]
