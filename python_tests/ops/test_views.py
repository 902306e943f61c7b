# SPDX-License-Identifier: Apache-2.0
"""An op on rows with views (bias, penalties, masks) equals, bit for bit, the op on float32 rows with these applied."""

import pytest
from support import backends, tiers, viewed
from support.viewed import differ

from specdec_kernels import reference

OPS = ("row_stats", "sample", "top_logprobs", "support", "row_topw", "verify_chain", "verify_tree")
CALLS = 600 if tiers.TIER == "all" else 200


@pytest.mark.parametrize("op", OPS)
def test_a_row_is_seen_as_if_written_out(op, isa_backend):
    calls = CALLS // 10 if isa_backend in tiers.SIMULATED else CALLS
    wrong, changed = backends.there(isa_backend, viewed.compared, op, isa_backend, calls)
    assert wrong == []
    assert changed > calls / 8  # views mattered


@pytest.mark.parametrize("op", OPS)
def test_calls_that_are_compiled_ahead(op, op_backend):
    """The calls that support/aot.py compiles ahead of time equal the calls on rows with the views applied."""
    assert backends.there(op_backend, viewed.differs_ahead_of_time, op) == []


@pytest.mark.parametrize("op", OPS)
def test_the_reference_sees_the_same_rows(op):
    for i in range(40):
        seen, plain = viewed.call_of(op, i)
        found, wanted = (getattr(reference, op)(**x) for x in (seen, plain))
        assert not differ(found, wanted), (op, i)


@pytest.mark.parametrize("op", OPS)
def test_bad_data_gives_valid_tokens_or_an_error(op, op_backend):
    calls = CALLS // 10 if op_backend in tiers.SIMULATED else CALLS // 4
    served, refused = backends.there(op_backend, viewed.survived, op, op_backend, calls)
    assert served > calls / 10
    assert refused > calls / 10 or op_backend != "cpu"  # a GPU's tensors are not checked before it runs
