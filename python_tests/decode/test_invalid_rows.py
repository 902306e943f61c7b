# SPDX-License-Identifier: Apache-2.0
"""A NaN row of the target ends its request with an error, after the tokens before it. A draft's NaN row costs only its
drafts. Rows are made invalid where they are read, or by weights, so that NaN is among keys and values too."""

import copy
import math

import pytest
import torch
from support import tiny
from support.drafters import EVERY
from support.sessions import check_events, run
from support.tiny import InDoubles

from specdec_kernels.decode import HFModel, Request, Session, generate

pytestmark = pytest.mark.usefixtures("one_thread")

SLOW = [pytest.mark.slow, pytest.mark.thorough]
QUICK = "plain", "both", "kseq", "hierarchical", "cascade"
SOME = [pytest.param(kind, marks=() if kind in QUICK else SLOW) for kind in EVERY]
# As in block verification, a later row affects an earlier acceptance, so that these are tested at temperature 0.
AHEAD = "traversal", "widths"
REASON = "step: the target's row for the next token must be a distribution, got NaN, +inf or nothing finite"


class Spoilt(InDoubles):
    """Rows from position `at` on, in slots whose text begins with token `mark`, hold `value`."""

    mark, at, value = 31, 10**9, math.nan

    def new_cache(self, slots, capacity):
        cache = super().new_cache(slots, capacity)
        cache.begins_with = {}
        move = cache.move

        def moved(source, target):
            cache.begins_with[target] = cache.begins_with.get(source)
            move(source, target)

        cache.move = moved
        return cache

    def forward(self, ids, start, cache, slot=0, keep="all", branches=None):
        if not hasattr(cache, "begins_with"):  # a cache of the probe, which runs when the model is wrapped
            return super().forward(ids, start, cache, slot, keep, branches)
        for i, at in enumerate(start):
            if at == 0:
                cache.begins_with[slot + i] = ids[i, 0].item()
        logits = super().forward(ids, start, cache, slot, "all" if keep == "present" else keep, branches)
        if logits is None:
            return None
        rows = cache.positions >= self.at
        marked = [cache.begins_with.get(slot + i) == self.mark for i in range(len(start))]
        rows = rows & torch.tensor(marked)[:, None]
        if isinstance(keep, list):
            rows = rows[torch.arange(len(keep)), torch.tensor(keep)]
        logits = logits.clone()
        logits[rows] = self.value
        return logits[ids >= 0] if keep == "present" else logits


@pytest.fixture(scope="module")
def models():
    return Spoilt(tiny.llama(0)), Spoilt(tiny.nearby(tiny.llama(0)))


def requests_for(kind, temperature=0.9):
    rule = dict(rule="chow", alpha=0.4) if kind == "cascade" else {}
    hot = 0.0 if kind == "greedy" or kind.startswith("adaptive") else temperature
    return [
        Request([31 if i == 1 else 2 + i, *r.prompt[:6]], 6 + 2 * (i % 3), temperature=hot, seed=i, **rule)
        for i, r in enumerate(tiny.requests(5))
    ]


@pytest.mark.parametrize("verify", ["token", "block"])
@pytest.mark.parametrize("kind", SOME)
def test_a_target_that_turns_invalid(models, kind, verify):
    """Rows turn NaN, +inf or -inf at the first step or later. The text must not go on with token 0. Kills: a token too
    many, a token too few, and another request's row taken for this one's."""
    target, draft = models
    drafter = EVERY[kind](draft)
    if drafter is not None and verify not in drafter.verifies:
        return
    todo = requests_for(kind, 0.0 if verify == "block" or kind in AHEAD else 0.9)
    whole = generate(target, todo, EVERY[kind](draft), max_batch=1, verify=verify).results
    for value, at in [(math.nan, 6), (math.nan, 9), (math.inf, 10), (-math.inf, 7)]:
        spoilt = copy.copy(target)
        spoilt.at, spoilt.value = at, value
        session = Session(spoilt, drafter, max_batch=3, capacity=40, verify=verify)
        check_events(session, run(session, todo))
        for i, (result, own) in enumerate(zip(session.results.values(), whole)):
            if i == 1:
                assert (result.finished, result.error) == ("error", REASON)
                assert result.tokens == own.tokens[: at - 6], "the tokens whose rows were valid, all of them"
                assert result.stats.status & 1
            else:
                assert (result.tokens, result.finished, result.error) == (own.tokens, "length", None)
        session.close()


