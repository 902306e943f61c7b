# SPDX-License-Identifier: Apache-2.0
"""verify_tree under rules: against the float64 reference, enumerated distributions and numbers by hand. A request's
result must not depend on its batch."""

import math

import pytest
import torch
from support import backends, checks, flat, rule_cases, tree_cases
from support.rule_laws import ALPHAS
from support.tree_checks import agree_on, differ, equal, in_range, pick, verify
from support.tree_laws import draws, random_rows

from specdec_kernels import reference, testing
from specdec_kernels.reference.tree_law import distinct_trees, iid_trees, mixed
from specdec_kernels.registry import SAMPLING
from specdec_kernels.rules import NAMES, RULES, TABLE

pytestmark = pytest.mark.not_triton  # test_verify_tree_edges.py tests that it is refused there
# the methods that read the draft's rows
METHODS = ("kseq", "recursive", "recursive_without_replacement", "traversal")
F64 = torch.float64


def tree(seed, B, method, shift=0, names=None, **case):
    """Return a batch of mixed rules, with every distribution-defining rule if B allows it."""
    how = "token" if names == ("thresholds",) else "block"
    return tree_cases.tree(seed, B, method=method, **case) | rule_cases.rules(B, how, names, shift)


def takes_turns(backend, method, nth):
    """Skip a test on the slowest simulated kernels, except with the nth method (modulo 4)."""
    if backend in rule_cases.SLOW and METHODS.index(method) != nth % 4:
        pytest.skip("the interpreter is slow: each case with one method")


