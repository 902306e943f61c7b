# SPDX-License-Identifier: Apache-2.0
"""Joint distributions of drafts and emitted tokens at T = .1, with gaps of 120 in logits / T, by op, method and rule.
Most cases run on one of the CPU's instruction sets, in turn. Other backends agree with the reference token by token
(test_scales.py), and the distributions enumerated here are the reference's."""

import numpy as np
import pytest
import torch
from support import backends, rule_laws, tree_laws
from support.scale_cases import HARDEST, SEED, THOROUGH
from support.scale_checks import METHODS, hash_of

from specdec_kernels import testing
from specdec_kernels.reference.chain_law import chain_law
from specdec_kernels.reference.tree_law import Logs, children, distinct_trees, mixed, probabilities, separate_trees
from specdec_kernels.rules import LAWS, TABLE

pytestmark = pytest.mark.slow

N = 400_000 if THOROUGH else 40_000
V, K, T, GAP = 4, 3, HARDEST.T, HARDEST.gap
ISAS = [f"cpu-{isa}" for isa in backends.ISAS]
# Parameters at which rules decide both ways on these rows. Rules read the rows at T = 1, which are far flatter than the
# sampled distribution.
ALPHA = rule_laws.ALPHAS | {"chow_log": (0.6,), "opt_log": (0.4,)}

# Logarithms of weights. In q, each removed token reduces the remaining mass by many orders of magnitude, except where
# two ids are near ("mild target"). p gives mass to all tokens. In "both peaked", p is as peaked as q, at other ids.
PEAKED = np.array([0.0, -1.5 * GAP, -GAP, -2.5 * GAP])
ROWS = {
    "mild target": (np.log([0.1, 0.2, 0.3, 0.4]), PEAKED + np.array([0, 0.5 * GAP - 1.2, 0, 0])),
    "every removal": (np.log([0.4, 0.1, 0.3, 0.2]), PEAKED),
    "both peaked": (np.array([0.0, -0.4, -GAP, -GAP - 0.5]), np.array([-GAP, 0.0, -0.3, -2 * GAP])),
}


def logits_of(x):
    return torch.tensor(x * T).float()


def row_functions(kind):
    """Return (p, q, p1, q1), functions of the prefix: float32 logits / T, and the logits themselves. Each prefix
    rotates the ids."""
    p, q = (logits_of(x).double().numpy() for x in ROWS[kind])
    scale = float(np.float32(1 / T))

    def at(x, by):
        return lambda prefix: Logs(np.roll(x, sum(prefix) + len(prefix)) * by)

    return at(p, scale), at(q, scale), at(p, 1.0), at(q, 1.0)


def logits(row, *prefixes):
    """Return the logits of an unscaled row after each prefix: [len(prefixes), V]."""
    return torch.stack([torch.from_numpy(row(prefix).x).float() for prefix in prefixes])


TOKENS = [(t,) for t in range(V)]


