# SPDX-License-Identifier: Apache-2.0
"""Each rule's decision just below and above values at which it turns: of the uniform, of a parameter or of the final
draw."""

import pytest
from support import rule_cases, rule_decisions
from support.rule_decisions import AT, decide


@pytest.mark.parametrize("ids", AT)
def test_decisions(verify, op_backend, ids):
    if op_backend in rule_cases.SLOW and ids == "five ids":
        pytest.skip("the interpreter is slow: the rows of which the kernels do more")
    decide(verify, ids)


@pytest.mark.parametrize("ids", AT)
def test_opt_log_at_temperature_1(verify, op_backend, ids):
    rule_decisions.check_opt_log_at_temperature_1(verify, op_backend, ids)


@pytest.mark.slow_in_triton
def test_block_decisions(verify):
    rule_decisions.check_block_decisions(verify)


def test_a_block_ends_before_a_draft_that_q_forbids(verify):
    rule_decisions.check_a_block_ends_before_a_draft_that_q_forbids(verify)


@pytest.mark.slow_in_triton
@pytest.mark.parametrize("alpha", [0.1, 0.5])
def test_lossy_beta_of_broad_rows(verify, alpha):
    rule_decisions.check_lossy_beta_of_broad_rows(verify, alpha)


@pytest.mark.parametrize("alpha, edge", [(0.2, 0.75), (0.3, 0.6 / 0.7), (0.5, 1.0)])
def test_lossy_bonus_of_a_greedy_draft(verify, alpha, edge):
    rule_decisions.check_lossy_bonus_of_a_greedy_draft(verify, alpha, edge)
