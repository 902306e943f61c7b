# SPDX-License-Identifier: Apache-2.0
"""verify="race" in the decode loop: each request has one text, whatever the drafter. It equals the definition's, token
by token."""

import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import plain_views
from support.grammar import Grammar
from support.table_model import TableModel, near, random_rows

import specdec_kernels as sk
from demo import race
from specdec_kernels import testing
from specdec_kernels.decode import (
    HierarchicalDrafter,
    LookupThenModel,
    ModelDrafter,
    PromptLookupDrafter,
    Request,
    Session,
    TokenCascade,
    TreeDrafter,
    generate,
)
from specdec_kernels.decode.sequence import Batch
from specdec_kernels.reference.race import keys_of

pytestmark = pytest.mark.usefixtures("one_thread")

V = 24
ROW = random_rows(V, 1)
CHAINS = {
    "model": lambda draft, length: ModelDrafter(draft, length),
    "lookup": lambda draft, length: PromptLookupDrafter(length, 2, 1),
    "hierarchical": lambda draft, length: HierarchicalDrafter(draft, ModelDrafter(draft, 2), length),
    "both": lambda draft, length: LookupThenModel(PromptLookupDrafter(length, 2, 1), ModelDrafter(draft, length)),
}
TREES = {
    "wide": lambda draft: TreeDrafter(draft, "race", shape=(3, 2)),
    "deep": lambda draft: TreeDrafter(draft, "race", shape=(2, 1, 1, 1), lookup=PromptLookupDrafter(4, 2, 1)),
}
DRAFTERS = {
    "plain": lambda draft: None,
    **{f"{n} {g}": lambda draft, f=f, g=g: f(draft, g) for n, f in CHAINS.items() for g in (1, 4)},
    **TREES,
    "adaptive": lambda draft: LookupThenModel(PromptLookupDrafter("auto", 2, 1), ModelDrafter(draft, "auto")),
    "adaptive tree": lambda draft: TreeDrafter(draft, "race", 3, 3, "auto"),
}
VIEWS = {
    "none": {},
    "penalties": dict(
        repetition_penalty=1.3, frequency_penalty=0.2, presence_penalty=0.3, logit_bias={4: 1.0, 5: -1.0}
    ),
    "mask": dict(allowed=Grammar(V), eos=(0,), presence_penalty=0.4),
    "filters": dict(top_k=5, min_p=0.05),
}


def target():
    return TableModel(V, ROW)


def close():
    """Return a draft model that often agrees with the target, but not always."""
    return TableModel(V, near(ROW, 0.7, 5))


def requests(**fields):
    """Return requests of several lengths, temperatures and seeds; one is greedy."""
    rng = random.Random(2)
    prompts = [[rng.randrange(1, V) for _ in range(3 + i)] for i in range(5)]
    heat = (1.0, 0.7, 0.0, 1.3, 1.0)
    return [Request(p * 2, 14, t, seed=7 * i - 9, **fields) for i, (p, t) in enumerate(zip(prompts, heat))]


def expected(request, row=ROW):
    """Return the request's text by the definition, in float64: the winner of each row, one position after another."""
    output = []
    while len(output) < request.max_new_tokens and not (output and output[-1] in request.eos):
        z = plain_views.seen(row((*request.prompt, *output)).numpy(), request, output).astype(float)
        if request.temperature == 0:
            output.append(int(z.argmax()))
            continue
        kept = np.isfinite(z)
        if request.top_k:
            kept &= z >= np.sort(z)[-request.top_k]
        if request.min_p:
            kept &= z >= z.max() + request.temperature * np.log(request.min_p)
        scaled = np.where(kept, z / float(np.float32(request.temperature)), -np.inf)
        keys = keys_of(None, scaled, request.seed, len(request.prompt) + len(output))
        output.append(int(keys.argmax()))
    return output


