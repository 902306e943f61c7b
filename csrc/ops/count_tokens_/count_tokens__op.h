// SPDX-License-Identifier: Apache-2.0
// Makes count_tokens_'s parameters from its tensors, on any device. The template parameter Run then does the work.
#pragma once

#include "../../binding/memory.h"
#include "../../binding/penalties.h"
#include "count_tokens_.h"

namespace specdec {

// Checks that the lists of ids and counts do not overlap.
inline void check_lists_apart(const Op& op, const Tensor& ids, const Tensor& counts) {
  const int64_t S = ids.size(0), H = ids.size(1), stride = ids.stride(0);
  if (S == 0 || H == 0) return;
  const auto check_apart = [&](const char* name, const Tensor& t) {
    check(S == 1 || t.stride(0) >= H, op, name, " must be lists with memory of their own, got strides ",
          bracketed(t.strides()));
  };
  check_apart("ids", ids);
  check_apart("counts", counts);
  const Extent of_ids(ids), of_counts(counts);
  if (!of_ids.meets(of_counts)) return;
  // With equal strides, each list of one may lie between two lists of the other.
  const int64_t size = int64_t(sizeof(int32_t)), period = stride * size;
  const int64_t apart = S > 1 ? ((of_counts.begin - of_ids.begin) % period + period) % period : 0;
  check(stride == counts.stride(0) && apart >= H * size && apart <= period - H * size, op,
        "counts must have memory of its own, got some of another argument's");
}

inline void check_values(const Op& op, const CountTokens& a) {
  if (!values_at_hand(op)) return;
  std::vector<int64_t> named(a.row ? a.S : 0, -1);  // the request that has each list; -1: none yet
  for (int64_t b = 0; b < a.B; ++b) {
    const int64_t s = a.list(b);
    check(s >= -1 && s < a.S, op, "row must be in [-1, ", a.S, "), got ", s, " at index ", b);
    if (s < 0) continue;
    if (a.row) {
      check(named[s] < 0, op, "row must name each list once, got ", s, " at index ", named[s], " and at index ", b);
      named[s] = b;
    }
    const int64_t m = a.num_tokens ? a.num_tokens[b] : 0;
    check(m >= 0 && m <= a.n, op, "num_tokens must be in [0, n=", a.n, "], got ", m, " at index ", b);
    check_history(op, "ids", "counts", a.used(s), s);
  }
}

template <void (*Run)(const CountTokens&, const Tensor& like)>
Tensor count_tokens_op(const Tensor& ids, const Tensor& counts, const Tensor& tokens, const OptTensor& num_tokens,
                       const OptTensor& row) {
  const Op op("count_tokens_", ids);
  check_given(op, "ids", ids, "counts", counts, "tokens", tokens);
  history_pointer(op, "ids", ids);
  history_pointer(op, "counts", counts);
  CountTokens a;
  a.S = ids.size(0);
  check_shape(op, "counts", counts, {{"S", a.S}, {"H", ids.size(1)}});
  check(ids.size(1) <= kMaxHistory, op, "ids must be of at most 2^30 entries a list, got ", ids.size(1));
  check_dims(op, "tokens", tokens, "B, n");
  check(tokens.size(1) <= kMaxCounted, op, "tokens must hold at most ", kMaxCounted, " a request, got ",
        tokens.size(1));
  a.H = int(ids.size(1)), a.B = tokens.size(0), a.n = int(tokens.size(1));
  a.tokens = ints(op, "tokens", tokens, 1);
  for (int i = 0; i < 2; ++i) a.token_strides[i] = tokens.stride(i);
  if (num_tokens) {
    check_shape(op, "num_tokens", *num_tokens, {{"B", a.B}});
    a.num_tokens = ints(op, "num_tokens", *num_tokens, num_tokens->stride(0));
  }
  if (row) {
    check_shape(op, "row", *row, {{"B", a.B}});
    a.row = ints(op, "row", *row, row->stride(0));
  } else {
    check(a.S == a.B, op, "ids must be of ", a.B, " lists, or row be given, got ", a.S);
  }
  check_lists_apart(op, ids, counts);
  const std::pair<const char*, const OptTensor> others[] = {
      {"tokens", tokens}, {"num_tokens", num_tokens}, {"row", row}};
  for (const auto& [name, t] : others) {
    for (const Tensor* const lists : {&ids, &counts})
      check(!t || !share_memory(Extent(*lists), *t), op, name,
            " must have memory of its own, got some of another argument's");
  }
  a.ids = out_pointer<int32_t>(ids), a.counts = out_pointer<int32_t>(counts);
  a.ids_stride = ids.stride(0), a.counts_stride = counts.stride(0);
  check_values(op, a);
  Tensor status = result(op, {a.B}, a.status);
  if (a.B > 0) Run(a, ids);
  return status;
}

}  // namespace specdec
