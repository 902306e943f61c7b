# SPDX-License-Identifier: Apache-2.0
"""Penalties in the reference: hand-made numbers, and the joint distribution of a step against plain decoding."""

import itertools
import math
from collections import defaultdict

import numpy as np
import pytest
import torch

import specdec_kernels as sk
from specdec_kernels import reference
from specdec_kernels.reference.chance import Chance, outcomes
from specdec_kernels.reference.penalties import History, penalised
from specdec_kernels.rows import Rows

Z = (2.0, 1.0, 0.5, -0.5, 0.0)
PROMPT, OUTPUT = [3], [0, 0, 2]
GOLDEN = [  # (repetition, frequency, presence), the draft tokens before the row, p to twelve digits
    ((1.3, 0.0, 0.0), (), ".449263143911 .262210402440 .141707153501 .050357483828 .096461816319"),
    ((1.3, 0.0, 0.0), (1,), ".474926069895 .220066193439 .149801786326 .053234017098 .101971933243"),
    ((1.0, 0.5, 0.0), (1, 2, 1), ".458291108891 .168595877033 .102258568522 .102258568522 .168595877033"),
    ((1.0, 0.0, 1.5), (1,), ".389799766152 .143399320141 .086976084247 .143399320141 .236425509320"),
    ((1.3, 0.5, 1.5), (), ".079292450354 .563789740831 .041235385812 .108275768208 .207406654795"),
    ((1.3, 0.5, 1.5), (1,), ".159610535841 .121937171899 .083004144728 .217952066117 .417496081415"),
]


def listed(V, prompt=PROMPT, output=OUTPUT):
    ids, counts = sk.history([prompt], [output], size=8)
    return History.of_list(ids[0].tolist(), counts[0].tolist(), V)


@pytest.mark.parametrize("given, drafted, want", GOLDEN)
def test_golden(given, drafted, want):
    for history in (listed(5), History.of_table([2, 0, 1, 0], [-24], 5)):  # bit 3 is set, and bits of no token
        e = penalised(np.array(Z), history.after(drafted), *given)
        p = np.exp(e) / np.exp(e).sum()
        assert [f"{x:.12f}".removeprefix("0") for x in p] == want.split()


def test_penalties_that_are_off_change_no_bit():
    z = np.array([0.0, -0.0, 1e-40, -1e-40, -np.inf, np.inf, 3e38, -3e38], dtype=np.float32)
    seen = penalised(z, listed(8, [0, 1, 2], [3, 4, 5, 6, 7, 7]).after((1, 2)))
    assert np.array_equal(seen.view(np.int32), z.view(np.int32))


@pytest.mark.parametrize("given", [(0.0,), (-1.0,), (math.nan,), (math.inf,), (1.0, math.nan), (1.0, 0.0, math.inf)])
def test_no_penalty_makes_the_row_invalid(given):
    assert np.isnan(penalised(np.array(Z), listed(5), *given)).all()


def test_each_operation_is_rounded_by_itself():
    """A fused e - f * count, or a product with 1 / r, gives other bits somewhere."""
    rng = np.random.default_rng(0)
    z = rng.normal(0, 3, 1000).astype(np.float32)
    history = History(np.ones(1000, bool), np.full(1000, 7))
    r, f, s = (np.float32(x) for x in (1.3, 0.1, 1.5))
    got = penalised(z, history, r, f, s)
    once = np.where(z > 0, z / r, z * r)
    fused = (once.astype(np.float64) - 7 * np.float64(f)).astype(np.float32) - s
    by_inverse = np.where(z > 0, z * (np.float32(1) / r), z * r) - f * np.float32(7) - s
    assert (got == once - f * np.float32(7) - s).all()
    assert (got != fused).any() and (got != by_inverse).any()


def test_history_says_what_is_wrong():
    for prompt, output, size, says in (
        ([[1]], [], 4, "output must be of 1 requests, as prompt is, got 0"),
        ([[-1]], [[]], 4, r"tokens must be in \[0, 2\^24\), got -1 in request 0"),
        ([[]], [[1 << 24]], 4, r"tokens must be in \[0, 2\^24\), got 16777216 in request 0"),
        ([[], [1, 2]], [[], [3, 3]], 2, "size must be at least 3, request 1's distinct tokens, got 2"),
    ):
        with pytest.raises(ValueError, match=f"history: {says}"):
            sk.history(prompt, output, size)


# ---- the joint distribution ----------------------------------------------------------------------------------------

V, G = 3, 2
PENALTIES = {"repetition": 1.7, "frequency": 0.8, "presence": -0.6}
HISTORY = ([0], [1, 1])


def softmax(e):
    w = np.exp(e - e.max())
    return w / w.sum()


def model(seed, peaked):
    """Return the logits after each prefix of at most G tokens."""
    rng = np.random.default_rng(seed)
    prefixes = [x for n in range(G + 1) for x in itertools.product(range(V), repeat=n)]
    return {x: rng.normal(0, 6 if peaked else 1.5, V).astype(np.float32) for x in prefixes}


def seen(z, prefix):
    """Return the penalised row after a prefix, with its tokens counted one by one."""
    output = [*HISTORY[1], *prefix]
    r, f, s = (np.float32(x) for x in PENALTIES.values())
    e = z[prefix].copy()
    for v in range(V):
        if v in HISTORY[0] or v in output:
            e[v] = e[v] / r if e[v] > 0 else e[v] * r
        if v in output:
            e[v] = np.float32(e[v] - np.float32(f * np.float32(output.count(v)))) - s
    return e.astype(np.float64)


