# SPDX-License-Identifier: Apache-2.0
"""One row in memory under two sets of penalties counts as two rows: sums kept for one are not used for the other.

Every call equals, bit for bit, the call on rows with the penalties already applied. The mutant that this finds is "sums
of another view" in support/view_mutants.py.
"""

import pytest
import torch
from support import backends, one_memory, tiers

import specdec_kernels as sk


def test_rows_in_one_memory_are_seen_as_if_written_out(isa_backend):
    fewer = isa_backend in tiers.SIMULATED and tiers.TIER != "all"
    assert backends.there(isa_backend, one_memory.compared, fewer) == []


@pytest.mark.parametrize("sides", one_memory.MIRRORED)
def test_the_two_views_differ_in_their_sums_alone(sides):
    """The test is not vacuous: memory and stats of both views are equal, but a draw from the other view gives another
    token."""
    seen, plain = one_memory.mirrored_call("verify_chain", "token", sides)
    assert seen["target"].logits.data_ptr() == seen["draft"].logits.data_ptr()
    bonus, drafted_from = plain["target"].logits[:, 1], plain["draft"].logits[:, 0]
    assert torch.equal(sk.row_stats(bonus), sk.row_stats(drafted_from))
    assert torch.equal(seen["target"].stats[:, 1], sk.row_stats(bonus))
    out = sk.verify_chain(**plain)
    assert (out.num_accepted == 1).all() and (out.status == 0).all()
    other = torch.stack([plain["target"].logits[:, 0], drafted_from], 1)
    out_of_other = sk.verify_chain(**plain | {"target": plain["target"]._replace(logits=other)})
    chunks = [x.tokens[:, 1] // one_memory.CHUNK for x in (out, out_of_other)]
    assert (chunks[0] != chunks[1]).sum() > one_memory.REQUESTS / 4


def test_the_second_position_sees_a_larger_entry():
    """The test is not vacuous: the second draft is rejected, but without penalties it is accepted."""
    seen, plain = one_memory.relaxed_call()
    assert sk.verify_chain(**plain).num_accepted.tolist() == [1] * one_memory.REQUESTS
    bare = seen | {"target": seen["target"]._replace(penalties=None)}
    assert sk.verify_chain(**bare).num_accepted.tolist() == [2] * one_memory.REQUESTS
