# SPDX-License-Identifier: Apache-2.0
"""The rules of verify_tree, one method a file. A rule sees a Request and decides by a `chance` (chance.py) alone."""

from .greedy import greedy
from .kseq import kseq
from .recursive import recursive, recursive_without_replacement
from .target_only import target_only
from .traversal import traversal

RULES = {
    "kseq": kseq,
    "recursive": recursive,
    "recursive_without_replacement": recursive_without_replacement,
    "target_only": target_only,
    "greedy": greedy,
    "traversal": traversal,
}
OF_LAWS = ("kseq", "recursive", "recursive_without_replacement", "traversal")  # these take any law in place of p
TEST_DRAFTS = ("kseq", "recursive")  # these test drafts, one merged node several times; the others test nodes
