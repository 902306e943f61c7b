# SPDX-License-Identifier: Apache-2.0
"""Trees in the decode loop, on tiny models: greedy output, joint distributions, scoring, compaction, ragged batches,
errors."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch
from support import tiers, tiny
from support.tree_laws import EXACT, error, random_rows

import specdec_kernels as sk
from specdec_kernels import testing
from specdec_kernels.decode import (
    TREE_METHODS,
    Branches,
    ModelDrafter,
    PromptLookupDrafter,
    Request,
    SlotCache,
    TreeDraft,
    TreeDrafter,
    TreeShape,
    adapt,
    generate,
)
from specdec_kernels.decode.drafters.lookup_branch import with_lookup
from specdec_kernels.reference.tree_law import distinct_trees, plain_tree, tree_law

pytestmark = pytest.mark.usefixtures("one_thread")
LOOKUP = ["recursive_without_replacement", "traversal", "target_only", "greedy"]
KINDS = [*TREE_METHODS, *(f"{m}+lookup" for m in LOOKUP)]


@pytest.fixture(scope="module")
def models():
    return tiny.served()


def drafter(kind, model, drafts=3, depth=3, **options):
    method, _, lookup = kind.partition("+")
    return TreeDrafter(
        model, method, drafts, depth, **({"lookup": PromptLookupDrafter(5)} if lookup else {}), **options
    )


GREEDY = [("lean", 4, k) for k in KINDS] + [("lean", 1, k) for k in ("kseq", "target_only+lookup")]
GREEDY += [(m, 3, k) for m in ("llama-hf", "gpt2") for k in ("recursive", "greedy+lookup")]


@pytest.mark.parametrize("name, batch, kind", GREEDY)
@pytest.mark.slow
def test_greedy_is_the_models_own(models, name, batch, kind):
    """8 requests in fewer slots: trees differ by request, and slots are freed, moved and reused. Kills: a position that
    counts nodes instead of depth, a sibling that is attended to, an accepted key that is not moved to its place."""
    hf, target, draft = models[name]
    todo = tiny.requests()
    output = generate(target, todo, drafter(kind, draft), max_batch=batch)
    for request, result in zip(todo, output.results):
        assert result.tokens == tiny.greedy(hf, request.prompt, request.max_new_tokens)
    stats = output.stats
    assert 0.4 < stats.alpha < 0.95 and stats.tokens_per_call > 1.8 and stats.status == 0
    # Draws at temperature 0 are all one token, so their trees are chains of up to 3. Trees of the model's likeliest
    # tokens branch.
    assert (stats.nodes_per_call > 7) == (kind.partition("+")[0] in ("target_only", "greedy", "race"))


def test_a_path_that_is_not_compacted_is_found_out(models, monkeypatch):
    hf, target, draft = models["lean"]
    monkeypatch.setattr(SlotCache, "compact", lambda self, start, paths: None)
    todo = tiny.requests()
    results = generate(target, todo, drafter("target_only", draft), max_batch=4).results
    assert [r.tokens for r in results] != [tiny.greedy(hf, r.prompt, r.max_new_tokens) for r in todo]


class Says(PromptLookupDrafter):
    """A lookup that always finds the same text."""

    def __init__(self, text):
        super().__init__(len(text))
        self.text = text

    def find(self, batch):
        return [self.text[: s.remaining - 1] for s in batch]


LAWS = [
    ("kseq", {}),
    ("recursive_without_replacement", {"shape": (2, 2)}),
    ("target_only", {"drafts": 1, "lookup": Says([3, 3])}),
]
MORE = [
    ("recursive", {}),
    ("traversal", {"shape": (2, 2)}),
    ("target_only", {"shape": (2, 1)}),
    ("recursive_without_replacement", {"drafts": 1, "lookup": Says([3, 3])}),
]


def three_tokens(make, n=tiers.draws(8000), temperature=1.0, V=4):
    """Return the chi-square of the 3 tokens of n requests that differ in their seed only, against exact enumeration,
    and the statistics of the run."""
    hf, other = tiny.llama(3, V, 0.15), tiny.llama(8, V, 0.15)
    todo = [Request([1], max_new_tokens=3, temperature=temperature, seed=i) for i in range(n)]
    output = generate(adapt(hf), todo, make(adapt(other)), max_batch=2000)
    tokens = np.array([r.tokens for r in output.results])
    return testing.check_tokens(tokens, testing.enumerate_law(tiny.laws(hf, [1], temperature), 3)), output.stats


@pytest.mark.parametrize(
    "kind, options",
    [*LAWS, *(pytest.param(*law, marks=pytest.mark.thorough) for law in MORE)],
    ids=[kind + "+lookup" * ("lookup" in options) for kind, options in LAWS + MORE],
)
@pytest.mark.slow
def test_joint_law_of_three_tokens(kind, options):
    """Through the whole loop, emitted tokens follow the target's joint distribution on V^3, with a draft far from it.

    With 8,000 draws (half as many below the tier `all`) over some 50 cells, a bias of total variation 0.06, spread over
    the cells, is found 99 times in 100.
    """
    check, stats = three_tokens(lambda other: drafter(kind, other, **{"drafts": 3, "depth": 2, **options}))
    assert check.passed, check
    assert check.cells > 25 and check.detects < tiers.shift(0.062) and 0.2 < stats.alpha < 0.95, (check, stats)
    assert stats.status == 0


@pytest.mark.parametrize("method", ["recursive_without_replacement", "traversal", "target_only"])
@pytest.mark.parametrize("text", [[0, 1], [2, 2], [3]])
@pytest.mark.slow
def test_a_lookup_branch_is_exact(method, text):
    """Every tree of two distinct children with a chain after each, enumerated in float64 with its draws and
    decisions."""
    p, q, law = random_rows(1, 4), random_rows(11, 4), defaultdict(float)
    grown = set()
    for tree, probability in distinct_trees(q, [2, 1]):
        rows = sk.Rows(torch.zeros(1, 1, 4), row=tree.parents)
        draft = with_lookup(TreeDraft(tree.parents, tree.tokens[:, 1:], rows=rows), [text])
        parents, row = draft.parents[0].tolist(), draft.rows.row[0].tolist()
        looked_up = [i for i in range(1, len(parents)) if parents[i] >= 0 and row[i] < 0]
        one = plain_tree(parents, [-1, *draft.tokens[0].tolist()])
        grown.add(len(looked_up))
        for tokens, mass in tree_law(one, p, q, method, looked_up).items():
            law[tokens] += probability * mass
    assert error(dict(law), p, 3) < EXACT and grown == set(range(len(text) + 1))


def verified_as(method):
    """Return a drafter of distinct children whose trees are verified by another method."""

    def make(other):
        wrong = drafter("recursive_without_replacement", other, depth=2)
        propose = wrong.propose
        wrong.propose = lambda batch: None if (draft := propose(batch)) is None else replace(draft, method=method)
        return wrong

    return make


def merged(other):
    """Return a drafter of independent drafts that tests each merged node only once."""
    wrong = drafter("recursive", other, depth=2)
    propose = wrong.propose
    wrong.propose = lambda batch: None if (draft := propose(batch)) is None else replace(draft, draft_nodes=None)
    return wrong


@pytest.mark.parametrize(
    "make",
    [verified_as("recursive"), verified_as("kseq"), merged],
    ids=["distinct as independent", "distinct as kseq", "merged"],
)
@pytest.mark.slow
def test_joint_law_finds_a_tree_verified_by_the_wrong_rule(make):
    assert not three_tokens(make, min(6000, tiers.draws(8000)))[0].passed


@pytest.mark.parametrize("kind", ["kseq", "recursive"])
def test_one_independent_draft_is_the_chain(models, kind):
    """K = 1: draws, tests and tokens are those of ModelDrafter and verify_chain."""
    _, target, draft = models["lean"]
    todo = tiny.requests(temperature=1.0)
    chain = generate(target, todo, ModelDrafter(draft, 3), max_batch=4)
    tree = generate(target, todo, drafter(kind, draft, 1), max_batch=4)
    assert [r.tokens for r in tree.results] == [r.tokens for r in chain.results]
    counted = (
        "new_tokens",
        "rows",
        "drafted",
        "tested",
        "accepted",
        "widths",
        "target_calls",
        "accepted_length",
        "nodes_per_call",
    )
    assert [getattr(tree.stats, name) for name in counted] == [getattr(chain.stats, name) for name in counted]


@pytest.mark.parametrize("kind", [k for k in KINDS if not k.startswith("greedy")])
@pytest.mark.slow
def test_a_request_alone_and_in_a_batch(models, kind):
    """A request gets the same tokens alone and in a batch, in another slot, beside other parameters and trees."""
    _, target, draft = models["lean"]
    changes = [
        dict(temperature=[0.0, 1.0, 0.7, 1.3][i % 4], top_k=[0, 5][i % 2], top_p=[1.0, 0.8, 1.0][i % 3], seed=100 + i)
        for i in range(8)
    ]
    todo = [Request(r.prompt, r.max_new_tokens, **c) for r, c in zip(tiny.requests(), changes)]
    alone = [generate(target, [r], drafter(kind, draft)).results[0].tokens for r in todo]
    together = generate(target, todo[::-1], drafter(kind, draft), max_batch=5).results
    assert alone == [r.tokens for r in together[::-1]]


@pytest.mark.parametrize("name", ["lean", "llama-hf", "gpt2"])
def test_every_node_is_scored_as_its_own_text(models, name):
    """One pass over two different trees gives each node the logits of its path read alone, in float32. Three passes
    over parts give the first tree's again."""
    hf, target, _ = models[name]
    prefix = [[5, 9, 3, 7, 1], [8, 2]]
    parents = torch.tensor([[-1, 0, 0, 1, 1, 3, 2], [-1, 0, 1, 2, 0, -1, -1]], dtype=torch.int32)
    ids = torch.tensor([[4, 6, 11, 7, 8, 2, 30], [13, 5, 6, 7, 8, 0, 0]])
    start, whole = [len(p) for p in prefix], torch.arange(7)

    def scored(parts):
        cache = target.new_cache(2, 24)
        for slot, tokens in enumerate(prefix):
            target.forward(torch.tensor([tokens]), [0], cache, slot, keep=None)
        return torch.cat(
            [target.forward(ids[:, p], start, cache, branches=Branches(parents, [int(p[0])] * 2)) for p in parts], 1
        )

    logits = scored([whole])
    assert torch.allclose(logits[0], scored([whole[:1], whole[1:3], whole[3:]])[0], atol=1e-4)
    for row in range(2):
        for node in range(7 if row == 0 else 5):
            path, at = [], node
            while at >= 0:
                path, at = [ids[row, at].item(), *path], int(parents[row, at])
            with torch.inference_mode():
                expected = hf(torch.tensor([prefix[row] + path])).logits[0, -1]
            assert torch.allclose(logits[row, node], expected, atol=1e-4), (row, node)


