// SPDX-License-Identifier: Apache-2.0
// Makes build_tree's parameters from its tensor, on any device. The template parameter Run then does the work.
#pragma once

#include <tuple>

#include "../../binding/check.h"
#include "build_tree.h"

namespace specdec {

template <void (*Run)(const BuildTree&, const Tensor& like)>
std::tuple<Tensor, Tensor, Tensor, Tensor> build_tree_op(const Tensor& draft_tokens) {
  const Op op("build_tree", draft_tokens);
  check_given(op, "draft_tokens", draft_tokens);
  check_dims(op, "draft_tokens", draft_tokens, "B, K, L");
  const int64_t B = draft_tokens.size(0), K = draft_tokens.size(1), L = draft_tokens.size(2);
  check(K <= kMaxDrafts, op, "draft_tokens must hold at most ", kMaxDrafts, " drafts a request, got ", K);
  check(L <= 1 << 20, op, "draft_tokens must have at most 2^20 levels, got ", L);
  BuildTree a;
  a.B = B;
  a.K = int(K);
  a.L = int(L);
  a.N = K * L + 1;
  a.draft_tokens = ints(op, "draft_tokens", draft_tokens, 1);
  for (int i = 0; i < 3; ++i) a.strides[i] = draft_tokens.stride(i);

  Tensor parents = result(op, {B, a.N}, a.parents), tokens = result(op, {B, a.N}, a.tokens);
  Tensor multiplicity = result(op, {B, a.N}, a.multiplicity), draft_nodes = result(op, {B, K, L}, a.draft_nodes);
  if (B > 0) Run(a, draft_tokens);
  return {parents, tokens, multiplicity, draft_nodes};
}

}  // namespace specdec
