# SPDX-License-Identifier: Apache-2.0
"""CUDA sources with an error in the treatment of absent entries of a padded buffer."""

CHAIN, TREE = "ops/verify_chain/verify_chain_cuda.cu", "ops/verify_tree/verify_tree_cuda.cu"
RULES, RACE = "ops/verify_chain/requests_cuda.cu", "race_cuda.cu"
SEEDS, FILTERS = ("verify_chain", "seeds"), ("verify_chain", "filters")
SMALL = "ops/verify_chain/small_batch.cuh"
SOURCES = {  # name: (file, its text, the mutant's text, the op, the name of its example call)
    "nothing is written": (SMALL, "if (leads) put_absent(a, b, threadIdx.x, kThreads)", "(void)b", *SEEDS),
    "what is absent is finished": (SMALL, "if (!a.present.has(b)) {", "if (false) {", *SEEDS),
    # filters keep a small batch off the path of small batches
    "nothing is written, filters": (CHAIN, "put_absent(a, b, threadIdx.x, kThreads)", "(void)b", *FILTERS),
    "what is absent is finished, filters": (CHAIN, "a.present.has(b) && !a.by_rule(b)", "!a.by_rule(b)", *FILTERS),
    "the rule is read": (RULES, "!s.a.present.has(b) || !s.a.by_rule(b)", "!s.a.by_rule(b)", "verify_chain", "blocks"),
    "chains race": (f"ops/verify_chain/{RACE}", "!s.a.present.has(b)", "false", "verify_chain", "a race"),
    "trees race": (f"ops/verify_tree/{RACE}", "!s.a.present.has(b)", "false", "verify_tree", "race, noise keys"),
    "rows race": (f"ops/sample/{RACE}", "!s.a.present.has(n)", "false", "sample", "a race"),
    "no row that raced is written": (
        f"ops/sample/{RACE}",
        "put_absent(s.a, n, threadIdx.x, kThreads)",
        "(void)n",
        "sample",
        "a race",
    ),
    "trees are walked": (TREE, "!s.a.present.has(b)", "false", "verify_tree", "greedy, nodes"),
}
