# SPDX-License-Identifier: Apache-2.0
from specdec_kernels.example_calls.tree_mask import parents


def calls(x):
    trees = parents(x, 2, 40)
    yield "per request", {"parents": trees, "prefix_len": x.integers(0, 9, 2), "tree_start": x.tensor(9, 12)}
    yield "numbers", {"parents": trees, "prefix_len": 3, "tree_start": 4}
    yield "nodes alone", {"parents": trees[0]}
