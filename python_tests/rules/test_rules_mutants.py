# SPDX-License-Identifier: Apache-2.0
"""The checks of the rules find an op that takes one rule or parameter for another."""

import numpy as np
import pytest
import torch
from support import flat, rule_cases, rule_checks
from support.answers import verify_chain as reference_verify

import specdec_kernels as sk
from specdec_kernels.reference.rules.one_step import one_step
from specdec_kernels.rules import NAMES, RULES

pytestmark = pytest.mark.slow

CONFUSED = {  # rule: the (rule, alpha) that a wrong op uses for it
    "chow": [lambda a: ("diff", a), lambda a: ("chow", 1 - a[0])],
    "chow_log": [lambda a: ("chow_log", a[0] / 3)],
    "diff": [lambda a: ("opt", a)],
    "diff_log": [lambda a: ("chow_log", a)],
    "opt": [lambda a: ("diff", min(a[0], 1.0)), lambda a: ("opt", a[0] / 2)],
    "opt_log": [lambda a: ("diff_log", a)],
    "token_v1": [lambda a: ("token_v2", a)],
    "token_v2": [lambda a: ("token_v3", a), lambda a: ("token_v1", a)],
    "token_v3": [lambda a: ("token_v2", a), lambda a: ("token_v3", 1 - a[0])],
    "lenience": [lambda a: ("lossy", 1 - a[0]), lambda a: ("exact", None)],
    "lossy": [lambda a: ("lenience", 1 - a[0]), lambda a: ("lossy", a[0] / 2)],  # the first: beta left at 1
    "ensemble": [lambda a: ("ensemble", 1 - a[0])],
    "typical": [lambda a: ("typical", (a[1], a[0])), lambda a: ("thresholds", (max(a[0], 1e-3), 1.0))],
    "relaxed": [lambda a: ("relaxed", (a[0] + 1, a[1])), lambda a: ("relaxed", (a[0], 1 - a[1]))],
    "synthetic": [lambda a: ("synthetic", 1 - a[0]), lambda a: ("ensemble", 1 - a[0])],
    "thresholds": [lambda a: ("thresholds", (a[1], a[0])), lambda a: ("thresholds", (1.0, 1.0))],
}
MUTANTS = [(rule, i) for rule, wrong in CONFUSED.items() for i in range(len(wrong))]


def number(alpha):
    return None if not alpha else alpha[0] if len(alpha) == 1 else alpha


@pytest.mark.parametrize("rule, i", MUTANTS)
def test_a_confused_rule_is_caught(rule, i):
    """A confused rule is caught in one of two ways: the distribution of one step on one of PAIRS differs, or a batch
    under that rule disagrees with the reference."""

    def mutant(*args, rule=None, alpha=None, **kwargs):
        given = (alpha,) if isinstance(alpha, (int, float)) else alpha
        other, a = CONFUSED[rule][i](given)
        return flat.call(sk.verify_chain, *args, **kwargs, rule=other, alpha=number(a) if isinstance(a, tuple) else a)

    for pair in rule_checks.PAIRS.values():
        for alpha in rule_cases.ALPHAS[rule]:
            got = rule_checks.measured_law(mutant, *pair, rule, number(alpha), 256)
            if np.abs(got - one_step(*pair, rule, alpha).emitted).max() > 3 / 256 + 1e-5:
                return
    args = rule_cases.chain(3, 300, 2, 9, names=(rule,))
    ref = reference_verify(**args)
    for alpha in rule_cases.ALPHAS[rule]:
        mine = (args["alpha"][:, : len(alpha)] == torch.tensor(alpha)).all(-1)
        rows = {k: x[mine] if torch.is_tensor(x) else x for k, x in args.items() if k not in ("rule", "alpha")}
        out = mutant(**rows, rule=rule, alpha=number(alpha))
        if ((out.tokens != ref.tokens[mine]).any(-1) & (ref.margin[mine] > 1)).any():
            return
    raise AssertionError("nothing tells it from the right one")


@pytest.mark.parametrize("what", ["method", "bonus", "alpha of the neighbour", "codes shifted"])
def test_a_wrong_batch_is_caught(what):
    """Agreement with the reference fails if the op uses the token method in place of block verification, ignores the
    draft's bonus row, or uses another request's parameters or another rule."""
    args = rule_cases.chain(23, 300, 3, 9, "block", bonus_row=True)
    wrong = dict(args)
    if what == "method":
        wrong["method"] = "token"
    elif what == "bonus":
        wrong["draft_logits"] = args["draft_logits"][:, :3]
    elif what == "alpha of the neighbour":
        wrong["alpha"] = args["alpha"].roll(1, 0).clamp(max=0.99)
    else:
        wrong["rule"] = torch.tensor(
            [RULES[rule_cases.LAWS[(rule_cases.LAWS.index(NAMES[c]) + 1) % 12]] for c in args["rule"].tolist()]
        )
        wrong["alpha"] = args["alpha"].clamp(max=0.99)
    ref, out = reference_verify(**args), flat.call(sk.verify_chain, **wrong)
    assert ((out.tokens != ref.tokens).any(-1) & (ref.margin > 1)).sum() > 5