@pytest.mark.parametrize("kind", [k for k in SOME if k.values[0] not in ("plain", "lookup")])
def test_a_draft_that_turns_invalid(models, kind):
    """Exactness does not depend on the draft: there is no error, and at temperature 0 the tokens are plain decoding's.
    A cascade keeps no token of such a draft."""
    target, draft = models
    spoilt = copy.copy(draft)
    todo, quiet = requests_for(kind, 0.0), Request([31, 5], 6, temperature=0.9, seed=3)
    quiet = quiet if kind not in ("greedy", "cascade") else todo[0]
    plain = generate(target, requests_for("plain", 0.0)).results
    for at in (0, 6, 9):
        spoilt.at = at
        session = Session(target, EVERY[kind](spoilt), max_batch=3, capacity=40)
        run(session, [*todo, quiet])
        assert [r.error for r in session.results.values()] == [None] * 6
        assert [r.finished for r in session.results.values()] == ["length"] * 6
        if kind != "cascade":
            assert [r.tokens for r in session.results.values()][:5] == [r.tokens for r in plain]
        elif at == 0:
            assert session.results[1].tokens == plain[1].tokens


class OneBadToken(HFModel):
    """The embedding of token 30 is NaN, and so is every position that attends to it."""

    taken_over = False

    def __init__(self, model):
        super().__init__(model.double(), pack=False)
        self.taken_over = True
        self.model.model.embed_tokens.weight = torch.nn.Parameter(self.model.model.embed_tokens.weight.clone())
        self.model.model.embed_tokens.weight.data[30] = math.nan

    def forward(self, *args, **options):
        logits = super().forward(*args, **options)
        if logits is None or not self.taken_over:
            return logits
        logits = logits.float()
        logits[..., 30] = -math.inf  # never emitted, but a prompt may hold it
        return logits


@pytest.mark.parametrize("whose", ["target", "draft", "both"])
@pytest.mark.parametrize("kind", SOME)
def test_nan_among_keys_and_values_stays_in_its_request(kind, whose):
    """A slot is reused by a shorter request, beside a longer one. Stale positions under the mask contribute 0 times
    their contents, which is NaN if they were not cleared."""
    good, nearby = (lambda: tiny.llama(0)), (lambda: tiny.nearby(tiny.llama(0)))
    bad = {name: OneBadToken if whose in (name, "both") else Clean for name in ("target", "draft")}
    target, draft = bad["target"](good()), bad["draft"](nearby())
    rule = dict(rule="chow", alpha=0.4) if kind == "cascade" else {}
    hot = 0.0 if kind == "greedy" or kind.startswith("adaptive") else 0.9
    prompts = [[4, 5] * 8, [3, 30, *[7, 8, 9] * 4], [5, 30] * 6, [6, 7], [8], [9, 3]]
    todo = [Request(p, 10 if i == 0 else 5, temperature=hot, seed=i, **rule) for i, p in enumerate(prompts)]
    session = Session(target, EVERY[kind](draft), max_batch=3, capacity=40)
    run(session, todo)
    for i, (result, request) in enumerate(zip(session.results.values(), todo)):
        own = generate(target, [request], EVERY[kind](draft)).results[0]
        failed = whose != "draft" and 30 in request.prompt
        assert (result.finished, own.finished) == (("error",) * 2 if failed else ("length",) * 2)
        assert result.tokens == own.tokens, (i, result.error)
        if whose != "target" and kind not in ("plain", "lookup") and 30 not in request.prompt:
            assert not result.stats.status, "a draft without NaN in its text has none in its rows"


class Clean(OneBadToken):
    """The same, without the NaN embedding."""

    def __init__(self, model):
        HFModel.__init__(self, model.double(), pack=False)
        self.taken_over = True
