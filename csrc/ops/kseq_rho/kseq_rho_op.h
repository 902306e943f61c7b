// SPDX-License-Identifier: Apache-2.0
// Makes kseq_rho's parameters from its tensors, on any device. The template parameter Run then does the work.
#pragma once

#include <tuple>

#include "../../binding/row_pairs.h"
#include "kseq_rho.h"

namespace specdec {

template <void (*Run)(const KSeqRho&, const Tensor& like)>
std::tuple<Tensor, Tensor, Tensor> kseq_rho_op(const Tensor& p, const OptTensor& p_stats, const Tensor& q,
                                               const OptTensor& q_stats, const Tensor& k, const OptTensor& q_ids) {
  const Op op("kseq_rho", p);
  check_given(op, "p", p, "q", q, "k", k);
  KSeqRho a{row_pairs(op, p, p_stats, q, q_stats, q_ids), {}};
  const int64_t N = a.N;
  a.k = ints_per_row(op, "k", k, N);
  if (values_at_hand(op))
    for (int64_t n = 0; n < N; ++n) check(a.k[n] >= 1, op, "k must be >= 1, got ", a.k[n], " at index ", n);

  Tensor rho = result(op, {N}, a.rho), beta = result(op, {N}, a.beta), p_acc = result(op, {N}, a.p_acc);
  if (N > 0) Run(a, p);
  return {rho, beta, p_acc};
}

}  // namespace specdec
