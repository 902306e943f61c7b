# SPDX-License-Identifier: Apache-2.0
"""A draft that reads the target's states, through the loop. Every row it drafts from equals that of a plain recursion,
whatever was accepted before, and the output follows the target's distribution."""

import json

import numpy as np
import pytest
import torch
from support import tiers, tiny
from support.tiny import layer_draft

from specdec_kernels import testing
from specdec_kernels.decode import (
    BeamDrafter,
    Graphed,
    HFModel,
    HierarchicalDrafter,
    LeanLlama,
    LookupThenModel,
    ModelDrafter,
    Pair,
    PromptLookupDrafter,
    Request,
    SlotCache,
    TokenCascade,
    TreeDrafter,
    adapt,
    beam_search,
    generate,
)
from specdec_kernels.decode.drafters.draft_runner import DraftRunner
from specdec_kernels.decode.models.layer_draft import LayerDraft
from specdec_kernels.decode.proposal import TreeDraft

pytestmark = pytest.mark.usefixtures("one_thread")
DRAFTERS = {
    "model": lambda d: ModelDrafter(d, 3),
    "adaptive": lambda d: ModelDrafter(d, "auto"),
    "text": lambda d: LookupThenModel(PromptLookupDrafter(4, 3, 2), ModelDrafter(d, 3)),
    "traversal": lambda d: TreeDrafter(d, "traversal", shape=(3, 2, 1)),
    "kseq": lambda d: TreeDrafter(d, "kseq", 3, 3),
}


@pytest.fixture(scope="module")
def hf():
    return tiny.llama(0)


@pytest.fixture(scope="module")
def draft(hf):
    return layer_draft(hf)


@torch.inference_mode()
def expected_row(hf, draft, tokens, drafts):
    """Return the draft's logits [V] after `tokens`, which the target has read, and `drafts`, which it has not. There is
    no cache: each pass reads the last state of the one before."""
    states = torch.nn.functional.pad(hf.model(torch.tensor([tokens])).last_hidden_state[:, :-1], (0, 0, 1, 0))
    for k in range(len(drafts) + 1):
        own = draft.hidden(torch.tensor([tokens + drafts[:k]]), states=states)[:, -1:]
        states = torch.cat((states, own), 1)
    return draft.scatter(draft.head(own[0, 0]))


def drawn_rows(sequence, proposal, i):
    """Yield (tokens, drafts before it, the row) of everything drafted for row i of a proposal."""
    tokens = proposal.tokens[i].tolist()
    if not isinstance(proposal, TreeDraft):
        rows = proposal.rows
        one_hot = rows is None or (rows.row is not None and (rows.row[i] < 0).all())
        for k in range(0 if one_hot else sum(t >= 0 for t in tokens)):
            yield sequence, tokens[:k], rows.logits[i, k]
        return
    above = proposal.parents[i].tolist()
    for node in (j for j in range(1, len(above)) if above[j] >= 0):
        path, at = [], above[node]
        while at > 0:
            path, at = [tokens[at - 1], *path], above[at]
        yield sequence, path, proposal.rows.logits[i, proposal.rows.row[i, node]]


def rows_of_a_run(target, served, kind, todo):
    """Return all rows drafted from, and the output, with three requests at a time."""
    drafter, seen = DRAFTERS[kind](served), []
    honest = drafter.propose

    def propose(batch):
        proposal = honest(batch)
        for i, s in enumerate(batch if proposal is not None else ()):
            seen.extend(drawn_rows(list(s.tokens), proposal, i))
        return proposal

    drafter.propose = propose
    return seen, generate(target, todo, drafter, max_batch=3)


def largest_error(hf, draft, rows):
    expected = {}  # the children of a node have one row
    for tokens, drafts, _ in rows:
        if (path := (*tokens, None, *drafts)) not in expected:
            expected[path] = expected_row(hf, draft, tokens, drafts)
    return max((expected[(*tokens, None, *drafts)] - row).abs().max().item() for tokens, drafts, row in rows)


@pytest.mark.parametrize("kind", DRAFTERS)
def test_rows_are_those_of_the_recursion(hf, draft, kind):
    """Sampled requests are added and end, with accepted, rejected and looked-up tokens and slots that move. In float32
    sums of another order differ by 1e-4 for logits of about 10."""
    todo = tiny.requests(n=5, temperature=1.0)
    rows, output = rows_of_a_run(LeanLlama.from_hf(hf), LeanLlama.from_layer_draft(draft), kind, todo)
    assert len(rows) > 15 and 0.1 < output.stats.alpha < 0.9
    assert largest_error(hf, draft, rows) < 1e-4


