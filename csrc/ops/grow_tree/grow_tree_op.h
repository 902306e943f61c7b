// SPDX-License-Identifier: Apache-2.0
// Makes grow_tree's parameters from its tensors, on any device. The template parameter Run then does the work.
#pragma once

#include <algorithm>
#include <tuple>

#include "../../binding/check.h"
#include "grow_tree.h"

namespace specdec {

template <void (*Run)(const GrowTree&, const Tensor& like)>
std::tuple<Tensor, Tensor> grow_tree_op(const Tensor& log_q, const Tensor& tokens, int64_t nodes) {
  const Op op("grow_tree", log_q);
  check_given(op, "log_q", log_q, "tokens", tokens);
  check_dims(op, "log_q", log_q, "B, L, K");
  check_float32(op, "log_q", log_q);
  const int64_t B = log_q.size(0), L = log_q.size(1), K = log_q.size(2);
  check_shape(op, "tokens", tokens, {{"B", B}, {"L", L}, {"K", K}});
  check(nodes >= 1 && nodes <= kMaxNodes, op, "nodes must be in [1, ", kMaxNodes, "], got ", nodes);
  const int64_t levels = K > 0 ? std::min(L, nodes - 1) : 0;
  check(levels == 0 || K <= kMaxCandidates / levels, op, "log_q must hold at most ", kMaxCandidates,
        " candidates in the first nodes - 1 = ", nodes - 1, " levels, got ", levels, " levels of ", K);
  GrowTree a;
  a.B = B;
  a.L = int(levels);
  a.K = levels > 0 ? int(K) : 1;
  a.nodes = int(nodes);
  a.log_q = {static_cast<const float*>(data_of(log_q)), 1};
  a.tokens = ints(op, "tokens", tokens, 1);
  for (int i = 0; i < 3; ++i) a.log_q_strides[i] = log_q.stride(i), a.token_strides[i] = tokens.stride(i);

  Tensor parents = result(op, {B, nodes}, a.parents), node_tokens = result(op, {B, nodes}, a.node_tokens);
  if (B > 0) Run(a, log_q);
  return {parents, node_tokens};
}

}  // namespace specdec
