# SPDX-License-Identifier: Apache-2.0
"""Plain beam search against a float64 search over every continuation, and speculative beam search against plain, bit
for bit. The models' rows depend only on the text."""

import math
import random
from typing import NamedTuple

import numpy as np
import pytest
import torch
from support import tiny
from support.table_model import TableModel, near, random_rows

import specdec_kernels as sk
from specdec_kernels import decode
from specdec_kernels.decode import Beam, BeamDrafter, Request, adapt, beam_search
from specdec_kernels.decode import beams as module
from specdec_kernels.decode.beams import _Search
from specdec_kernels.decode.result import Stats


class Case(NamedTuple):
    target: TableModel
    request: Request
    beams: int
    draft: TableModel | None = None


def case(seed, levels=None, eos=None, kind="good", dtype=torch.float32):
    """Return a random search: V up to 7, up to 4 beams, often more beams than ids in the vocabulary."""
    rng = random.Random(seed)
    vocab, beams = rng.choice((1, 2, 3, 5, 7)), rng.randrange(1, 5)
    row = random_rows(vocab, seed, levels, dtype=dtype)
    prompt = [rng.randrange(vocab) for _ in range(rng.randrange(1, 5))]
    ends = rng.random() < 0.6 if eos is None else eos
    request = Request(prompt, rng.randrange(1, 10), eos=(vocab - 1,) if ends else ())
    drafts = {
        "good": near(row, 0.2, seed),
        "same": row,
        "bad": lambda path: -row(path),
        "random": random_rows(vocab, seed + 7919),
        "no law": lambda path: row(path) * math.nan,
    }
    return Case(TableModel(vocab, row), request, beams, TableModel(vocab, drafts[kind]))


def plain(case):
    return beam_search(case.target, [case.request], case.beams)


# ---- the definition, as a plain search -------------------------------------------------------------------------------


def log_probs(z):
    z = z.double().numpy()
    return z - z.max() - np.log(np.exp(z - z.max()).sum())


def log_probs_of_stats(z):
    """Return log-probabilities made with row_stats' log-normaliser, so that scores are equal bit for bit. Another test
    checks row_stats."""
    scale, _, log_norm, top = sk.row_stats(z.float()[None])[0].double().tolist()
    return (z.double().numpy() - top) * scale - log_norm


def search(case, score=0.0, log_p=log_probs, rank=lambda x: (-x[0], x[1], x[2])):
    """Search every continuation of every live beam, in order.

    Return the beams (tokens, score, flag), and the least difference between neighbouring scores at any step, down to
    the first candidate that was dropped.
    """
    beams, gap = [((), score, None)], math.inf
    prompt, request = tuple(case.request.prompt), case.request
    while any(flag is None for *_, flag in beams):
        candidates = []
        for i, (tokens, own, flag) in enumerate(beams):
            if flag is not None:
                candidates.append((own, i, -1))
                continue
            z = case.target.row(prompt + tokens)
            worth = (own + log_p(z)).astype(np.float32)
            candidates += [(float(x), i, v) for v, x in enumerate(worth)]
        candidates.sort(key=rank)
        scores = [x for x, *_ in candidates[: case.beams + 1]]
        gap = min([gap, *(a - b for a, b in zip(scores, scores[1:]))])
        beams = [
            beams[i] if v < 0 else ((*beams[i][0], v), x, flag_of(request, (*beams[i][0], v)))
            for x, i, v in candidates[: case.beams]
        ]
    return beams, gap


def flag_of(request, tokens):
    return "eos" if tokens[-1] in request.eos else "length" if len(tokens) == request.max_new_tokens else None


def test_plain_is_the_definition():
    """Without ties, beams and flags are equal; scores are equal up to the rounding of the row's sum at every step."""
    compared = ended = 0
    for seed in range(120):
        one = case(seed)
        want, gap = search(one)
        if gap < 1e-5:
            continue
        [got] = plain(one).results
        assert [(b.tokens, b.finished) for b in got] == [(tokens, flag) for tokens, _, flag in want], seed
        assert all(abs(b.score - score) < 1e-5 for b, (_, score, _) in zip(got, want))
        compared, ended = compared + 1, ended + any(b.finished == "eos" for b in got)
    assert compared > 90 and ended > 30


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_ties_are_decided_by_beam_and_token(levels):
    tied = 0
    for seed in range(60):
        one = case(seed, levels)
        want, gap = search(one, log_p=log_probs_of_stats)
        assert plain(one).results == [[Beam(*beam) for beam in want]], seed
        tied += gap == 0
    assert tied > 15


