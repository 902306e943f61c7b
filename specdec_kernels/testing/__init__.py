# SPDX-License-Identifier: Apache-2.0
"""Test any sampler or verifier against the exact joint distribution of its tokens.

    from specdec_kernels import testing

    @pytest.mark.parametrize("case", testing.cases(), ids=lambda case: case.name)
    def test_my_verifier(case):
        testing.assert_verifier(my_verify, case)

In the names below, a law is the exact distribution of sequences of tokens: {tuple of tokens: probability}. Nothing here
needs this library's ops, a GPU or pytest. Fixtures for pytest are in ``specdec_kernels.testing.pytest_plugin``.
"""

from .laws import assert_law, check_law, check_tokens, complete_law, complete_tokens, enumerate_law, softmax
from .setups import cases
from .statistics import Cell, Report, check_counts
from .verifiers import Case, Step, assert_verifier, check_verifier

__all__ = [
    "Case",
    "Cell",
    "Report",
    "Step",
    "assert_law",
    "assert_verifier",
    "cases",
    "check_counts",
    "check_law",
    "check_tokens",
    "check_verifier",
    "complete_law",
    "complete_tokens",
    "enumerate_law",
    "softmax",
]