@pytest.mark.parametrize("wrong", ["shifted", "stale", "kept"])
def test_wrong_states_are_seen(hf, draft, wrong, monkeypatch):
    """Control of the test above: states of the token itself, the draft's own states in place of the target's, and keys
    of accepted drafts that are not computed again are found."""
    if wrong == "shifted":
        honest = SlotCache.states_before
        monkeypatch.setattr(
            SlotCache, "states_before", lambda self, start, *a: honest(self, [at + 1 for at in start], *a)
        )
    elif wrong == "stale":
        honest = DraftRunner.follow
        monkeypatch.setattr(
            DraftRunner, "follow", lambda self, *a: (honest(self, *a), setattr(self, "target_cache", self.cache))
        )
    else:
        honest = DraftRunner.extend

        def extend(self, tokens, depth):
            self.fed.append((self.readback.ask(tokens[:, None]), [range(-1, 99)] * 9, [depth + 1] * 9))
            return honest(self, tokens, depth)

        monkeypatch.setattr(DraftRunner, "extend", extend)
    todo = tiny.requests(n=5, temperature=1.0)
    rows, _ = rows_of_a_run(LeanLlama.from_hf(hf), LeanLlama.from_layer_draft(draft), "model", todo)
    assert largest_error(hf, draft, rows) > 1e-2


@pytest.mark.parametrize("served", ["lean", "transformers"])
@pytest.mark.parametrize("kind", DRAFTERS)
def test_greedy_is_the_models_own(hf, draft, kind, served):
    """Both kinds of target, LeanLlama and HFModel, give states to the draft."""
    target, todo = LeanLlama.from_hf(hf) if served == "lean" else HFModel(tiny.llama(0), pack=False), tiny.requests()
    drafter = TreeDrafter(LeanLlama.from_layer_draft(draft), "greedy", 3, 3) if kind == "traversal" else None
    output = generate(target, todo, drafter or DRAFTERS[kind](LeanLlama.from_layer_draft(draft)), max_batch=3)
    for request, result in zip(todo, output.results):
        assert result.tokens == tiny.greedy(hf, request.prompt, request.max_new_tokens)
    assert output.stats.accepted > 0


@pytest.mark.parametrize("kind", ["model", "traversal"])
@pytest.mark.slow
def test_joint_law_of_three_tokens(kind):
    """Three tokens follow the target's joint distribution. As in test_decode.py, a bias of total variation 0.06 on V^3
    is found 99 times in 100."""
    V, n = 4, tiers.draws(10_000)
    hf = tiny.llama(3, V, 0.15)
    served = LeanLlama.from_layer_draft(layer_draft(tiny.llama(4, V, 0.15)))
    todo = [Request([1], max_new_tokens=3, temperature=1.0, seed=i) for i in range(n)]
    output = generate(LeanLlama.from_hf(hf), todo, DRAFTERS[kind](served), max_batch=2000)
    tokens = np.array([r.tokens for r in output.results])
    check = testing.check_tokens(tokens, testing.enumerate_law(tiny.laws(hf, [1]), 3))
    assert check.passed and check.cells > 25 and check.detects < tiers.shift(0.06), check
    assert 0.1 < output.stats.alpha < 0.95


def test_drafters_that_have_no_states_to_hand_over(hf, draft):
    """In a hierarchical drafter, a cascade and beam search, and with a target that gives no states, the draft works
    without states."""
    target, served = LeanLlama.from_hf(hf), LeanLlama.from_layer_draft(draft)
    todo = tiny.requests(n=3)
    for drafter in (HierarchicalDrafter(served, PromptLookupDrafter(3), 4), ModelDrafter(served, 3)):
        if isinstance(drafter, ModelDrafter):
            target.state_size = None
        output = generate(target, todo, drafter)
        assert [r.tokens for r in output.results] == [tiny.greedy(hf, r.prompt, r.max_new_tokens) for r in todo]
    cascade = generate(target, tiny.requests(n=3, rule="chow", alpha=0.4, temperature=1.0), TokenCascade(served))
    assert all(r.finished == "length" for r in cascade.results)
    beams = [beam_search(target, todo[:1], 3, b).results for b in (None, BeamDrafter(served, 6, 3))]
    assert [b.tokens for b in beams[0][0]] == [b.tokens for b in beams[1][0]]


