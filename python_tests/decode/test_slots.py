# SPDX-License-Identifier: Apache-2.0
"""A request's drafts do not depend on its slot or on the slot's previous request. Nor do they depend on whether a step
covers all slots or, after a failed step, only a range of them."""

import copy
import random

import pytest
from support import tiny
from support.drafters import DRAFTERS
from support.sessions import come_and_go
from support.tiny import InDoubles

from specdec_kernels.decode import ModelDrafter, PromptLookupDrafter, Request, Session
from specdec_kernels.decode.sequence import Batch, Sequence

pytestmark = pytest.mark.usefixtures("one_thread")


class Boom(Exception):
    """An error that no part of the loop raises by itself."""


@pytest.fixture(scope="module")
def models():
    return InDoubles(tiny.llama(0)), InDoubles(tiny.nearby(tiny.llama(0)))


def of_few_prompts(n):
    """Return requests whose texts and drafts are similar but not equal, so that one's drafts would often pass for
    another's. Some prompts repeat with another period."""
    piece = tiny.requests(1)[0].prompt[:4]
    prompts = piece, piece, (piece + [piece[0]]) * 2, piece * 2
    return [Request(prompts[i % 4], 6 + 3 * (i % 3), temperature=0.6, top_k=3, seed=i) for i in range(n)]


def noted(session):
    """Return {(request, its tokens so far): its drafts} over all proposals, which must be the same each time."""
    found, honest = {}, session.drafter.propose

    def propose(batch):
        proposal = honest(batch)
        parents = getattr(proposal, "parents", None)
        for i, s in enumerate(batch):
            tokens = [] if proposal is None else proposal.tokens[i].tolist()
            above = [-1] + [0] * len(tokens) if parents is None else parents[i].tolist()
            drafts = [pair for pair in zip(tokens, above[1:]) if pair[0] >= 0]
            assert found.setdefault((s.index, tuple(s.tokens)), drafts) == drafts
        return proposal

    session.drafter.propose = propose
    return found


def failing(model, fails):
    """Return the model, whose passes over several requests fail if fails() is true."""
    model, forward = copy.copy(model), model.forward

    def call(ids, *args, **options):
        if len(ids) > 1 and fails():
            raise Boom
        return forward(ids, *args, **options)

    model.forward = call
    return model


KINDS = DRAFTERS | {"lookup": lambda draft: PromptLookupDrafter(4, 3, 1)}  # finds something in any text
del KINDS["plain"]


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_depend_on_the_request_alone(models, kind):
    """Requests are added, end and are cancelled, so that slots are reused, and every third pass of the target over
    several requests fails, so that steps run in parts. Kills: nodes or n-grams recorded for another slot than that of
    their request."""
    target, draft = models
    todo, rng, passes = of_few_prompts(16), random.Random(kind), iter(range(10**6))
    alone = Session(target, KINDS[kind](draft), max_batch=1, capacity=40)
    want = noted(alone)
    for request in todo:
        alone.submit(request)
    list(alone.events())
    parts = failing(target, lambda: next(passes) % 3 == 1)
    session = Session(parts, KINDS[kind](draft), max_batch=5, capacity=40)
    got = noted(session)
    come_and_go(session, todo, rng)
    assert sum(map(bool, got.values())) > 20 and next(passes) > 20
    for place, drafts in got.items():
        assert drafts == want.get(place), place


def test_drafts_that_came_true_are_not_fed_again(models):
    """A draft model whose drafts are all accepted reads at most two tokens per request, the last draft and the one
    after it, also in the step after one that ran in parts."""
    target, _ = models
    passes, widths, draft = iter(range(10**6)), [], copy.copy(target)
    forward = draft.forward

    def counted(ids, *args, **options):
        widths.append(ids.shape[1])
        return forward(ids, *args, **options)

    draft.forward = counted
    session = Session(failing(target, lambda: next(passes) == 1), ModelDrafter(draft, 3), max_batch=4, capacity=40)
    for i in range(4):
        session.submit(Request([3 + i], 12))
    list(session.events())
    assert session.stats.new_tokens == 48 and next(passes) > 2
    assert max(widths) == 2


@pytest.mark.parametrize("gamma", [3, "auto"])
def test_looked_up_text_is_that_of_the_slot(gamma):
    """Three texts in slots 0 to 2, each looked up in a batch that begins at its slot."""
    texts = [[1, 2, 3, 4, 1, 2], [5, 1, 2, 7, 8, 9, 1, 2], [1, 2, 6, 6, 1, 2]]
    sequences = [Sequence(i, Request(text, 9)) for i, text in enumerate(texts)]
    drafter = PromptLookupDrafter(gamma, 2, 2)
    drafter.begin(len(texts), 40)
    for slot, sequence in enumerate(sequences):
        drafter.admit(slot, sequence)
    for first in (0, 1, 2):
        found = drafter.find(Batch(sequences[first:], first=first))
        assert [draft[:3] for draft in found] == [[3, 4, 1], [7, 8, 9], [6, 6, 1]][first:]
