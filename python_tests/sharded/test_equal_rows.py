# SPDX-License-Identifier: Apache-2.0
"""Ranks with equal rows emit equal tokens without communication, as docs/guide.md says about seeds."""

from support import equal_rows
from support.ranks import Ranks


def test_equal_tokens_on_all_ranks():
    ranks = Ranks(3)
    try:
        first, *others = ranks.call(equal_rows.step)
        [again, *_] = ranks.call(equal_rows.step, 1000)
    finally:
        ranks.stop()
    assert all(other == first for other in others)
    drafted, tokens, accepted = first
    assert set(accepted) == set(range(equal_rows.G + 1))  # drafts are accepted and rejected
    assert again[0] != drafted and again[1] != tokens  # with other seeds the tokens differ
