# SPDX-License-Identifier: Apache-2.0
"""Mutants that apply views (penalties, biases, masks) to a row wrongly, on the CPU, in CUDA and in Triton."""

import functools

import torch
from support import backends, one_memory, viewed

WINDOW, PENALTIES, ROW = "core/window.h", "core/penalties.h", "core/row.h"
CPU, CUDA, TABLES = "cpu/views.cpp", "cuda/views.cuh", "binding/used_tables.h"
TRITON_RULE, TRITON_PENALTIES = "core/views.py", "core/penalties.py"


CALLS = 1000  # at most: a test ends at the first call that differs


def seen(op, backend, like=""):
    """Check that calls with views equal those on rows with the views already applied."""
    assert backends.there(backend, viewed.first_wrong, op, like, CALLS) is None


def in_one_memory(backend):
    assert backends.there(backend, one_memory.compared) == []


def hides_infinity(backend):
    found, wanted = backends.there(backend, viewed.hidden_infinity)
    assert torch.equal(found, wanted)


chains, trees, flat = (functools.partial(seen, op) for op in ("verify_chain", "verify_tree", "row_stats"))


def in_triton(test):
    return functools.partial(test, like="triton")


LATE = "const int64_t i = parents ? n : n - 1;", "const int64_t i = n;"
NO_WINDOW = "int64_t at = penalised ? position : 0; at > 0", "int64_t at = 0; at > 0"
ALL_OF_ONE = "return row ? row[b] : b;", "return 0;"
NATIVE = {  # name: (backends, [(file, its text, the mutant's text)], the test that fails)
    "a window that begins a draft late": (["avx2", "cuda"], [(WINDOW, *LATE)], chains),
    "a window of another branch": (
        ["avx2", "cuda"],
        [(WINDOW, "return parent > 0 && parent < n ? parent : 0;", "return n - 1;")],
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
        [(CPU, "n = window.before(view.request, n)) f(", "n = 0) f(")],
        chains,
    ),
    "the list of the first request": (["avx2", "cuda"], [(PENALTIES, *ALL_OF_ONE)], flat),
    "a table without the prompt's tokens": (
        ["avx2"],
        [(TABLES, "uint32_t used = table.prompt_bits[begin / 32] & (~0u >> (32 - n));", "uint32_t used = 0;")],
        flat,
    ),
    "a table without the prompt's tokens, in CUDA": (
        ["cuda"],
        [(PENALTIES, "(counts[v] != 0 || prompt_bits[v / 32] >> v % 32 & 1)", "counts[v] != 0")],
        flat,
    ),
    "each warp's part of a table at the beginning of the list": (
        ["cuda"],
        [("cuda/listed_tables.cuh", "at += w < warp ? used[w] : 0, all", "all")],
        flat,
    ),
    "the table of the first request, in CUDA": (
        ["cuda"],
        [("cuda/listed_tables.cuh", "ids = side.ids + b * side.room;", "ids = side.ids;")],
        flat,
    ),
    "the presence of a prompt's tokens": (
        ["avx2"],
        [(CPU, "return e - (count > none ? none + by.presence : none);", "return e - (none + by.presence);")],
        flat,
    ),
    "the presence of a prompt's tokens, in CUDA": (["cuda"], [(CUDA, "if (count == 0) return e;", "")], flat),
    "the product with 1 / repetition": (
        ["avx2"],
        [(CPU, "e = e / (e > none ? r : one) *", "e = e * (one / (e > none ? r : one)) *")],
        flat,  # it changes a last digit, which few results show
    ),
    "sums of another view": (["avx2"], [(ROW, "&& view == other.view", "")], in_one_memory),
    "the ids of another row's view": (
        ["avx2"], [("cpu/row_reader.h", "if (row.view == found_ &&", "if (found_ &&")], chains
    ),
    "a pass that forgets the window": (["avx2"], [(CPU, "drafted_[v / kChunk] = true;", ";")], chains),
    "counts that overflow, in CUDA": (["cuda"], [(CUDA, "  int64_t count = 0;", "  int count = 0;"),
        (CUDA, "int64_t count_in_window(", "int count_in_window(")], flat),
    "a token of the window twice": (["cuda"], [(CUDA, "first &= ids[i] != v;", "first &= true;")], chains),
    "the host asks the device how many rows there are": (
        ["cuda"],
        [("binding/penalties.h", "values_at_hand(op) ? present.of(N) : 0", "present.of(N)")],
        chains,
    ),
    "entries out of order": (
        ["cuda"],
        [(CUDA, "put(j + place_in(loose.fresh, fresh, v), v, stored_entry(", "put(j, v, stored_entry(")],
        chains,
    ),
    "a bias after the penalties": (
        ["avx2"],
        [(CPU, "  for_bias([&](float& e, float value) { raise(peaks.before, e), e += value; });\n", ""),
         (CPU, "penalise(view, changes, begin, n, e, peaks);\n",
          "penalise(view, changes, begin, n, e, peaks);\n"
          "  for_bias([&](float& e, float value) { raise(peaks.before, e), e += value; });\n")],
        flat,
    ),
    "a bias after the penalties, in CUDA": (
        ["cuda"],
        [(CUDA, "const float e = loose.biased(v, stored_entry(row, v));", "const float e = stored_entry(row, v);"),
         (CUDA, "count_in_window(v));\n  }", "count_in_window(v));\n"
          "    float& seen = entries[j + place_in(loose.fresh, fresh, v)].value;\n"
          "    seen = loose.biased(v, seen);\n  }")],
        flat,
    ),
    "the bias of another position": (
        ["avx2", "cuda"],
        [(WINDOW, "const int64_t at = first + position * position_stride;", "const int64_t at = first;")],
        chains,
    ),
    "the bias of another node": (
        ["avx2", "cuda"],
        [(WINDOW, "const int64_t at = first + position * position_stride;", "const int64_t at = first;")],
        trees,
    ),
    "ragged positions that forget the rows after drafts": (
        ["avx2", "cuda"],
        [(WINDOW, "(window.start(b) + b) * position_stride", "window.start(b) * position_stride")],
        chains,
    ),
    "a mask before the penalties": (
        ["avx2"],
        [("cpu/row_reader.h", "const float max = kernels.copy(raw, m, nullptr, buf);",
          "const float max = kernels.copy(raw, m, words, buf);"),
         ("cpu/row_reader.h", "if (words) return kernels.copy(buf, m, words, buf);", "")],
        hides_infinity,
    ),
    "a mask that forbids the last words' ids": (
        ["avx2"],
        [(CPU, "clamp<int64_t>(mask.W - first, 0,", "clamp<int64_t>(mask.W - 1 - first, 0,")],
        flat,
    ),
    "a mask that hides nothing from a gathered entry, in CUDA": (
        ["cuda"],
        [("cuda/seen.cuh", "if (view.words && !(allowed_bits", "if (false && !(allowed_bits")],
        chains,
    ),
    "a penalised entry that its mask forbids, in CUDA": (
        ["cuda"],
        [(CUDA, "words && !mask.allows(words, v) ? -HUGE_VALF : e", "e")],
        flat,
    ),
    "a mask of the bits one further, in CUDA": (
        ["cuda"],
        [("cuda/seen.cuh", "view.words[first / 32] >> first % 32", "view.words[first / 32] >> (first + 1) % 32")],
        flat,
    ),
    "one number of an id that has two": (["avx2"], [(CPU, "f(e[bias[j].id], bias[j].value);",
        "if (j == changes.bias.first || bias[j - 1].id != bias[j].id) f(e[bias[j].id], bias[j].value);")], flat),
    "one number of an id that has two, in CUDA": (
        ["cuda"],
        [(CUDA, "if (ids[k] == v) e += bias.value(list, k - window);",
          "if (ids[k] == v) return e + bias.value(list, k - window);")],
        flat,
    ),
    "a list whose order is lost": (
        ["avx2"],
        [("binding/bias.h", "| uint64_t(j);", "| uint64_t(bias.n - 1 - j);"),
         ("binding/bias.h", "bias.value(s, uint32_t(order[j]))", "bias.value(s, bias.n - 1 - uint32_t(order[j]))")],
        flat,
    ),
    "a biased id that counts as used, in CUDA": (
        ["cuda"],
        [(CUDA, "if (used || count > 0) e = penalised", "e = penalised")],
        flat,
    ),
}  # fmt: skip