def from_score(one, score, drafter=None):
    found = _Search(one.request, one.beams, drafter, Stats())
    found.beams = [Beam((), score)]
    found.run(one.target)
    return found.beams


def fine_case(seed, beams=4):
    """Return a case whose logits differ by less than a rounding at -3000."""
    row = random_rows(5, seed, spread=1e-4)
    return Case(TableModel(5, row), Request([1, 2], 6), beams, TableModel(5, near(row, 1e-5, seed)))


def test_rounded_scores_decide():
    """At -3000 neighbouring float32 values are 2^-12 apart. Ranking by logits, or without rounding, would give other
    beams."""
    others = {"logit": 0, "float64": 0}
    for seed in range(80):
        one = fine_case(seed)
        got = from_score(one, -3000.0)
        want, _ = search(one, -3000.0, log_probs_of_stats)
        assert got == [Beam(*beam) for beam in want], seed
        assert from_score(one, -3000.0, BeamDrafter(one.draft, 8, 3)) == got, seed
        by_logit, _ = search(one, -3000.0, log_probs_of_stats, lambda x, one=one: (-x[0], x[1], -x[2]))
        others["logit"] += [tokens for tokens, *_ in by_logit] != [b.tokens for b in got]
        exact, _ = search(one)
        others["float64"] += [tokens for tokens, *_ in exact] != [b.tokens for b in got]
    assert min(others.values()) > 60


def by_logit(rows, score, w):
    """Rank by logits; row_topw ranks by rounded scores."""
    best = sk.top_logprobs(rows, w)
    return sk.RowTopwOutput((score[:, None].double() + best.logprobs.double()).float(), best.ids)


def test_ranking_by_the_logit_is_caught(monkeypatch):
    monkeypatch.setattr(module.sk, "row_topw", by_logit)
    wrong = 0
    for seed in range(40):
        one = fine_case(seed)
        want, _ = search(one, -3000.0, log_probs_of_stats)
        wrong += from_score(one, -3000.0) != [Beam(*beam) for beam in want]
    assert wrong > 8


# ---- speculation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["good", "same", "bad", "random", "no law"])
@pytest.mark.parametrize("levels", [None, 2])
def test_speculation_is_plain_beam_search(kind, levels):
    """Beams, scores, order and flags are equal in 60 searches each, about 40% of them without an end token."""
    calls = plain_calls = eos = 0
    for seed in range(60):
        one = case(seed, levels, kind=kind, dtype=torch.float64 if seed % 4 == 0 else torch.float32)
        want = plain(one)
        rng = random.Random(seed)
        drafter = BeamDrafter(one.draft, rng.choice((1, one.beams, 2 * one.beams)), rng.randrange(1, 5))
        got = beam_search(one.target, [one.request], one.beams, drafter)
        assert got.results == want.results, seed
        assert got.stats.new_tokens == want.stats.new_tokens and got.stats.target_calls <= want.stats.target_calls
        calls, plain_calls = calls + got.stats.target_calls, plain_calls + want.stats.target_calls
        eos += any(b.finished == "eos" for b in got.results[0])
    assert eos > 10
    share = {"good": 0.65, "same": 0.55, "no law": 1.0}.get(kind)
    assert share is None or calls <= share * plain_calls, (calls, plain_calls)


def test_a_good_draft_saves_target_calls():
    """With twice as many beams in the draft as in the search, fewer than one target call in 2.5 remains. new_tokens
    counts steps, not beams."""
    row = random_rows(50, 3, spread=4.0)
    target, draft = TableModel(50, row), TableModel(50, near(row, 0.1, 5))
    requests = [Request([i, i + 1], 24) for i in range(6)]
    want = beam_search(target, requests, 4)
    assert want.stats.target_calls == want.stats.new_tokens == target.calls == 24 * 6
    target.calls = 0
    got = beam_search(target, requests, 4, BeamDrafter(draft, 8, 4))
    assert got.results == want.results and target.calls == got.stats.target_calls
    assert target.calls < 24 * 6 / 2.5 and got.stats.accepted == got.stats.new_tokens - got.stats.target_calls


