# SPDX-License-Identifier: Apache-2.0
"""Mutants that apply wrong penalties to a row, on the CPU, in CUDA and in Triton."""

import functools

from support import backends, one_memory, penalised

RULE, ROW, CPU, CUDA = "core/penalties.h", "core/row.h", "cpu/penalties.cpp", "cuda/views.cuh"
TRITON_RULE = "core/penalties.py"


def seen(op, backend, like="", calls=60):
    """Check that calls with penalties equal those on rows with the penalties already applied."""
    assert backends.there(backend, penalised.compared, op, like, calls)[0] == []


def in_one_memory(backend):
    assert backends.there(backend, one_memory.compared) == []


chains, trees, flat = (functools.partial(seen, op) for op in ("verify_chain", "verify_tree", "row_stats"))


def in_triton(test, calls=20):
    return functools.partial(test, like="triton", calls=calls)


LATE = "const int64_t i = parents ? n : n - 1;", "const int64_t i = n;"
NO_WINDOW = "int64_t at = position; at > 0", "int64_t at = 0; at > 0"
ALL_OF_ONE = "return row ? row[b] : b;", "return 0;"
NATIVE = {  # name: (backends, [(file, its text, the mutant's text)], the test that fails)
    "a window that begins a draft late": (["avx2", "cuda"], [(RULE, *LATE)], chains),
    "a window of another branch": (
        ["avx2", "cuda"],
        [(RULE, "return parent > 0 && parent < n ? parent : 0;", "return n - 1;")],
        trees,
    ),
    "committed counts on every row": (
        ["avx2"],
        [(CPU, "for (int64_t n = from; n > 0;", "for (int64_t n = 0; n > 0;")],
        chains,
    ),
    "committed counts on every row, in CUDA": (["cuda"], [(CUDA, *NO_WINDOW)], chains),
    "the last token alone": (
        ["avx2"],
        [(CPU, "n = p.before(view.request, n)) f(", "n = 0) f(")],
        chains,
    ),
    "the list of the first request": (["avx2", "cuda"], [(RULE, *ALL_OF_ONE)], flat),
    "the presence of a prompt's tokens": (
        ["avx2"],
        [(CPU, "positive = e > 0, again = count > 0;", "positive = e > 0, again = true;")],
        flat,
    ),
    "the presence of a prompt's tokens, in CUDA": (["cuda"], [(CUDA, "if (count == 0) return e;", "")], flat),
    "the product with 1 / repetition": (
        ["avx2"],
        [(CPU, "e = e / divisor[positive] * factor[positive];", "e = e * (1 / divisor[positive]) * factor[positive];")],
        flat,
    ),
    "sums of another view": (["avx2"], [(ROW, "&& view == other.view", "")], in_one_memory),
    "a token of the window twice": (["cuda"], [(CUDA, "is_fresh &= window[i] != v;", "")], chains),
    "the host asks the device how many rows there are": (
        ["cuda"],
        [("binding/penalties.h", "values_at_hand(op) ? present.of(N) : 0", "present.of(N)")],
        chains,
    ),
    "entries out of order": (["cuda"], [(CUDA, "put(j + fresh_below(list.ids[j]),", "put(j,")], chains),
}  # fmt: skip

TRITON = {  # name: (file, its text, the mutant's text, the test that fails)
    "committed counts on every row": (
        TRITON_RULE,
        "return row | ((position + penalties.drafted).to(tl.int64) << 32)",
        "return row",
        in_triton(chains),
    ),
    "a window of another branch": (
        TRITON_RULE,
        "return tl.where((parent > 0) & (parent < position), parent, 0)",
        "return position - 1",
        in_triton(trees, 100),  # most have a rule, which Triton does not support
    ),
    "the presence of a prompt's tokens": (
        TRITON_RULE,
        "return tl.where(count > 0, lower - amounts.presence, e)",
        "return lower - amounts.presence",
        in_triton(flat),
    ),
    "the list of the first request": (
        TRITON_RULE,
        "ids = penalties.ids + number * penalties.ids_stride",
        "ids = penalties.ids + 0 * number",
        in_triton(flat),
    ),
}