TRITON = {  # name: (file, its text, the mutant's text, the test that fails)
    "committed counts on every row": (
        TRITON_RULE,
        "return row | ((position + views.drafted).to(tl.int64) << 32)",
        "return row",
        in_triton(chains),
    ),
    "a window of another branch": (
        TRITON_RULE,
        "return tl.where((parent > 0) & (parent < position), parent, 0)",
        "return position - 1",
        in_triton(trees),
    ),
    "the presence of a prompt's tokens": (
        TRITON_PENALTIES,
        "e = tl.where(count > 0, lower - amounts.presence, e)",
        "e = lower - amounts.presence",
        in_triton(flat),
    ),
    "the list of the first request": (
        TRITON_PENALTIES,
        "views.ids) + number * views.marks_stride",
        "views.ids) + 0 * number",
        in_triton(flat),
    ),
    "the prompt's bits one further": (
        TRITON_PENALTIES,
        "(count != 0) | ((bits >> (v % 32)",
        "(count != 0) | ((bits >> ((v + 1) % 32)",
        in_triton(flat),
    ),
    "the bias of another position": (
        TRITON_RULE,
        "at = b * request_stride + position * position_stride",
        "at = b * request_stride",
        in_triton(chains),
    ),
    "a mask of the bits one further": (
        TRITON_RULE,
        "return ~mask | ((bits >> (v % 32)",
        "return ~mask | ((bits >> ((v + 1) % 32)",
        in_triton(flat),
    ),
    "a penalised entry without its bias": (
        TRITON_RULE,
        "return _biased(side.views, bias_at, some & mask, v, e)",
        "return e",
        in_triton(flat),
    ),
    "ragged positions that forget the rows after drafts": (
        TRITON_RULE,
        "tl.minimum(tl.maximum(start, 0), views.D) + b + position, at)",
        "tl.minimum(tl.maximum(start, 0), views.D) + position, at)",
        in_triton(chains),
    ),
}