def test_any_proposal_is_exact():
    """Random paths, of which beams follow only a few, change no beam."""

    class Anything:
        num_lookahead = 40

        def begin(self, prompt, room):
            self.rng = random.Random(str(prompt))

        def propose(self, live, depth, allowed):
            paths = dict.fromkeys(live)
            while len(paths) < len(live) + 12:
                paths[(*self.rng.choice([*paths]), self.rng.randrange(7))] = None
            return [path for path in paths if path not in live]

    saved = 0
    for seed in range(40):
        one = Case(TableModel(7, random_rows(7, seed)), Request([3], 8, eos=(6,)), 2)
        want = plain(one)
        got = beam_search(one.target, [one.request], one.beams, Anything())
        assert got.results == want.results
        saved += want.stats.target_calls - got.stats.target_calls
    assert saved > 0


def test_the_cache_holds_what_beams_share_once():
    """Each pass reads only the beams' last tokens: the tokens that beams share are read once."""
    one = Case(TableModel(9, random_rows(9, 1)), Request([1, 2, 3], 20), 3)
    before = one.target.fed
    out = plain(one)
    assert one.target.fed - before == 2 + 1 + 3 * 19 and out.stats.target_calls == 20
    assert all(len(b.tokens) == 20 and b.finished == "length" for b in out.results[0])


# ---- ends, and what is refused --------------------------------------------------------------------------------------


def test_all_beams_may_end_inside_the_tree():
    """After the first token comes 0, the end, almost surely: all beams finish within the tree of the first call."""

    def row(path):
        return torch.tensor([9.0, 0.0, -1.0]) if len(path) > 2 else torch.tensor([-9.0, 1.0, 0.9])

    request = Request([1, 2], 30, eos=(0,))
    want = beam_search(TableModel(3, row), [request], 2)
    got = beam_search(TableModel(3, row), [request], 2, BeamDrafter(TableModel(3, row), 4, 4))
    assert got.results == want.results and [b.tokens for b in want.results[0]] == [(1, 0), (2, 0)]
    assert [b.finished for b in want.results[0]] == ["eos", "eos"]
    assert want.stats.target_calls == 2 and got.stats.target_calls == 1


def test_a_finished_beam_gives_way_to_better_ones():
    """A finished beam competes by its score: two live beams overtake the one that ended first."""

    def row(path):
        if len(path) == 1:
            return torch.tensor([0.2, 0.5, 0.3]).log()
        return torch.tensor([1e-30, 0.5, 0.5]).log()

    [found] = beam_search(TableModel(3, row), [Request([1], 2, eos=(0,))], 2).results
    assert [b.tokens for b in found] == [(1, 1), (1, 2)]
    [found] = beam_search(TableModel(3, row), [Request([1], 3, eos=(0,))], 3).results
    assert [(b.tokens, b.finished) for b in found][0] == ((0,), "eos")


