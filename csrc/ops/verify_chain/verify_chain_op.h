// SPDX-License-Identifier: Apache-2.0
// From verify_chain's tensors to its parameters, on any device; Run then does the work.
#pragma once

#include <tuple>

#include "../../binding/rule_arguments.h"
#include "../../binding/verification.h"
#include "../../binding/verify_arguments.h"
#include "verify_chain.h"

namespace specdec {

// Rows of one side: of every position, [B, G + extra, V], or [D + extra * B, V] if ragged; or where `row` [B, G +
// extra], [D + extra * B] says which, [N, V] or [S, K, V].
inline Side chain_side(const Op& op, const VerifyChain& a, const std::string& name, const Tensor& rows, int64_t kind,
                       const OptTensor& stats, const Sampling& sampling, int64_t extra, const OptTensor& row) {
  const bool ragged = bool(a.cu_draft);
  std::vector<int64_t> positions{a.B, a.G + extra}, shape;
  if (ragged) positions = {a.D + extra * a.B};
  if (row) {
    check(rows.dim() == 2 || rows.dim() == 3, op, name, "_logits must have 2 or 3 dimensions where ", name,
          "_row is given, got shape ", bracketed(rows.sizes()));
    for (int64_t i = 0; i + 1 < rows.dim(); ++i) shape.push_back(rows.size(i));
  }
  Side s = side(op, name, rows, kind, stats, sampling, row ? shape : positions);
  s.per_request = a.G + extra;
  s.extra = extra;
  if (!row) return s;
  const std::string index = name + "_row";
  check_shape(op, index.c_str(), *row, positions);
  s.store.row = ints(op, index.c_str(), *row, row->stride(row->dim() - 1));
  s.store.request_stride = ragged ? 0 : row->stride(0);
  s.store.K = shape.back();
  s.store.N = shape.size() == 1 ? s.store.K : shape[0] * s.store.K;
  if (shape.size() == 2) s.rows.batch_stride -= s.store.K * s.rows.row_stride;
  return s;
}

// Of padded buffers the offsets behind the last request that is present are not looked at, and D is how much room there
// is.
inline void check_cu_draft(const Op& op, const Ints& cu_draft, int64_t B, int64_t D, int64_t G,
                           const Present& present) {
  const int64_t n = present.of(B);
  const bool padded = bool(present.number);
  if (padded && n == 0) return;
  check(cu_draft[0] == 0, op, "cu_draft must start at 0, got ", cu_draft[0]);
  for (int64_t b = 0; b < n; ++b) {
    check(cu_draft[b + 1] >= cu_draft[b], op, "cu_draft must ascend, got ", cu_draft[b], " then ", cu_draft[b + 1],
          " at index ", b);
    const int64_t g = cu_draft[b + 1] - cu_draft[b];
    check(g <= G, op, "max_draft must be at least the longest draft, got ", G, " with ", g,
          " drafted tokens in request ", b);
  }
  check(padded ? cu_draft[n] <= D : cu_draft[n] == D, op, "cu_draft must end at ", padded ? "most at " : "", "D=", D,
        ", got ", cu_draft[n]);
}

// draft_tokens [B, G], or ragged [D] with cu_draft [B+1]
inline void take_drafts(const Op& op, VerifyChain& a, const Tensor& draft_tokens, const OptTensor& cu_draft,
                        int64_t max_draft) {
  const bool ragged = cu_draft.has_value();
  check_dim(op, "draft_tokens", draft_tokens, ragged ? 1 : 2);
  if (ragged) check_dim(op, "cu_draft", *cu_draft, 1);
  check(!ragged || cu_draft->size(0) >= 1, op, "cu_draft must have shape [B+1], got [0]");
  a.B = ragged ? cu_draft->size(0) - 1 : draft_tokens.size(0);
  a.D = ragged ? draft_tokens.size(0) : 0;
  a.G = ragged ? max_draft : draft_tokens.size(1);
  check(a.G >= 0, op, "max_draft must be >= 0, got ", a.G);
  check(a.G <= INT32_MAX, op, "max_draft must be below 2^31, got ", a.G);
  a.draft_tokens = ints(op, "draft_tokens", draft_tokens, draft_tokens.stride(ragged ? 0 : 1));
  a.draft_tokens_stride = ragged ? 0 : draft_tokens.stride(0);
  if (!ragged) return;
  a.cu_draft = ints(op, "cu_draft", *cu_draft, cu_draft->stride(0));
  if (values_at_hand(op)) check_cu_draft(op, a.cu_draft, a.B, a.D, a.G, a.present);
}

inline Prepared<VerifyChain> prepare_verify_chain(
    const Tensor& target_logits, const Tensor& draft_tokens, const OptTensor& draft_logits, const OptTensor& cu_draft,
    int64_t max_draft, const OptTensor& bonus_tokens, const OptTensor& temperature, const OptTensor& top_k,
    const OptTensor& top_p, const OptTensor& min_p, const OptTensor& target_stats, const OptTensor& draft_stats,
    const OptTensor& draft_temperature, const OptTensor& draft_top_k, const OptTensor& draft_top_p,
    const OptTensor& draft_min_p, int64_t target_kind, int64_t draft_kind, int64_t method, const OptTensor& rule,
    const OptTensor& alpha, const OptTensor& seed, const OptTensor& offset, const OptTensor& uniforms,
    const OptTensor& target_row, const OptTensor& draft_row, const OptTensor& num_requests, const OptNumbers& numbers,
    const OptNumbers& rule_numbers) {
  const Op op(VerifyChain::kName, target_logits);
  check_given(op, "target_logits", target_logits, "draft_tokens", draft_tokens);
  VerifyChain a;
  a.present = present(op, "num_requests", num_requests);
  take_drafts(op, a, draft_tokens, cu_draft, max_draft);
  const int64_t B = a.B, G = a.G;
  if (bonus_tokens) check_shape(op, "bonus_tokens", *bonus_tokens, {B});
  if (bonus_tokens) a.bonus_tokens = ints(op, "bonus_tokens", *bonus_tokens, bonus_tokens->stride(0));

  const Sampling of_target =
      sampling(op, "", temperature, top_k, top_p, min_p, {op, "numbers", numbers, 2, 4, 0}, B, a.present);
  const Sampling of_draft = sampling(op, "draft_", draft_temperature, draft_top_k, draft_top_p, draft_min_p,
                                     {op, "numbers", numbers, 2, 4, 1}, B, a.present);
  a.target = chain_side(op, a, "target", target_logits, target_kind, target_stats, of_target, bonus_tokens ? 0 : 1,
                        target_row);
  if (draft_logits) {
    const Tensor& positions = draft_row ? *draft_row : *draft_logits;
    check_dim(op, draft_row ? "draft_row" : "draft_logits", positions, (cu_draft ? 1 : 2) + !draft_row);
    const int64_t extra = cu_draft ? B > 0 && positions.size(0) == a.D + B : positions.size(1) == G + 1;
    a.draft = chain_side(op, a, "draft", *draft_logits, draft_kind, draft_stats, of_draft, extra, draft_row);
  } else {
    check(!draft_stats && !of_draft && !draft_row, op,
          "draft_row, draft_stats and draft sampling parameters need draft_logits, got none");
  }

  check(method == 0 || method == 1, op, "method must be 0 (token) or 1 (block), got ", method);
  a.block = method == 1;
  a.rules = rules(op, rule, alpha, {op, "rule_numbers", rule_numbers, 1, 3, 0}, B, G);
  check_rules(op, a.rules, a.block, B, a.present, G);

  take_randomness(op, a, B, G + 1, seed, offset, uniforms, temperature || of_target.numbers.greedy() || target_stats);
  return {a, target_logits, G + 1};
}

template <void (*Run)(const VerifyChain&, const Tensor& like)>
using VerifyChainOp = Verification<&prepare_verify_chain, Run, std::tuple<Tensor, Tensor, Tensor, Tensor>>;

}  // namespace specdec