def texts(todo, drafter, **options):
    output = generate(target(), todo, drafter, verify="race", **options).check()
    return [r.tokens for r in output.results], output.stats


@pytest.mark.parametrize("views", VIEWS)
@pytest.mark.parametrize("kind", DRAFTERS)
def test_the_text_is_that_of_the_definition(kind, views):
    todo = requests(**VIEWS[views])
    found, stats = texts(todo, DRAFTERS[kind](close()), max_batch=3)
    assert found == [expected(r) for r in todo] and stats.status == 0
    if kind.startswith(("model", "hierarchical", *TREES)):
        assert 0.2 < stats.alpha < 1 and stats.accepted > 10, stats  # drafts are accepted and rejected


def test_views_change_the_text():
    free = [expected(r) for r in requests()]
    for fields in [*VIEWS.values()][1:]:
        changed = [a != b for a, b in zip(free, map(expected, requests(**fields)))]
        assert sum(changed) >= 3


@pytest.mark.parametrize("kind", ["model 4", "hierarchical 4", *TREES])
def test_batch_mates_and_steps_do_not_enter(kind):
    """The text is the same alone, beside others, and after steps that failed and were retried in halves."""
    todo = requests(presence_penalty=0.4)
    want = [expected(r) for r in todo]
    assert [texts([r], DRAFTERS[kind](close()))[0][0] for r in todo] == want
    model, calls = target(), iter(range(100))
    honest = model.forward

    def failing(ids, *given, **options):
        if options.get("keep") is not None and len(ids) > 1 and next(calls) % 3 == 1:
            raise MemoryError("too many rows")
        return honest(ids, *given, **options)

    model.forward = failing
    output = generate(model, todo, DRAFTERS[kind](close()), verify="race").check()
    assert [r.tokens for r in output.results] == want


class Steps:
    """Counts a session's steps, and gives them as the batch's offset in place of the position."""

    def __init__(self, monkeypatch):
        self.taken, honest = 0, Session._decode

        def counted(session, batch):
            self.taken += 1
            return honest(session, batch)

        monkeypatch.setattr(Session, "_decode", counted)
        monkeypatch.setattr(Batch, "offset", property(lambda batch: torch.full((len(batch),), self.taken)))


@pytest.mark.parametrize("kind", ["model 4", "both 4", "wide"])
def test_a_loop_that_counts_steps_is_found(monkeypatch, kind):
    """Kills: the step's number in place of the position. Then the text depends on how many drafts were accepted."""
    steps, todo = Steps(monkeypatch), requests()
    plain, _ = texts(todo, None)
    steps.taken = 0
    assert texts(todo, DRAFTERS[kind](close()))[0] != plain


@pytest.mark.parametrize("views", VIEWS)
@pytest.mark.parametrize("kind", ["model 4", "hierarchical 4", "wide", "adaptive tree"])
def test_the_target_as_its_own_draft_is_always_right(kind, views):
    """The draft model runs the same race on the same rows, under the same views."""
    _, stats = texts(requests(**VIEWS[views]), DRAFTERS[kind](target()))
    assert stats.alpha == 1 and stats.accepted > 15, stats


def test_a_drafter_that_counts_steps_is_found(monkeypatch):
    """Kills: a draft at depth i that is drawn at the position of the step. No text changes, but drafts are rejected."""
    honest = Batch.draws
    monkeypatch.setattr(Batch, "draws", lambda self, depth, *given, **named: honest(self, 0, *given, **named))
    for kind in ("model 4", "wide"):
        found, stats = texts(todo := requests(), DRAFTERS[kind](target()))
        assert found == [expected(r) for r in todo] and stats.alpha < 0.9, stats


def test_a_draft_vocabulary_in_another_order():
    """The noise belongs to the target's ids: the same rows in another order draft the same tokens."""
    ids = random.Random(4).sample(range(V), V)
    draft = TableModel(V, lambda path: ROW(path)[ids])
    draft.vocab_map = sk.vocab_map(torch.tensor(ids), V)
    for kind in ("model 4", "wide"):
        found, stats = texts(todo := requests(), DRAFTERS[kind](draft))
        assert found == [expected(r) for r in todo] and stats.alpha == 1, stats