def test_compact_moves_the_path_and_nothing_else():
    cache = SlotCache(2, 12)
    marks = torch.arange(24.0).view(2, 12, 1, 1)
    cache.layers.append((marks.clone(), -marks.clone()))
    cache.compact([2, 5], torch.tensor([[0, 2, 3, 6], [0, 1, -1, -1]]))
    expected = marks.clone()
    expected[0, 3:6] = marks[0, [4, 5, 8]]
    assert torch.equal(cache.layers[0][0], expected) and torch.equal(cache.layers[0][1], -expected)


def test_shapes():
    """Widths per level, or any list of parents: renumbered level by level, with a node's children side by side."""
    shape = TreeShape((2, 1, 2))
    assert shape.parents == [-1, 0, 0, 1, 2, 3, 3, 4, 4] and shape.depth == 3
    assert shape.levels == [range(1), range(1, 3), range(3, 5), range(5, 9)]
    deep_first = TreeShape([-1, 0, 1, 2, 0, 4, 1])  # 0 -> (1 -> (2 -> 3), 6), (4 -> 5)
    assert deep_first.parents == [-1, 0, 0, 1, 1, 2, 3] and deep_first.children[1] == [3, 4]
    for bad in ((), (2, 0), (-1,), (-1, 0, 2), (-1, 0, -1), (1.5,)):
        with pytest.raises(ValueError, match="TreeShape: shape must be widths"):
            TreeShape(bad)