def emitted(target, draft, of_draft, method, rule):
    """Return the distribution of the tokens that a step of the reference emits, over all drafts and decisions.
    of_draft: the draft's rows are penalised too."""
    joint = defaultdict(float)
    ids, counts = sk.history([HISTORY[0]], [HISTORY[1]], size=4)
    penalties = sk.Penalties(**PENALTIES, ids=ids, counts=counts)
    for drafts in itertools.product(range(V), repeat=G):
        mass = 1.0
        for i, d in enumerate(drafts):
            e = seen(draft, drafts[:i]) if of_draft else draft[drafts[:i]].astype(np.float64)
            mass *= softmax(e)[d]
        p = torch.from_numpy(np.stack([target[drafts[:i]] for i in range(G + 1)]))[None]
        q = torch.from_numpy(np.stack([draft[drafts[:i]] for i in range(G)]))[None]
        sides = Rows(p, penalties=penalties), Rows(q, penalties=penalties if of_draft else None)

        def walk(chance, drafts=drafts, sides=sides):
            class Given(Chance):
                @classmethod
                def of_requests(cls, *args):
                    return [chance]

            return reference.verify_chain(
                sides[0], torch.tensor([drafts]), sides[1], method=method, rule=rule, chance_type=Given
            )

        for out, probability in outcomes(walk):
            joint[tuple(x for x in out.tokens[0].tolist() if x >= 0)] += mass * probability
    return joint


def continued(joint, target):
    """Return the distribution of G + 1 tokens: plain decoding continues each emitted prefix."""
    law = defaultdict(float)
    for tokens, mass in joint.items():
        for more in itertools.product(range(V), repeat=G + 1 - len(tokens)):
            x, p = tokens + more, mass
            for i in range(len(tokens), G + 1):
                p *= softmax(seen(target, x[:i]))[x[i]]
            law[x] += p
    return law


@pytest.mark.parametrize("peaked", [False, True])
@pytest.mark.parametrize("of_draft", [False, True])
@pytest.mark.parametrize("method", ["token", "block"])
def test_a_step_is_plain_decoding(method, of_draft, peaked):
    target, draft = model(1, peaked), model(2, peaked)
    law = continued(emitted(target, draft, of_draft, method, "exact"), target)
    plain = continued({(): 1.0}, target)
    assert max(abs(law[x] - plain[x]) for x in plain) < 1e-14
    committed = defaultdict(float)  # penalties that do not count draft tokens, as in some engines: another distribution
    for x in plain:
        committed[x] = math.prod(softmax(penalised(target[x[:i]], listed(V, *HISTORY), *PENALTIES.values()))[x[i]]
                                 for i in range(G + 1))  # fmt: skip
    assert sum(abs(committed[x] - plain[x]) for x in plain) / 2 > 0.02


def drawn(q, method, before):
    """Return the distribution of a node's token, given the siblings before it."""
    if method == "recursive":
        return q
    left = np.where(np.isin(np.arange(V), before), 0.0, q)
    return left / left.sum()


def emitted_by_tree(target, draft, of_draft, method):
    """Return the distribution of the tokens that a step emits on a tree: a root with children 1 and 2, and node 3 below
    node 1."""
    joint = defaultdict(float)
    ids, counts = sk.history([HISTORY[0]], [HISTORY[1]], size=4)
    penalties = sk.Penalties(**PENALTIES, ids=ids, counts=counts)
    q = lambda prefix: softmax(seen(draft, prefix) if of_draft else draft[prefix].astype(np.float64))
    for a, b, c in itertools.product(range(V), repeat=3):
        mass = q(())[a] * drawn(q(()), method, [a])[b] * q((a,))[c]
        if not mass:
            continue
        paths = [(), (a,), (b,), (a, c)]
        rows = [torch.from_numpy(np.stack([z[path] for path in paths]))[None] for z in (target, draft)]
        sides = Rows(rows[0], penalties=penalties), Rows(rows[1], penalties=penalties if of_draft else None)
        tree = torch.tensor([[-1, 0, 0, 1]]), torch.tensor([[0, a, b, c]])  # the token 0 at the root is not counted

        def walk(chance, tree=tree, sides=sides):
            class Given(Chance):
                @classmethod
                def of_requests(cls, *args):
                    return [chance]

            return reference.verify_tree(tree, *sides, method=method, max_depth=2, chance_type=Given)

        for out, probability in outcomes(walk):
            joint[tuple(x for x in out.tokens[0].tolist() if x >= 0)] += mass * probability
    return joint


@pytest.mark.parametrize("peaked", [False, True])
@pytest.mark.parametrize("of_draft", [False, True])
@pytest.mark.parametrize("method", ["recursive", "recursive_without_replacement", "traversal"])
def test_a_tree_is_plain_decoding(method, of_draft, peaked):
    target, draft = model(3, peaked), model(4, peaked)
    law = continued(emitted_by_tree(target, draft, of_draft, method), target)
    plain = continued({(): 1.0}, target)
    assert max(abs(law[x] - plain[x]) for x in plain) < 1e-14