@pytest.mark.parametrize("graphs", [False, True], ids=["passes", "graphs"])
def test_on_a_device(graphs):
    """The step waits for the device once, and replayed passes read new states."""
    devices = pytest.importorskip("bench.devices", reason="needs the source tree's bench")
    todo, served = tiny.requests(n=5), Graphed if graphs else lambda model: model
    with devices.watch() as seen:
        hf = tiny.llama(0).to("cuda")
        target, model = served(adapt(hf)), served(LeanLlama.from_layer_draft(layer_draft(hf)))
        seen.synchronisations.clear()
        output = generate(target, todo, ModelDrafter(model, 3), max_batch=3)
    assert len(seen.synchronisations) == output.stats.target_calls
    own, accepted = LeanLlama.from_layer_draft(layer_draft(tiny.llama(0))), []
    for reads in (True, False):
        own.state = own.state if reads else None
        plain = generate(adapt(tiny.llama(0)), todo, ModelDrafter(own, 3), max_batch=3)
        assert [r.tokens for r in output.results] == [r.tokens for r in plain.results]
        accepted.append(plain.stats.accepted)
    assert output.stats.accepted == accepted[0] != accepted[1]


def test_round_trip(tmp_path, hf, draft):
    """The projection is saved in int8 with the layers. A folder whose config lacks `reads_states` loads as a draft
    without states."""
    draft.save(tmp_path)
    back = LayerDraft.load(tmp_path, hf)
    step = draft.state.weight.abs().amax(1, keepdim=True) / 127
    assert ((back.state.weight - draft.state.weight).abs() <= 0.51 * step).all()
    LayerDraft(hf, range(9), (1,)).copy_layers(hf).save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["reads_states"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert LayerDraft.load(tmp_path, hf).state is None


@torch.no_grad()
def test_training_sees_what_the_loop_drafts_from(hf):
    """At depth k and from every root, demo/draft/recipe/unroll.py computes the same state as the recursion."""
    unroll = pytest.importorskip("demo.draft.recipe.unroll", reason="needs the source tree's demo")
    draft, ids = (
        layer_draft(hf, layers=(1, 1)),
        torch.randint(0, 32, (1, 9), generator=torch.Generator().manual_seed(0)),
    )
    depths = unroll.states_of_depths(draft, ids, hf.model(ids).last_hidden_state, 4)
    tokens = ids[0].tolist()
    for k, states in enumerate(depths):
        for j in range(k, 9):
            root = j - k + 1
            expected = expected_row(hf, draft, tokens[:root], tokens[root : j + 1])
            assert (draft.head(states[0, j]) - expected).abs().max() < 1e-4, (k, j)


@pytest.mark.parametrize("states", [True, False])
def test_the_demos_reader_gives_the_rows_that_a_draft_begins_with(hf, draft, states):
    """The text is read in three pieces: no row of the first is kept, the last row of the second, and all rows of the
    third. With states the draft's rows equal the recursion's."""
    reader = pytest.importorskip("demo.reader", reason="needs the source tree's demo")
    tokens = tiny.requests(1)[0].prompt + [3, 1, 4, 1, 5]
    pair = Pair(LeanLlama.from_hf(hf), None, (), LeanLlama.from_layer_draft(draft))
    if not states:
        pair.draft.state = None
    read, rows = reader.Reader(pair, len(tokens)), {}
    assert read(tokens[:3], 0, keep=None) is None
    rows[5] = [x[0] for x in read(tokens[3:6], 3, keep=[2])]
    rows |= {6 + k: pair_of_rows for k, pair_of_rows in enumerate(zip(*read(tokens[6:], 6)))}
    assert sorted(rows) == list(range(5, len(tokens)))
    with torch.inference_mode():
        z = hf(torch.tensor([tokens])).logits[0]
        alone = draft.scatter(draft.head(draft.hidden(torch.tensor([tokens]))[0]))
    for t, (of_target, of_draft) in rows.items():
        want = expected_row(hf, draft, tokens[: t + 1], []) if states else alone[t]
        assert (of_target - z[t]).abs().max() < 1e-4 and (of_draft - want).abs().max() < 1e-4