def proposal(kind, models, tokens, remaining=9, **options):
    """Return a drafter's proposal for one sampled request."""
    from specdec_kernels.decode.sequence import Batch, Sequence

    _, _, draft = models["lean"]
    made = drafter(kind, draft, **options)
    made.begin(1, 100)
    sequence = Sequence(0, Request(tokens, remaining, temperature=0.0 if kind.startswith("greedy") else 1.0, seed=3))
    made.admit(0, sequence)
    return made.propose(Batch([sequence]))


def test_a_parent_list_is_filled_with_the_likeliest_tokens(models):
    _, served, draft = models["lean"]
    parents = [-1, 0, 0, 0, 1, 1, 4]
    tree = proposal("target_only", models, [5, 9, 3], shape=parents)
    assert tree.parents.tolist() == [parents] and tree.depth == 3 and tree.rows is None

    def row(path):
        ids = torch.tensor([[5, 9, 3, *path]])
        return draft.forward(ids, [0], draft.new_cache(1, 8), keep=[ids.shape[1] - 1])[0]

    a, b, c, d, e, f = tree.tokens[0].tolist()
    assert [a, b, c] == row([]).topk(3).indices.tolist() and [d, e] == row([a]).topk(2).indices.tolist()
    assert f == row([a, d]).argmax().item()