def streams(n=N):
    i = torch.arange(n)
    return dict(seed=i % 1009 + SEED, offset=i // 1009)


def assert_law(tokens, law, what):
    result = testing.check_tokens(tokens.numpy(), {t: m for t, m in law.items() if m > 1e-15})
    assert result.passed, (what, result)


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("isa", ISAS)
def test_sample(isa, replacement, kind):
    """The joint distribution of the second and third draft."""
    _, q, _, q1 = row_functions(kind)
    law = dict(children(q(()), K, replacement))
    out = backends.run(
        "sample", isa, logits(q1, ()).expand(N, V), k=K, replacement=replacement, temperature=T, **streams()
    )
    assert_law(out.tokens, law, kind)


def drawn_trees(backend, root, method):
    """Draw K siblings from the root's row with the op. Only the root has children."""
    siblings = backends.run(
        "sample", backend, root, k=K, replacement=method in ("kseq", "recursive"), temperature=T, **streams()
    ).tokens
    parents = torch.tensor([-1, *[0] * K], dtype=torch.int32).expand(N, K + 1).contiguous()
    return (parents, torch.cat([torch.zeros(N, 1, dtype=torch.int64), siblings], 1))


def verified(backend, kind, method, **rule):
    _, _, p1, q1 = row_functions(kind)
    tree = drawn_trees(backend, logits(q1, ()).expand(N, V), method)
    target = torch.cat([logits(p1, ()).expand(N, 1, V), logits(p1, *TOKENS)[tree[1][:, 1:]]], 1)
    out = backends.run(
        "verify_tree",
        backend,
        tree,
        target,
        logits(q1, ()).expand(N, K + 1, V),
        method=method,
        max_depth=1,
        temperature=T,
        draft_temperature=T,
        **streams(),
        **rule,
    )
    assert (out.status == 0).all(), "a drawn token is a valid draft, however little was left to draw it from"
    return out.tokens


def shared(isa, *case):
    """Skip a case on all instruction sets except one, chosen in turn. On every one the ops agree with the reference,
    whose distributions are tested here."""
    if hash_of(case) % len(ISAS) != (ISAS.index(isa) + SEED) % len(ISAS):
        pytest.skip("one instruction set for each case, in turn with SPECDEC_SEED")


def unscaled_alpha(alpha):
    return alpha[0] if len(alpha) == 1 else alpha


def tree_law_of(kind, method, rule="exact"):
    p, q, p1, q1 = row_functions(kind)
    trees = separate_trees(q, K, 1) if method in ("kseq", "recursive") else distinct_trees(q, [K])
    alpha = {} if rule == "exact" else {"rule": rule, "alpha": unscaled_alpha(ALPHA[rule])}
    return mixed(list(trees), p, q, method, p1=p1, q1=q1, **alpha), lambda prefix: probabilities(p(prefix))


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("isa", ISAS)
def test_trees(isa, method, kind):
    """Trees drafted and verified by the op give the target distribution."""
    shared(isa, method, kind)
    law, p = tree_law_of(kind, method)
    assert tree_laws.error(law, p, 2) < tree_laws.EXACT
    assert_law(verified(isa, kind, method), law, (method, kind))


PAIRS = [(rule, method) for rule in LAWS if rule != "exact" for method in METHODS if method != "target_only"]


# Each pair of rule and method runs on one instruction set, in turn.
TURNS = [(ISAS[(i + SEED) % len(ISAS)], *pair) for i, pair in enumerate(PAIRS if THOROUGH else PAIRS[:: len(METHODS)])]


@pytest.mark.thorough
@pytest.mark.parametrize("isa, rule, method", TURNS)
def test_trees_by_rule(isa, rule, method):
    kind = [*ROWS][hash_of((rule, method)) % len(ROWS)]
    law, _ = tree_law_of(kind, method, rule)
    assert_law(verified(isa, kind, method, rule=rule, alpha=unscaled_alpha(ALPHA[rule])), law, (rule, method, kind))


@pytest.mark.parametrize("method", ["token", "block"])
@pytest.mark.parametrize("rule", TABLE)
@pytest.mark.parametrize("isa", ISAS)
def test_chains(isa, rule, method):
    """The joint distribution of a step with two draft tokens, drawn by the op."""
    if method == "block" and rule not in LAWS:
        pytest.skip("no law of its own")
    shared(isa, rule, method)
    kind = [*ROWS][hash_of((rule, method)) % len(ROWS)]
    p, q, p1, q1 = row_functions(kind)
    law = chain_law(
        *(lambda prefix, row=row: probabilities(row(prefix)) for row in (p, q)),
        2,
        method=method,
        rule=rule,
        alpha=unscaled_alpha(ALPHA[rule]) if ALPHA[rule] else None,
        **{name: lambda prefix, row=row: probabilities(row(prefix)) for name, row in (("p1", p1), ("q1", q1))},
    )
    drafts, rows = [], [logits(q1, ()).expand(N, V)]
    for slot in range(2):
        drafts.append(backends.run("sample", isa, rows[-1], k=1, temperature=T, slot=slot, **streams()).tokens[:, 0])
        rows.append(logits(q1, *TOKENS)[drafts[0]])
    behind = logits(p1, *[(a, b) for a in range(V) for b in range(V)])[drafts[0] * V + drafts[1]]
    target = torch.stack([logits(p1, ()).expand(N, V), logits(p1, *TOKENS)[drafts[0]], behind], 1)
    alpha = {"alpha": unscaled_alpha(ALPHA[rule])} if ALPHA[rule] else {}
    out = backends.run(
        "verify_chain",
        isa,
        target,
        torch.stack(drafts, 1),
        torch.stack(rows[:2], 1),
        temperature=T,
        draft_temperature=T,
        method=method,
        rule=rule,
        **alpha,
        **streams(),
    )
    assert_law(out.tokens, law, (rule, method, kind))


@pytest.mark.parametrize("method", ["recursive_without_replacement", "traversal"])
@pytest.mark.parametrize("gap", [50.0, 88.0, 120.0, 300.0])
def test_the_references_are_lossless_whatever_is_left(method, gap):
    """All ids are drawn, one after the other, from a row whose logits are one gap apart. With a gap of 300, only e^-900
    of the row is left for the last."""
    p, q = np.array([0.1, 0.2, 0.3, 0.4]), Logs(-gap * np.array([0.0, 2.0, 1.0, 3.0]))
    law = mixed(list(distinct_trees(lambda prefix: q, [4])), lambda prefix: p, lambda prefix: q, method)
    assert tree_laws.error(law, lambda prefix: p, 2) < tree_laws.EXACT
