# SPDX-License-Identifier: Apache-2.0
"""require_exact=True refuses rules and parameters under which the output need not follow the target distribution.
test_rules_reference.py checks the table of the others (keeps_target_at) by enumeration."""

import pytest
import torch

import specdec_kernels as sk
from specdec_kernels import example_calls
from specdec_kernels.registry import RULES, keeps_target

STEP = example_calls.calls("verify_chain", V=37)[1].arguments
B, G = STEP["draft_tokens"].shape
EXACT = [
    ("exact", None),
    ("lossy", 0.0),
    ("lossy", None),
    ("lenience", 1.0),
    ("ensemble", 1),
    ("synthetic", 0.0),
    ("synthetic", (0.0,) * G),
    ("thresholds", (1.0, 1.0)),
    ("thresholds", 1.0),
]
OTHER = [
    ("lossy", 0.3, "'lossy' with alpha 0.3"),
    ("chow", 0.0, "'chow' with alpha 0"),
    ("typical", None, "'typical'$"),
    ("thresholds", (1.0, 0.5), "'thresholds' with alpha 1, 0.5"),
    ("synthetic", (*(0.0,) * (G - 1), 0.5), "'synthetic' with alpha 0.5"),
]


@pytest.mark.parametrize("rule, alpha", EXACT, ids=str)
def test_an_exact_rule_passes(rule, alpha):
    got = sk.verify_chain(**STEP, rule=rule, alpha=alpha, require_exact=True)
    assert torch.equal(got.tokens, sk.verify_chain(**STEP, rule=rule, alpha=alpha).tokens)


@pytest.mark.parametrize("rule, alpha, got", OTHER, ids=str)
def test_another_is_refused(rule, alpha, got):
    with pytest.raises(ValueError, match=f"^verify_chain: require_exact needs a rule .* law, got {got}"):
        sk.verify_chain(**STEP, rule=rule, alpha=alpha, require_exact=True)
    sk.verify_chain(**STEP, rule=rule, alpha=alpha, require_exact=False)


def test_of_each_request():
    codes = torch.tensor([RULES[name].code for name in ("exact", "lossy", "thresholds", "synthetic")])
    alpha = torch.tensor([[9.0, 9.0], [0.0, 9.0], [1.0, 1.0], [0.0, 9.0]])
    sk.verify_chain(**STEP, rule=codes, alpha=alpha.where(codes[:, None] > 0, 0.5), require_exact=True)
    alpha[2, 1] = 0.5
    with pytest.raises(ValueError, match=r"got 'thresholds' with alpha 1, 0.5 at index 2$"):
        sk.verify_chain(**STEP, rule=codes, alpha=alpha, require_exact=True)
    rates = torch.zeros(B, G, 1)
    rates[3, G - 1] = 0.25
    with pytest.raises(ValueError, match=r"got 'synthetic' with alpha 0.25 at index 3$"):
        sk.verify_chain(**STEP, rule=codes[3:], alpha=rates, require_exact=True)


def test_a_tree():
    step = next(call.arguments for call in example_calls.calls("verify_tree", V=37) if call.name == "kseq, drafts")
    sk.verify_tree(**step, require_exact=True)
    with pytest.raises(ValueError, match=r"^verify_tree: require_exact .* got 'lossy' with alpha 0.3$"):
        sk.verify_tree(**step, rule="lossy", alpha=0.3, require_exact=True)


def test_what_cannot_be_looked_at():
    codes = torch.zeros(B, dtype=torch.int64, device="meta")
    step = {name: x.to("meta") for name, x in STEP.items()}
    with pytest.raises(ValueError, match=r"must be a name and numbers or on the CPU, got a tensor on meta"):
        sk.verify_chain(**step, rule=codes, require_exact=True)


def test_the_table():
    """keeps_target(rule) uses the default parameters. It is true for exactly the rules that are exact at some
    parameters."""
    assert {name for name in RULES if keeps_target(name)} == {
        name for name in RULES if RULES[name].keeps_target_at is not None
    }
    assert keeps_target("lossy", 0.0) and not keeps_target("lossy", 0.1) and not keeps_target("typical")