def test_drafted_rows_and_random_numbers(models):
    """Each node's row of draft logits is the draft's distribution after the node's parent.

    Of K drafts, draft k at level l is drawn with the random number of slot l * K + k. In a fixed shape a first child
    has the slot of its node number less one.
    """
    _, _, draft = models["lean"]
    u = sk.uniforms(torch.tensor([3]), torch.tensor([3]), 18, sk.DOMAIN_DRAFT)
    for kind, options in (("kseq", {}), ("recursive_without_replacement", {"shape": (3, 2, 1)})):
        tree = proposal(kind, models, [5, 9, 3], drafts=6, **options)
        parents, tokens = tree.parents[0].tolist(), [-1, *tree.tokens[0].tolist()]
        assert len(parents) > 8
        drawn = {}  # node -> its slots
        if tree.draft_nodes is None:
            drawn = {node: [node - 1] for node in range(1, len(parents)) if parents[node] not in parents[:node]}
        else:
            for k, nodes in enumerate(tree.draft_nodes[0].tolist()):
                for level, node in enumerate(nodes):
                    drawn.setdefault(node, []).append(6 * level + k)
            assert sum(map(len, drawn.values())) == 18 > len(drawn)
        for node in range(1, len(parents)):
            path, at = [], parents[node]
            while at > 0:
                path, at = [tokens[at], *path], parents[at]
            ids = torch.tensor([[5, 9, 3, *path]])
            expected = draft.forward(ids, [0], draft.new_cache(1, 8), keep=[ids.shape[1] - 1])
            at = tree.rows.row[0, node]
            assert torch.allclose(tree.rows.logits[0, at], expected[0], atol=1e-4)
            assert torch.allclose(tree.rows.stats[0, at], sk.row_stats(expected)[0], atol=1e-4)
            for slot in drawn.get(node, []):
                assert sk.sample(expected, uniforms=u[:, slot : slot + 1]).tokens.item() == tokens[node]


def test_depth_ends_where_the_request_does(models):
    for kind in ("kseq", "recursive_without_replacement", "target_only+lookup"):
        assert proposal(kind, models, [5, 9, 5], remaining=1) is None
        tree = proposal(kind, models, [5, 9, 5], remaining=3)
        assert sk.tree_mask(tree.parents).depth.max() == 2 and tree.depth >= 3
    hf, target, draft = models["lean"]
    for tokens in (1, 2, 5):
        short = [Request(r.prompt, tokens) for r in tiny.requests()]
        results = generate(target, short, drafter("target_only+lookup", draft)).results
        assert [r.tokens for r in results] == [tiny.greedy(hf, r.prompt, tokens) for r in short]


