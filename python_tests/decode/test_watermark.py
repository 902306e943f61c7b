# SPDX-License-Identifier: Apache-2.0
"""examples/watermark.py: a text that is marked during speculative decoding equals that of plain decoding, and so does
its score."""

import random

import pytest
import torch
from support.paths import ROOT
from support.table_model import TableModel, near, random_rows

from specdec_kernels.decode import Request, generate

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    import watermark

    return watermark


V, ROW = 40, random_rows(40, 3, spread=1.0)


def requests(**fields):
    rng = random.Random(6)
    return [Request([rng.randrange(V) for _ in range(2 + i)], 40, 1.0, seed=i, **fields) for i in range(5)]


def decoded(todo, drafter, **options):
    output = generate(TableModel(V, ROW), todo, drafter, verify="race", **options).check()
    return [r.tokens for r in output.results], output.stats


@pytest.mark.parametrize("fields", [{}, dict(top_k=12), dict(presence_penalty=0.5, logit_bias={3: -float("inf")})])
@pytest.mark.parametrize("gamma", [1, 4])
def test_text_and_score_are_those_of_plain_decoding(example, gamma, fields):
    todo, draft = requests(**fields), TableModel(V, near(ROW, 0.6, 5))
    plain, _ = decoded(todo, example.Marked(77))
    found, stats = decoded(todo, example.Marked(77, draft, gamma), max_batch=3)
    assert found == plain and 0.2 < stats.alpha < 1, stats
    whole = [[example.scores(77, r.prompt + t) for r, t in zip(todo, texts)] for texts in (plain, found)]
    assert all(map(torch.equal, *whole))


def test_only_the_secret_finds_the_mark(example):
    """Scores are high under the secret that marked the text, and average 1 under another one and without a mark."""
    marked, _ = decoded(requests(), example.Marked(77, TableModel(V, near(ROW, 0.6, 5))))
    free, _ = decoded(requests(), None)
    for texts, secret, found in ((marked, 77, True), (marked, 78, False), (free, 77, False)):
        score = torch.cat([example.scores(secret, t) for t in texts])
        assert len(score) > 150
        if found:
            assert score.mean() > 2 and example.chance(score) < 1e-20
        else:
            assert 0.7 < score.mean() < 1.3 and example.chance(score) > 1e-3  # standard deviation 1 / sqrt(150)


def test_all_drafts_of_the_target_itself_are_right(example):
    """Drafts use the noise of the rows that verify them."""
    _, stats = decoded(requests(), example.Marked(77, TableModel(V, ROW)))
    assert stats.alpha == 1 and stats.accepted > 100


@pytest.mark.slow
def test_the_scores_and_the_acceptance_of_a_known_row(example):
    """For p = (.5, .3, .2) scores average sum p H(1/p) = 1.7838, where H are the harmonic numbers. Drafts from q = (.2,
    .5, .3) are accepted with probability .693548. Prompts differ, so that no key occurs twice."""
    p, q = ((torch.tensor([*x, *[0.0] * (V - 3)])).log() for x in ((0.5, 0.3, 0.2), (0.2, 0.5, 0.3)))
    rng = random.Random(8)
    todo = [Request([rng.randrange(V) for _ in range(4)], 2, 1.0) for _ in range(4000)]
    drafter = example.Marked(5, TableModel(V, lambda path: q), 1)
    output = generate(TableModel(V, lambda path: p), todo, drafter, max_batch=500).check()
    score = torch.cat([example.scores(5, r.prompt + x.tokens[:1]) for r, x in zip(todo, output.results)])
    x = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    mean = (x * (torch.digamma(1 / x + 1) - torch.digamma(torch.ones(())))).sum()
    assert abs(mean - 1.7838) < 1e-4 and len(score) == 4000
    assert abs(score.mean() - mean) < 5 * score.std() / 4000**0.5
    assert abs(output.stats.alpha - 0.693548) < 5 * (0.21 / 4000) ** 0.5


def test_a_drafter_that_forgets_the_drafts_is_found(example, monkeypatch):
    """Control: with the keys of the committed tokens on every row of a chain, the text is no longer that of plain
    decoding."""
    honest = example.keys

    def first(secret, windows):
        return honest(secret, windows[:, :1].expand_as(windows) if windows.dim() == 3 else windows)

    todo, draft = requests(), TableModel(V, near(ROW, 0.6, 5))
    plain, _ = decoded(todo, example.Marked(77))
    monkeypatch.setattr(example, "keys", first)
    assert decoded(todo, example.Marked(77, draft))[0] != plain