def test_tokens_without_a_probability_make_no_beam():
    def row(path):
        return torch.tensor([0.0, -math.inf, 1.0, -math.inf])

    [found] = beam_search(TableModel(4, row), [Request([1], 1)], 4).results
    assert [b.tokens for b in found] == [(2,), (0,)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_rows_that_are_no_law_end_in_an_error(value):
    """The beams of the step before are kept, and the next request is searched."""

    def row(path):
        return torch.full((4,), value) if len(path) > 3 and path[0] == 1 else torch.zeros(4)

    target = TableModel(4, row)
    for drafter in (None, BeamDrafter(TableModel(4, row), 4, 3), BeamDrafter(TableModel(4, random_rows(4, 0)), 4, 3)):
        out = beam_search(target, [Request([1, 2], 6), Request([2, 2], 6)], 2, drafter)
        assert [beam.finished for beam in out.results[0]] == ["error"] * 2
        assert [beam.tokens for beam in out.results[0]] == [(0, 0), (0, 1)]
        assert "rows must be distributions, got NaN, +inf or nothing finite" in out.errors[0]
        assert out.errors[1] is None and out.results[1] == beam_search(target, [Request([2, 2], 6)], 2).results[0]


def test_one_invalid_row_among_valid_ones_ends_the_search():
    """The search ends. It must not silently go on without the beam whose row is NaN."""

    def row(path):
        return torch.full((4,), math.nan) if path[2:] == (0,) else torch.tensor([1.0, 0.9, 0.0, 0.0])

    out = beam_search(TableModel(4, row), [Request([1, 2], 6)], 2)
    assert [beam.tokens for beam in out.results[0]] == [(0,), (1,)] and "got NaN" in out.errors[0]


class Breaks(TableModel):
    """Raises at its pass number `at`."""

    def __init__(self, *args, at):
        super().__init__(*args)
        self.at, self.passes = at, 0

    def forward(self, *args, **options):
        self.passes += 1
        if self.passes == self.at:
            raise torch.OutOfMemoryError("no room")
        return super().forward(*args, **options)


@pytest.mark.parametrize("at", range(1, 7))
@pytest.mark.parametrize("whose", ["target", "draft"])
def test_a_search_that_raises_ends_alone(whose, at):
    make = {"target": TableModel, "draft": TableModel} | {whose: lambda *args: Breaks(*args, at=at)}
    target, draft = make["target"](4, random_rows(4, 0)), make["draft"](4, random_rows(4, 1))
    todo = [Request([1, 2], 5), Request([2, 3], 5)]
    out = beam_search(target, todo, 2, BeamDrafter(draft, 4, 3))
    whole = beam_search(TableModel(4, random_rows(4, 0)), todo, 2).results
    failed = [i for i, error in enumerate(out.errors) if error]
    assert len(failed) == 1 and out.errors[failed[0]] == "search: OutOfMemoryError: no room"
    assert {beam.finished for beam in out.results[failed[0]]} == {"error"}
    assert out.results[1 - failed[0]] == whole[1 - failed[0]]


def test_refuses():
    target = TableModel(4, random_rows(4, 0))
    request = Request([1, 2])
    for arguments, message in [
        (([request], 0), "beams must be >= 1, got 0"),
        (([request], True), "beams must be an int, got bool"),
        (([], 2), "requests must not be empty"),
        (([request, Request([1], temperature=0.5)], 2), "temperature must be 0.0, request 1 has 0.5"),
        (([Request([1], rule="chow")], 2), "rule must be 'exact', request 0 has 'chow'"),
        (([Request([1], stop=("a",))], 2), r"stop must be \(\), request 0 has \('a',\)"),
    ]:
        with pytest.raises((TypeError, ValueError), match="beam_search: " + message):
            beam_search(target, *arguments)
    with pytest.raises(ValueError, match=r"prompt ids must lie in \[0, V=4\), request 0 has 4"):
        beam_search(target, [Request([4])], 2)
    with pytest.raises(ValueError, match="must fit the model's 4096 positions, request 0 needs 5001"):
        beam_search(target, [Request([1], 5000)], 2)
    for name in ("width", "depth"):
        with pytest.raises(ValueError, match=f"BeamDrafter: {name} must be an integer >= 1, got 0"):
            BeamDrafter(target, **{name: 0})


# ---- transformers' models -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lean", [True, False])
def test_agrees_with_transformers(lean):
    """Without an end token the results equal generate(num_beams) with scores not divided by a length. With ends they
    would differ, since there a finished beam gives up its place."""
    model = tiny.llama(3)
    requests = [Request(r.prompt, 12) for r in tiny.requests(4)]
    got = beam_search(adapt(model, lean=lean), requests, 4)
    with torch.inference_mode():
        for request, found in zip(requests, got.results):
            out = model.generate(
                torch.tensor([request.prompt]), attention_mask=torch.ones(1, len(request.prompt)), num_beams=4,
                num_return_sequences=4, max_new_tokens=12, do_sample=False, length_penalty=0.0, eos_token_id=None,
                pad_token_id=0, return_dict_in_generate=True, output_scores=True,
            )  # fmt: skip
            assert [list(b.tokens) for b in found] == [row[len(request.prompt) :].tolist() for row in out.sequences]
            assert torch.allclose(torch.tensor([b.score for b in found]), out.sequences_scores, atol=1e-4)


def test_speculation_with_transformers_models():
    """Trees of two models in their own caches. Rows in float64 differ by a rounding that float32 scores do not show."""
    model = tiny.llama(4).double()
    target, draft = adapt(model, lean=False), adapt(tiny.nearby(tiny.llama(4), 0.01).double(), lean=False)
    requests = [Request(r.prompt, 14, eos=(3,)) for r in tiny.requests(5)]
    want = beam_search(target, requests, 3)
    got = beam_search(target, requests, 3, BeamDrafter(draft, 6, 3))
    assert got.results == want.results and got.stats.target_calls < 0.8 * want.stats.target_calls


def test_names():
    assert decode.beam_search is beam_search and "BeamDrafter" in decode.__all__