def test_lookup_joins_the_tree_where_it_agrees():
    """Row 0 leaves the tree after node 1, row 1 lies in the tree, row 2 found nothing, row 3 leaves it at the root."""
    parents = torch.tensor([[-1, 0, 0, 1]] * 3 + [[-1, 0, -1, -1]], dtype=torch.int32)
    tokens = torch.tensor([[7, 8, 9]] * 3 + [[7, -1, -1]])
    draft = TreeDraft(
        parents, tokens, "recursive_without_replacement", 4, rows=sk.Rows(torch.zeros(4, 4, 4), row=parents)
    )
    out = with_lookup(draft, [[7, 5, 6], [7, 9], [], [4, 7]])
    assert out.parents.tolist() == [
        [-1, 0, 0, 1, 1, 4],
        [-1, 0, 0, 1, -1, -1],
        [-1, 0, 0, 1, -1, -1],
        [-1, 0, 0, 2, -1, -1],
    ]
    assert out.tokens.tolist() == [[7, 8, 9, 5, 6], [7, 8, 9, -1, -1], [7, 8, 9, -1, -1], [7, 4, 7, -1, -1]]
    assert out.rows.row.tolist() == [
        [-1, 0, 0, 1, -1, -1],
        [-1, 0, 0, 1, -1, -1],
        [-1, 0, 0, 1, -1, -1],
        [-1, 0, -1, -1, -1, -1],
    ]
    assert parents[3].tolist() == [-1, 0, -1, -1]  # the draft that was passed in stays unchanged


@pytest.mark.slow
def test_draft_vocabulary_of_another_size():
    hf, todo = tiny.llama(0), tiny.requests()
    expected = [tiny.greedy(hf, r.prompt, r.max_new_tokens) for r in todo]
    for vocab in (24, 40):
        draft = adapt(tiny.llama(6, vocab))
        assert [r.tokens for r in generate(adapt(hf), todo, drafter("target_only", draft)).results] == expected
        hot = [Request(r.prompt, r.max_new_tokens, temperature=1.0) for r in todo]
        assert all(0 <= t < 32 for r in generate(adapt(hf), hot, drafter("kseq", draft)).results for t in r.tokens)


def test_statistics_add_up(models):
    _, target, draft = models["lean"]
    output = generate(target, tiny.requests(temperature=1.0), drafter("kseq", draft), max_batch=4)
    total, each = output.stats, [r.stats for r in output.results]
    for name in ("new_tokens", "rows", "drafted", "tested", "accepted"):
        assert getattr(total, name) == sum(getattr(s, name) for s in each), name
    assert total.accepted <= total.tested <= total.accepted + total.rows and total.drafted == sum(
        g * n for g, n in total.widths.items()
    )
    assert (
        total.nodes_per_call == 1 + total.drafted / total.rows and total.accepted_length == total.accepted / total.rows
    )
    assert max(total.widths) <= 9 and len(total.widths) > 3  # drafts merge, by different amounts


def test_errors(models):
    _, target, draft = models["lean"]
    for make, message in [
        (lambda: TreeDrafter(draft, "best"), "TreeDrafter: method must be one of 'kseq', .* got 'best'"),
        (lambda: TreeDrafter(draft, drafts=0), "TreeDrafter: drafts must be an integer >= 1, got 0"),
        (lambda: TreeDrafter(draft, depth="auto"), "TreeDrafter: depth must be an integer >= 1, got 'auto'"),
        (
            lambda: TreeDrafter(draft, "kseq", shape=(2, 1)),
            r"method 'kseq' draws independent chains, which have no fixed shape, got \[2, 1\]",
        ),
        (lambda: drafter("recursive+lookup", draft), "lookup needs distinct children that may differ in their law"),
        (
            lambda: generate(target, tiny.requests(temperature=1.0), drafter("greedy", draft)),
            "needs temperature 0, request 0 has 1.0",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            make()
