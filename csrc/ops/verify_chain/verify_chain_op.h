// SPDX-License-Identifier: Apache-2.0
// From verify_chain's tensors to its parameters, on any device; Run then does the work.
#pragma once

#include <tuple>

#include "../../binding/rule_arguments.h"
#include "verify_chain.h"

namespace specdec {

// Rows of one side: [B, per_request, V], or [D + extra * B, V] if ragged.
inline Side side(const Op& op, const char* name, const Tensor& rows, int64_t kind, const OptTensor& stats,
                 const Sampling& sampling, bool ragged, int64_t B, int64_t G, int64_t D, int64_t extra) {
  const int64_t per_request = G + extra, ragged_rows = D + extra * B;
  check(kind == 0 || kind == 1, op, name, "_kind must be 0 (logits) or 1 (probabilities), got ", kind);
  const std::string logits = std::string(name) + "_logits";
  check_dim(op, logits.c_str(), rows, ragged ? 2 : 3);
  Side s;
  s.rows = {rows.const_data_ptr(), rows.size(rows.dim() - 1), ragged ? 0 : rows.stride(0), rows.stride(rows.dim() - 2),
            check_rows(op, logits.c_str(), rows)};
  if (ragged)
    check_shape(op, logits.c_str(), rows, {ragged_rows, s.rows.V});
  else
    check_shape(op, logits.c_str(), rows, {B, per_request, s.rows.V});
  s.kind = kind == 0 ? Kind::kLogits : Kind::kProbs;
  s.per_request = per_request;
  s.extra = extra;
  s.sampling = sampling;
  if (stats) {
    const std::string n = std::string(name) + "_stats";
    if (ragged)
      check_shape(op, n.c_str(), *stats, {ragged_rows, 4});
    else
      check_shape(op, n.c_str(), *stats, {B, per_request, 4});
    s.stats = stats_pointer(op, n.c_str(), *stats);
  }
  check(kind == 0 || (!stats && !sampling), op, name, "_stats and sampling parameters need logits, got ", name,
        "_kind 1 (probabilities)");
  check(!stats || !sampling, op, name, "_stats already hold the sampling parameters: give one or the other");
  return s;
}

inline void check_cu_draft(const Op& op, const Ints& cu_draft, int64_t B, int64_t D, int64_t G) {
  check(cu_draft[0] == 0, op, "cu_draft must start at 0, got ", cu_draft[0]);
  for (int64_t b = 0; b < B; ++b) {
    check(cu_draft[b + 1] >= cu_draft[b], op, "cu_draft must ascend, got ", cu_draft[b], " then ", cu_draft[b + 1],
          " at index ", b);
    const int64_t g = cu_draft[b + 1] - cu_draft[b];
    check(g <= G, op, "max_draft must be at least the longest draft, got ", G, " with ", g,
          " drafted tokens in request ", b);
  }
  check(cu_draft[B] == D, op, "cu_draft must end at D=", D, ", got ", cu_draft[B]);
}

template <void (*Run)(const VerifyChain&, const Tensor& like)>
std::tuple<Tensor, Tensor, Tensor, Tensor> verify_chain_op(
    const Tensor& target_logits, const Tensor& draft_tokens, const OptTensor& draft_logits, const OptTensor& cu_draft,
    int64_t max_draft, const OptTensor& bonus_tokens, const OptTensor& temperature, const OptTensor& top_k,
    const OptTensor& top_p, const OptTensor& min_p, const OptTensor& target_stats, const OptTensor& draft_stats,
    const OptTensor& draft_temperature, const OptTensor& draft_top_k, const OptTensor& draft_top_p,
    const OptTensor& draft_min_p, int64_t target_kind, int64_t draft_kind, int64_t method, const OptTensor& rule,
    const OptTensor& alpha, const OptTensor& seed, const OptTensor& offset, const OptTensor& uniforms) {
  const Op op("verify_chain", target_logits);
  check_given(op, "target_logits", target_logits, "draft_tokens", draft_tokens);
  VerifyChain a;
  const bool ragged = cu_draft.has_value();
  check_dim(op, "draft_tokens", draft_tokens, ragged ? 1 : 2);
  if (ragged) check_dim(op, "cu_draft", *cu_draft, 1);
  check(!ragged || cu_draft->size(0) >= 1, op, "cu_draft must have shape [B+1], got [0]");
  const int64_t B = a.B = ragged ? cu_draft->size(0) - 1 : draft_tokens.size(0);
  const int64_t D = a.D = ragged ? draft_tokens.size(0) : 0;
  const int64_t G = a.G = ragged ? max_draft : draft_tokens.size(1);
  check(G >= 0, op, "max_draft must be >= 0, got ", G);
  check(G <= INT32_MAX, op, "max_draft must be below 2^31, got ", G);
  a.draft_tokens = ints(op, "draft_tokens", draft_tokens, draft_tokens.stride(ragged ? 0 : 1));
  a.draft_tokens_stride = ragged ? 0 : draft_tokens.stride(0);
  if (ragged) {
    a.cu_draft = ints(op, "cu_draft", *cu_draft, cu_draft->stride(0));
    if (values_at_hand(op)) check_cu_draft(op, a.cu_draft, B, D, G);
  }
  if (bonus_tokens) check_shape(op, "bonus_tokens", *bonus_tokens, {B});
  if (bonus_tokens) a.bonus_tokens = ints(op, "bonus_tokens", *bonus_tokens, bonus_tokens->stride(0));

  const Sampling target_sampling = sampling(op, "", temperature, top_k, top_p, min_p, B);
  const Sampling draft_sampling = sampling(op, "draft_", draft_temperature, draft_top_k, draft_top_p, draft_min_p, B);
  check_values(op, "", target_sampling, B);
  check_values(op, "draft_", draft_sampling, B);
  a.target = side(op, "target", target_logits, target_kind, target_stats, target_sampling, ragged, B, G, D,
                  bonus_tokens ? 0 : 1);
  if (draft_logits) {
    check_dim(op, "draft_logits", *draft_logits, ragged ? 2 : 3);
    const int64_t extra = ragged ? B > 0 && draft_logits->size(0) == D + B : draft_logits->size(1) == G + 1;
    a.draft = side(op, "draft", *draft_logits, draft_kind, draft_stats, draft_sampling, ragged, B, G, D, extra);
  } else {
    check(!draft_stats && !draft_sampling, op, "draft_stats and draft sampling parameters need draft_logits, got none");
  }

  check(method == 0 || method == 1, op, "method must be 0 (token) or 1 (block), got ", method);
  a.block = method == 1;
  a.rules = rules(op, rule, alpha, B);
  check_rules(op, a.rules, a.block, B);

  if (uniforms) a.uniforms = uniforms_pointer(op, *uniforms, B, G + 1);
  a.seed = ints_per_row(op, "seed", seed, B);
  a.offset = ints_per_row(op, "offset", offset, B);
  check(seed.has_value() == offset.has_value(), op, "seed and offset go together, got ", seed ? "seed" : "offset",
        " alone");
  check(uniforms || seed || temperature || target_stats, op, "needs seed and offset, or uniforms, got neither");

  Tensor tokens = empty({B, G + 1}, ScalarType::Long, target_logits),
         logprobs = empty({B, G + 1}, ScalarType::Float, target_logits);
  Tensor num_accepted = empty({B}, ScalarType::Int, target_logits), status = empty({B}, ScalarType::Int, target_logits);
  a.tokens = out_pointer<int64_t>(tokens);
  a.logprobs = out_pointer<float>(logprobs);
  a.num_accepted = out_pointer<int32_t>(num_accepted);
  a.status = out_pointer<int32_t>(status);
  if (B > 0) Run(a, target_logits);
  return {tokens, num_accepted, logprobs, status};
}

}  // namespace specdec
