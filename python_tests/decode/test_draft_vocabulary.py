# SPDX-License-Identifier: Apache-2.0
"""Draft models with another vocabulary than the target's: the text and its distribution are those of plain decoding."""

import numpy as np
import pytest
import torch
from support import tiers, tiny
from support.drafters import EVERY

import specdec_kernels as sk
from specdec_kernels import testing
from specdec_kernels.decode import (
    BeamDrafter,
    LookupThenModel,
    MatchedModel,
    ModelDrafter,
    PromptLookupDrafter,
    Request,
    TreeDrafter,
    adapt,
    beam_search,
    generate,
    load_pair,
)
from specdec_kernels.decode.models.vocabulary import common_tokens, written_out

pytestmark = pytest.mark.usefixtures("one_thread")

# The target's id of each draft id: a hole, two draft ids for one target id, and target ids that the draft lacks.
SHUFFLED = [(7 * i + 3) % 32 for i in range(28)]
TABLE = torch.tensor([-1, *SHUFFLED[1:20], SHUFFLED[5], *SHUFFLED[20:]])


def permuted(model, order):
    """Return the same Llama with another vocabulary: its id i is the model's id order[i]."""
    other = tiny.llama(0, len(order))
    state = model.state_dict()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        state[name] = state[name][order]
    other.load_state_dict(state)
    return other


@pytest.fixture(scope="module")
def models():
    """Return a Hugging Face target, the served target, and a draft near it with another vocabulary."""
    hf = tiny.llama(0)
    near = permuted(tiny.nearby(tiny.llama(0)), TABLE.clamp(min=0))
    return hf, adapt(hf), MatchedModel(adapt(near), TABLE, 32)


@pytest.mark.parametrize("kind", [kind for kind in EVERY if kind not in ("plain", "lookup", "cascade")])
def test_greedy_text_is_that_of_plain_decoding(models, kind):
    hf, target, draft = models
    todo = tiny.requests()
    output = generate(target, todo, EVERY[kind](draft), max_batch=3).check()
    assert [r.tokens for r in output.results] == [tiny.greedy(hf, r.prompt, r.max_new_tokens) for r in todo]
    assert 0.2 < output.stats.alpha < 1


class WrittenOut(MatchedModel):
    """The same draft with rows over the target's vocabulary."""

    def __init__(self, model, table, vocab_size):
        super().__init__(model, table, vocab_size)
        self.own, self.vocab_map = self.vocab_map, None

    def forward(self, *args, **options):
        logits = super().forward(*args, **options)
        return None if logits is None else written_out(logits, self.own)


@pytest.mark.parametrize("kind", ["cascade", "target_only"])
def test_rows_that_are_needed_as_a_whole(models, kind):
    _, target, draft = models
    parameters = dict(rule="chow", alpha=0.4) if kind == "cascade" else {}
    todo = tiny.requests(4, temperature=0.7, **parameters)
    texts = [
        [r.tokens for r in generate(target, todo, EVERY[kind](d)).results]
        for d in (draft, WrittenOut(draft.model, TABLE, 32))
    ]
    assert texts[0] == texts[1]


def test_a_draft_that_is_the_target_in_other_ids_is_always_accepted(models):
    """Kills: ids fed without the table, drafts or rows in draft ids."""
    hf, target, _ = models
    order = torch.tensor(SHUFFLED + [i for i in range(32) if i not in SHUFFLED])
    draft = MatchedModel(adapt(permuted(hf, order)), order, 32)
    for temperature in (0.0, 0.8):
        todo = tiny.requests(temperature=temperature)
        stats = generate(target, todo, ModelDrafter(draft, 3)).stats
        assert stats.alpha > 0.995, stats  # rounding may reject one
    assert generate(target, tiny.requests(), ModelDrafter(adapt(permuted(hf, order)), 3)).stats.alpha < 0.5


def test_beams_are_those_of_plain_search(models):
    hf, target, draft = models
    todo = tiny.requests(3)
    plain, fast = (beam_search(target, todo, 3, drafter) for drafter in (None, BeamDrafter(draft, 6, 3)))
    for a, b in zip(plain.results, fast.results):
        assert [x.tokens for x in a] == [x.tokens for x in b]
    assert fast.stats.target_calls < plain.stats.target_calls


PROMPT, V = [1], 4
OWN = torch.tensor([2, -1, 0, 3, 3, 1])
SOME = torch.tensor([2, -1, 0, 3, 3])  # no draft id for 1, so such a token is fed as draft id 0
DRAFTERS = {
    "token": (lambda d: ModelDrafter(d, 3), {}),
    "block": (lambda d: ModelDrafter(d, 3), {"verify": "block"}),
    "both": (lambda d: LookupThenModel(PromptLookupDrafter(2, 2, 1), ModelDrafter(d, 2)), {}),
    "recursive": (lambda d: TreeDrafter(d, "recursive", 3, 2), {}),
    "without": (lambda d: TreeDrafter(d, "recursive_without_replacement", shape=(2, 2)), {}),
    "kseq": (lambda d: TreeDrafter(d, "kseq", 2, 2), {}),
    "traversal": (lambda d: TreeDrafter(d, "traversal", shape=(2, 2)), {}),
}


