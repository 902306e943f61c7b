# SPDX-License-Identifier: Apache-2.0
"""Mutants that misread sparse or mapped draft rows, on the CPU, in CUDA and in Triton."""

import functools

from support import sparse_checks

READER, SEARCH = "cpu/listed_reader.cpp", "cpu/row_executor.cpp"
LISTS, LISTED, SUMS = "cuda/list_entries.cuh", "cuda/listed.cuh", "cuda/chunk_reduce.cuh"
TRITON_IDS, TRITON_ROWS = "core/ids.py", "core/arguments.py"

flat, pairs = (functools.partial(f, calls=100) for f in (sparse_checks.rows_agree, sparse_checks.pairs_agree))
chains = functools.partial(sparse_checks.verification_agrees, "verify_chain", calls=100)
wide = functools.partial(sparse_checks.same_as_dense, method="token", mapped=False)

NATIVE = {  # name: (backends, [(file, its text, the mutant's text)], the test that fails)
    "draft ids without a target id in the normaliser": (
        ["avx2"],
        [("cpu/listed_reader.h", "row.view || row.ids->n < row.ids->k;", "bool(row.view);")],
        flat,
    ),
    "draft ids without a target id in the normaliser, in CUDA": (
        ["cuda"],
        [(LISTS, "else if (to.seen && row.n < row.k)", "else if (false)")],
        flat,
    ),
    "an id that occurs twice counted once": (
        ["avx2"],
        [(READER, "out[left.first[j].id] += w[j];", "out[left.first[j].id] = w[j];")],
        pairs,
    ),
    "an id that occurs twice counted once, in CUDA": (
        ["cuda"],
        [(LISTED, "sum = last == int(e) ? joined(", "sum = false ? joined(")],
        pairs,
    ),
    "q of a token from one of its entries": (
        ["avx2"],
        [(READER.replace("listed", "row"), "    sum += kind == Kind::kProbs ?", "    sum = kind == Kind::kProbs ?")],
        chains,
    ),
    "q of a token from one of its entries, in CUDA": (
        ["cuda"],
        [(LISTED, "sum = any ? joined(sum, x, scale, cutoff, row.adds) : x;", "sum = x;")],
        chains,
    ),
    "a chunk with ids from which nothing is subtracted": (
        ["avx2"],
        [(SEARCH, "!ListedReader::reaches(*subtraction.q.row.ids, c)) continue;", "c > 0) continue;")],
        chains,
    ),
    "a chunk with ids from which nothing is subtracted, in CUDA": (
        ["cuda"],
        [(SUMS, "if (reaches(*q, c * kChunk, (c + 1) * kChunk)) to->", "if (false) to->")],
        wide,
    ),
}  # fmt: skip

TRITON = {  # name: (file, its text, the mutant's text, the test that fails)
    "draft ids without a target id in the normaliser": (
        TRITON_ROWS,
        'tl.store(out + at, tl.where(some, z, 0.0 if rows.PROBS else -float("inf")), mask=inside)',
        "tl.store(out + at, z, mask=inside)",
        flat,
    ),
    "an id that occurs twice counted once": (
        TRITON_IDS,
        "total += tl.where(inside, probs(z, stats), 0.0)",
        "total = tl.where(inside, probs(z, stats), total)",
        pairs,
    ),
    "q of a token from one of its entries": (
        TRITON_IDS,
        "total += tl.where(inside, tl.exp(log_prob(z, stats)), 0.0)",
        "total = tl.where(inside, tl.exp(log_prob(z, stats)), total)",
        chains,
    ),
    "a chunk that begins with an id from which nothing is subtracted": (
        TRITON_IDS,
        "alive &= (id >= begin) & (id < begin + CHUNK)",
        "alive &= (id > begin) & (id < begin + CHUNK)",
        pairs,
    ),
}