CASES = {
    "drafts": dict(V=7, K=3, L=2),
    "shared prefixes": dict(V=3, K=4, L=3),
    "one id": dict(V=1, K=2, L=2),
    "any tree": dict(V=5, N=12),
    "linked, cut short": dict(V=3, N=24, linked=True, max_depth=2),
    "chunks": dict(V=2500, K=3, L=2, kinds=["near", "peaked", "dirichlet"]),
    "chunks, shuffled": dict(V=1031, N=9, shuffled=True, linked=True),
    "filters": dict(V=8, filtered=True),
    "filters, any tree": dict(V=9, N=9, filtered=True, shuffled=True),
    "stats": dict(V=8, N=9, stats=True, shuffled=True),
    "probabilities": dict(V=8, probs=True),
    "probabilities, any tree": dict(V=8, N=9, probs=True, shuffled=True),
    "half precision": dict(V=8, dtype=torch.float16, draft_dtype=torch.bfloat16),
    "narrow draft": dict(V=8, Vq=5, filtered=True),
    "wide draft": dict(V=8, Vq=13, filtered=True),
    "wide draft, any tree": dict(V=5, Vq=8, N=9, shuffled=True),
    "wide draft, chunks": dict(V=1030, Vq=2100, N=7, kinds=["near", "dirichlet"]),
    "wide draft, probabilities": dict(V=5, Vq=8, N=9, probs=True),
    "one-hot": dict(V=8, N=9, one_hot=True, filtered=True),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.slow
def test_agreement(backend, method, name):
    """Batches of 46 requests or more have all rules that define a distribution. Where kernels are simulated, each test
    has a part of them."""
    case, at = CASES[name], list(CASES).index(name)
    if method == "kseq" and case.get("one_hot"):
        pytest.skip("kseq needs draft rows")
    takes_turns(backend, method, -at)
    B = rule_cases.count(105 if case["V"] < 100 else 46, backend)
    args = tree(31, B, method, shift=3 * at, **case)
    assert B < 46 or len(args["rule"].unique()) == len(rule_cases.LAWS)
    _, ref = agree_on(verify(backend), args, f"{name}, {method}")
    assert (ref.margin <= 1).double().mean() < 0.3, "the band would hide too much"
    if B >= 46 and case["V"] > 1:
        assert 0.2 < (ref.num_accepted > 0).double().mean() < 0.99, "not a test of both answers"


def test_traversal(backend):
    """Traversal has its own kernel code, so every simulated device runs this test, in make test too."""
    agree_on(verify(backend), tree(32, rule_cases.count(105, backend), "traversal", **CASES["any tree"]), "traversal")


@pytest.mark.parametrize("name", ["any tree", "linked, cut short", "filters", "probabilities, any tree", "stats"])
def test_thresholds_agree(backend, name):
    B = rule_cases.count(105, backend)
    args = tree(33, B, "target_only", names=("thresholds",), **CASES[name])
    args["rule"][::5] = 0
    out, ref = agree_on(verify(backend), args, name)
    assert (ref.num_accepted > 0).any() and (ref.num_accepted == 0).any()


@pytest.mark.parametrize("alpha, first, second", [
    ((1.0, 1.0), 0.4, 0.2), ((1.0, 0.8), 0.5, 0.25), ((1.0, 0.5), 0.8, 0.2), ((0.3, 1.0), 1.0, 0.0),
    ((0.4, 0.5), 1.0, 0.0),
])  # fmt: skip
def test_thresholds_by_hand(backend, alpha, first, second):
    """The children 2 and 0 of a root with p = (.2, .4, .4) are accepted with the probabilities `first` and `second`.
    Otherwise id 1 is emitted, the only one left."""
    n = backends.scale(160, backend, least=20)
    p = torch.tensor([0.2, 0.4, 0.4]).expand(n, 3, 3).contiguous()
    u = torch.full((n, 4), 0.7, dtype=F64)
    u[:, 0] = (torch.arange(n) + 0.5) / n
    out = verify(backend)((torch.tensor([-1, 0, 0]), torch.tensor([-1, 2, 0])), p, method="target_only",
                          target_kind="probs", max_depth=1, rule="thresholds", alpha=alpha, uniforms=u)  # fmt: skip
    share = [float((out.path[:, 1] == node).double().mean()) for node in (1, 2)]
    assert share == pytest.approx([first, second], abs=1 / n)
    assert (out.tokens[out.num_accepted == 0, 0] == 1).all()


@pytest.mark.parametrize("method", [*METHODS, "target_only", "greedy"])
def test_the_exact_rule_and_exact_ends(backend, method):
    """Rules at the alpha where they equal the exact rule, and the exact rule's code, give the bits of a call without a
    rule. Other rules in the batch do not change this."""
    if method in METHODS:
        takes_turns(backend, method, 0)
    B = rule_cases.count(48, backend)
    args = tree_cases.tree(
        35, B, 1100, method, N=5, filtered=True, shuffled=True, kinds=["near", "peaked", "dirichlet"]
    )
    want = verify(backend)(**args)
    ends = {"greedy": ["exact"], "target_only": ["exact", "thresholds"]}.get(method, ["exact", "lossy", "ensemble"])
    names = [ends[b % len(ends)] for b in range(B)]
    rule = torch.tensor([RULES[name] for name in names])
    alpha = torch.tensor(
        [[0.5 if name == "exact" else TABLE[name].exact_at or float(name == "thresholds")] * 2 for name in names]
    )
    assert equal(verify(backend)(**args, rule=rule, alpha=alpha), want)
    if method in METHODS:  # every third request under another rule
        rule[2::3], alpha[2::3] = RULES["ensemble"], 0.5
        alone = [b for b in range(B) if b % 3 < 2]
        assert equal([x[alone] for x in verify(backend)(**args, rule=rule, alpha=alpha)], [x[alone] for x in want])


@pytest.mark.parametrize("method", METHODS)
def test_requests_do_not_see_each_other(op_backend, method):
    """In a batch of mixed rules, each request gets the same bits as alone with its rule given by name. Rows of NaN in
    other requests change nothing."""
    takes_turns(op_backend, method, 0)
    B = rule_cases.count(23, op_backend)
    args = tree(
        37, B, method, shift=8 * METHODS.index(method), V=1100, K=2, L=1, filtered=True, kinds=["near", "peaked"]
    )
    out = verify(op_backend)(**args)
    for b in range(0, B, 1 if op_backend == "cpu" else 5):
        one = pick(args, slice(b, b + 1))
        name, alpha = NAMES[int(one.pop("rule"))], float(one.pop("alpha")[0, 0])
        assert equal(
            verify(op_backend)(**one, rule=name, alpha=None if name == "exact" else alpha), [x[b : b + 1] for x in out]
        ), name
    bad = [1, 4, 6]
    args["target_logits"][bad[:2]], args["draft_logits"][bad[1:]] = math.nan, math.nan
    beside = verify(op_backend)(**args)
    rest = [b for b in range(B) if b not in bad]
    assert equal([x[rest] for x in beside], [x[rest] for x in out])
    assert (beside.status[bad[:2]] & 1 == 1).all() and (beside.tokens[:, 0] >= 0).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_bad_rows(backend, method, poison):
    """About a third of the rows of both sides are invalid, in one entry or (-inf) in all."""
    takes_turns(backend, method, 1 if math.isnan(poison) else 3 if poison > 0 else 2)
    B = rule_cases.count(69, backend)
    args = tree(39, B, method, shift=5 * METHODS.index(method), V=6, K=2, L=2, kinds=["near", "dirichlet"])
    tree_cases.spoil(args, poison)
    out, ref = verify(backend)(**args), flat.call(reference.banded.verify_tree, **args)
    assert not differ(out, ref).any()
    assert (ref.status & 1).any() and (ref.status == 0).any() and (ref.margin > 1).double().mean() > 0.8


@pytest.mark.parametrize("method", METHODS)
def test_bad_probability_rows(backend, method):
    """Rows have NaN or infinity among probabilities, or only zeros. A rule that reads the whole row then defers to the
    target."""
    takes_turns(backend, method, 3)
    B = rule_cases.count(184, backend)
    args = tree(41, B, method, shift=5 * METHODS.index(method), V=6, K=2, L=2, probs=True, kinds=["near", "dirichlet"])
    rng = torch.Generator().manual_seed(6)
    poison = torch.tensor([math.nan, math.inf, 0.0])
    for name in ("target_logits", "draft_logits"):
        x = args[name]
        value = poison[torch.randint(0, 3, x.shape[:2], generator=rng)][:, :, None]
        entry = torch.nn.functional.one_hot(torch.randint(0, 6, x.shape[:2], generator=rng), 6).bool() | (value == 0)
        args[name] = torch.where((torch.rand(x.shape[:2], generator=rng) < 0.4)[:, :, None] & entry, value, x)
    out, ref = verify(backend)(**args), flat.call(reference.banded.verify_tree, **args)
    wrong = differ(out, ref)
    assert not wrong.any(), [(b, NAMES[int(args["rule"][b])]) for b in wrong.nonzero()[:, 0].tolist()]
    in_range(out, 5, 6)


@pytest.mark.parametrize("method", METHODS)
def test_stats_handed_over(backend, method):
    """With given stats of scaled, filtered rows, the rules still find the confidences of the unscaled rows."""
    takes_turns(backend, method, 1)
    B = rule_cases.count(46, backend)
    args = tree(43, B, method, shift=5 * METHODS.index(method), V=1300, K=2, L=2, filtered=True, dtype=torch.bfloat16)
    want = verify(backend)(**args)
    for side, prefix in (("target", ""), ("draft", "draft_")):
        z = args[f"{side}_logits"]
        params = {k: args.pop(prefix + k).repeat_interleave(z.shape[1]) for k in SAMPLING}
        args[f"{side}_stats"] = (
            backends.run("row_stats", backend, z.flatten(0, 1), **params).float().reshape(*z.shape[:2], 4)
        )
    got = verify(backend)(**args)
    assert torch.equal(got.tokens, want.tokens) and torch.equal(got.status, want.status)


@pytest.mark.parametrize("method", METHODS[:3])
def test_a_sure_draft_that_is_kept_is_emitted(backend, method):
    """With a greedy draft and chow at alpha 1, the rule's distribution pi is one-hot at the draft's argmax. Whether
    that token was drafted or not, it is emitted, with the target's ln p."""
    p, q = torch.tensor([0.5, 0.3, 0.2]).log(), torch.tensor([0.1, 0.6, 0.3]).log()
    more = dict(
        method=method,
        draft_temperature=0.0,
        max_depth=1,
        rule="chow",
        alpha=1.0,
        uniforms=torch.full((1, 4), 0.999, dtype=F64),
    )
    for ids, tokens, path in (((2, 1), [1, 2], [0, 2]), ((2, 0), [1, -1], [0, -1])):
        rows = (x.expand(1, 3, 3).contiguous() for x in (p, q))
        out = verify(backend)((torch.tensor([-1, 0, 0]), torch.tensor([-1, *ids])), *rows, **more)
        assert (
            out.tokens.tolist() == [tokens]
            and out.path.tolist() == [path]
            and out.logprobs[0, 0].item() == pytest.approx(math.log(0.3), abs=1e-6)
        )


@pytest.mark.parametrize("method", METHODS)
def test_what_a_wide_draft_holds_beyond_is_left_to_the_target(backend, method):
    """q = (.1, .3, .6) and p = (.8, .2). The rule keeps q, and gives the mass of id 2 to p: pi = (.1, .3) + .6 p =
    (.58, .42). A draft of id 2 is rejected, and the residual (pi - q)+ is .6 p."""
    takes_turns(backend, method, 2)
    n = backends.scale(160, backend, least=16)
    p, q = torch.tensor([0.8, 0.2]), torch.tensor([0.1, 0.3, 0.6])
    u = torch.full((n, 3), 0.5, dtype=F64)
    u[:, 2] = (torch.arange(n) + 0.5) / n
    rows = p.log().expand(n, 2, 2).contiguous(), q.log().expand(n, 2, 3).contiguous()
    out = verify(backend)(
        (torch.tensor([-1, 0]), torch.tensor([-1, 2])), *rows, method=method, rule="chow", alpha=1.0, uniforms=u
    )
    assert (out.num_accepted == 0).all() and (out.status == 0).all()
    assert float((out.tokens[:, 0] == 0).double().mean()) == pytest.approx(0.8, abs=1 / n)


LAW_CASES = [
    ("kseq", "token_v3", "iid"), ("kseq", "lossy", "iid"), ("recursive", "opt", "iid"),
    ("recursive", "ensemble", "iid"), ("recursive_without_replacement", "token_v1", "distinct"),
    ("recursive_without_replacement", "lossy", "iid"), ("traversal", "token_v2", "distinct"),
    ("traversal", "diff_log", "iid"), ("traversal", "ensemble", "distinct"),
]  # fmt: skip


@pytest.mark.parametrize("method, rule, drawn", LAW_CASES)
@pytest.mark.law
@pytest.mark.slow
def test_joint_law(sweep_backend, method, rule, drawn):
    """Lengths and tokens follow the distribution that the reference enumerates. test_rules_reference_trees.py shows
    that this is pi, the distribution that defines the rule, at every node with children."""
    p, q = random_rows(31, 3), random_rows(32, 3)
    trees = list(iid_trees(q, 2, 2) if drawn == "iid" else distinct_trees(q, [2, 2]))
    law = mixed(trees, p, q, method, rule, ALPHAS[rule])
    exact = mixed(trees, p, q, method)
    assert sum(abs(law.get(t, 0.0) - exact.get(t, 0.0)) for t in {*law, *exact}) > 0.02, "the rule changes nothing"
    result = testing.check_tokens(draws(sweep_backend, trees, p, q, method, rule=rule, alpha=ALPHAS[rule]), law)
    assert result.passed, result


REFUSED = [("target_only", "chow"), ("target_only", "lenience"), ("greedy", "ensemble"), ("greedy", "thresholds"),
           ("kseq", "thresholds"), ("recursive", "typical"), ("recursive_without_replacement", "lenience"),
           ("traversal", "synthetic")]  # fmt: skip


@pytest.mark.parametrize("method, rule", REFUSED)
def test_rules_that_a_method_does_not_take(op_backend, method, rule):
    """Such rules are refused by name, and as codes in CPU tensors. On a device such codes count as the exact rule."""
    args = tree_cases.tree(45, 4, 5, method, N=4)
    with pytest.raises(ValueError, match=f"verify_tree: rule '{rule}' is not defined for method '{method}'"):
        verify(op_backend)(**args, rule=rule, alpha=0.5)
    codes = torch.tensor([0, 0, RULES[rule], 0])
    for alpha in (torch.full((4,), 0.5), torch.ones(4)):  # also with a parameter at which it equals the exact rule
        if backends.BACKENDS[op_backend].device == "cuda" or op_backend.startswith("cuda-on-cpu"):
            assert equal(verify(op_backend)(**args, rule=codes, alpha=alpha), verify(op_backend)(**args))
        else:
            with pytest.raises(
                ValueError, match=f"verify_tree: rule '{rule}' is not defined for method '{method}', got it at index 2"
            ):
                verify(op_backend)(**args, rule=codes, alpha=alpha)


@pytest.mark.parametrize("more, error, message", [
    (dict(rule="chow", alpha=1.2), ValueError, r"alpha of rule 'chow' must be in \[0, 1\], got 1.2"),
    (dict(rule="x"), ValueError, "rule must be a tensor of codes or one of exact, .*, got 'x'"),
    (dict(alpha=0.5), ValueError, "rule 'exact' takes no alpha, got 0.5"),
    (dict(rule=torch.zeros(3, dtype=torch.int64)), ValueError, r"rule must have shape \[4\] or \[1\], got \[3\]"),
    (dict(rule="diff", alpha=torch.zeros(4, 3)), ValueError,
     r"alpha must have shape \[4\] or \[4, 2\], got \[4, 3\]"),
])  # fmt: skip
def test_errors(op_backend, more, error, message):
    with pytest.raises(error, match=f"verify_tree: {message}"):
        verify(op_backend)(**tree_cases.tree(45, 4, 5, "recursive", N=4), **more)


@pytest.mark.parametrize("shape", ["[1]", "[B, 2]"])
def test_one_rule_for_all(backend, shape):
    """A rule's name, or one code and alpha for the batch, equals one for each request."""
    args = tree_cases.tree(47, 8, 7, "recursive")
    wants = verify(backend)(**args, rule="token_v3", alpha=0.3)
    rule, alpha = torch.tensor([RULES["token_v3"]]), torch.tensor([0.3])
    if shape == "[B, 2]":
        rule, alpha = rule.expand(8), torch.tensor([[0.3, 9.0]]).expand(8, 2)
    assert equal(verify(backend)(**args, rule=rule, alpha=alpha), wants)
    checks.assert_same_tokens(wants, flat.call(reference.banded.verify_tree, **args, rule="token_v3", alpha=0.3))