def three_tokens(kind, table, n=tiers.draws(8000), **parameters):
    """Return the check of the 3 tokens of n requests against exact enumeration, and the statistics of the run."""
    hf, other = tiny.llama(3, V, 0.15), tiny.llama(4, len(table), 0.15)
    make, options = DRAFTERS[kind]
    todo = [Request(PROMPT, 3, temperature=1.0, seed=i, **parameters) for i in range(n)]
    output = generate(adapt(hf), todo, make(MatchedModel(adapt(other), table, V)), max_batch=2000, **options)
    assert output.stats.status == 0
    tokens = np.array([r.tokens for r in output.results])
    return testing.check_tokens(tokens, testing.enumerate_law(tiny.laws(hf, PROMPT), 3)), output.stats


TABLES = {"all": OWN, "some": SOME}


@pytest.mark.parametrize("kind, table", tiers.in_turn(DRAFTERS, TABLES))
@pytest.mark.slow
def test_joint_law_of_three_tokens(kind, table):
    """With 8,000 draws (half as many below the tier `all`) a bias of total variation 0.065, spread over the cells, is
    found 99 times in 100."""
    check, stats = three_tokens(kind, TABLES[table])
    assert check.passed, check
    assert check.cells > 25 and check.detects < tiers.shift(0.065), check
    assert 0.1 < stats.alpha < 0.95, stats


@pytest.mark.parametrize("wrong", ["the hole's mass stays", "one draft id's own q"])
@pytest.mark.slow
def test_joint_law_finds_wrong_rows(monkeypatch, wrong):
    """Control of the test above: two kinds of wrong draft rows that engines were seen to verify with are found."""
    right = sk.verify_chain

    def verify(target, tokens, draft, **options):
        if draft is None:
            return right(target, tokens, draft, **options)
        z = draft.logits.float()
        q = torch.softmax(z, -1)
        if wrong == "one draft id's own q":
            q = torch.softmax(z.masked_fill(OWN < 0, -torch.inf), -1)
        dense = torch.zeros(*q.shape[:-1], V)
        for i, v in enumerate(OWN.tolist()):
            if v >= 0:
                dense[..., v] = q[..., i]  # of two draft ids with one target id, the last
        return right(target, tokens, sk.Rows(dense, kind="probs"), **options)

    monkeypatch.setattr(sk, "verify_chain", verify)
    check, _ = three_tokens("token", OWN)
    assert not check.passed, check


def test_rows_written_out():
    """A row written out by hand: the hole forbids draft id 1. Draft ids 3 and 4 both have target id 3, of which the
    larger logit stays."""
    vocab_map = sk.vocab_map(SOME, V)
    logits = torch.tensor([[2.0, 9.0, 0.5, -0.5, 0.0]])
    assert torch.equal(written_out(logits, vocab_map), torch.tensor([[0.5, -torch.inf, 2.0, 0.0]]))
    assert written_out(logits, None) is logits


def test_common_tokens_have_the_same_text():
    target, draft = {"a": 3, "b": 0, "c": 1}, {"c": 0, "x": 1, "a": 4}
    assert common_tokens(target, draft).tolist() == [1, -1, -1, -1, 3]


WORDS = ["<unk>", "<eos>", *"abcdefghijklmnop"]


def test_a_pair_with_two_tokenizers(tmp_path):
    others = ["<eos>", *"ponmlkjihgfe", "?", "<unk>"]
    target, draft = tiny.folder(tmp_path / "target", 0, WORDS), tiny.folder(tmp_path / "draft", 1, others)
    with pytest.raises(ValueError, match="load_pair: target and draft must have one vocabulary"):
        load_pair(target, draft, torch.float32)
    pair = load_pair(target, draft, torch.float32, match_tokens=True)
    assert pair.draft.vocab_map.table.tolist() == [WORDS.index(x) if x in WORDS else -1 for x in others]
    assert pair.draft.draft_ids.tolist() == [others.index(x if x in others else "<unk>") for x in WORDS]
    requests = [Request(pair.tokenizer.encode("abcdef"), 12, eos=pair.eos)]
    plain, fast = (generate(pair.target, requests, d) for d in (None, ModelDrafter(pair.draft, 3)))
    assert plain.results[0].tokens == fast.results[0].tokens
    assert type(load_pair(target, target, torch.float32, match_tokens=True).draft) is not MatchedModel


def test_what_is_refused(models):
    _, target, draft = models
    with pytest.raises(ValueError, match="^generate: target must have logits for all its ids, got MatchedModel with"):
        generate(draft, tiny.requests(1))
    with pytest.raises(ValueError, match="^beam_search: target must have logits for all its ids, got MatchedModel wi"):
        beam_search(draft, tiny.requests(1), 2)
    with pytest.raises(ValueError, match="^MatchedModel: table must have an id of the target, got none$"):
        MatchedModel(target, torch.tensor([-1, -1]), 32)
    with pytest.raises(ValueError, match="^MatchedModel: table must have at most Vd=32 ids, .* got 33$"):
        MatchedModel(target, torch.arange(33), 40)