def test_draws_that_share_no_noise_are_accepted_less():
    """Drafts drawn with other random numbers do not change the text. Each is accepted only by chance, with probability
    sum p q, which is less than with shared numbers."""
    todo = requests()
    (found, apart), (_, shared) = texts(todo, race.Apart(close(), 3)), texts(todo, ModelDrafter(close(), 3))
    assert found == [expected(r) for r in todo] and apart.alpha < shared.alpha - 0.15


def test_the_measurement_finds_where_texts_differ():
    """demo.race: the first token that differs, with the two best keys of the race there."""
    request = requests()[0]
    text = expected(request)
    row = ROW((*request.prompt, *text[:5])).double().numpy()
    keys = np.sort(keys_of(None, row, request.seed, len(request.prompt) + 5))
    pair = SimpleNamespace(target=target())
    assert race.apart(pair, request, text, text) is None
    found = race.apart(pair, request, [*text[:5], (text[5] + 1) % V, *text[6:]], text)
    assert found == f"from token 5 on: keys {keys[-1]:.7f} and {keys[-2]:.7f}, {keys[-1] - keys[-2]:.1e} apart"


@pytest.mark.slow
def test_joint_law():
    """Over seeds, texts are distributed as in plain sampling. 6,000 draws find a bias of total variation 0.065."""
    row = random_rows(3, 8, spread=0.8)
    todo = [Request([1], 3, 1.0, seed=seed) for seed in range(6000)]
    draft = TableModel(3, near(row, 0.7, 5))
    output = generate(TableModel(3, row), todo, ModelDrafter(draft, 3), verify="race", max_batch=1000).check()
    law = testing.enumerate_law(lambda path: row(path).double().softmax(-1), 3, prompt=(1,))
    check = testing.check_tokens([r.tokens for r in output.results], law)
    assert check.passed and check.cells == 27 and check.detects < 0.065, check


def test_trees_of_the_race_make_the_session_a_race():
    """If `verify` is not given, the drafter determines it."""
    todo = requests()
    found = generate(target(), todo, TREES["wide"](close())).check().results
    assert [r.tokens for r in found] == [expected(r) for r in todo]
    assert Session(target()).verify == "token" and Session(target(), TREES["wide"](close())).verify == "race"


def test_greedy_trees_branch():
    """At temperature 0 a race has only one winner, so the tree is made of the model's likeliest tokens."""
    todo = [replace(r, temperature=0.0) for r in requests()]
    _, stats = texts(todo, TreeDrafter(close(), "race", shape=(3, 1)))
    assert stats.nodes_per_call > 5


def test_what_is_refused():
    one = [Request([1, 2], 4, 1.0, rule="chow", alpha=0.5)]
    for drafter, todo, verify, text in [
        (ModelDrafter(close()), one, "race", "rule must be 'exact' with verify 'race', request 0 has 'chow'"),
        (TokenCascade(close()), one, "race", "verify must be 'token' with TokenCascade, got 'race'"),
        (TreeDrafter(close(), "kseq"), requests(), "race", "verify must be 'token' with TreeDrafter, got 'race'"),
        (TREES["wide"](close()), requests(), "token", "verify must be 'race' with TreeDrafter, got 'token'"),
        (None, requests(), "raced", "verify must be 'token', 'block' or 'race', got 'raced'"),
    ]:
        with pytest.raises(ValueError, match=f"generate: {text}"):
            generate(target(), todo, drafter, verify=verify)
    wanted = "HierarchicalDrafter: verify must be 'token' or 'block', got 'race'"
    with pytest.raises(ValueError, match=wanted):
        HierarchicalDrafter(close(), ModelDrafter(close()), verify="race")
