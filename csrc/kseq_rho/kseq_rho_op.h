// SPDX-License-Identifier: Apache-2.0
// From kseq_rho's tensors to its parameters, on any device; Run then does the work.
#pragma once

#include <tuple>

#include "../common/check.h"
#include "kseq_rho.h"

namespace specdec {

struct KSeqRho {
  int64_t N = 0;
  Rows p, q;                                 // [N, V], [N, Vq]
  const float *p_stats = nullptr, *q_stats = nullptr;  // [N, 4]; null: probabilities
  Ints k;                                    // [N]
  double *rho = nullptr, *beta = nullptr, *p_acc = nullptr;  // [N]

  SPECDEC_HD Dist target(int64_t n) const { return dist(p, p_stats, n); }
  SPECDEC_HD Dist draft(int64_t n) const { return dist(q, q_stats, n); }
  SPECDEC_HD void write(int64_t n, const KSeq& x) const { rho[n] = x.rho, beta[n] = x.beta, p_acc[n] = x.p_acc; }

 private:
  SPECDEC_HD static Dist dist(const Rows& rows, const float* stats, int64_t n) {
    const Row row = rows.at(0, n);
    return stats ? from_law(row, law_at(stats, n)) : from_probs(row);
  }
};

template <void (*Run)(const KSeqRho&, const Tensor& like)>
std::tuple<Tensor, Tensor, Tensor> kseq_rho_op(const Tensor& p, const Tensor& q, const Tensor& k, const OptTensor& p_stats,
                                               const OptTensor& q_stats) {
  const Op op("kseq_rho", p);
  check_dim(op, "p", p, 2);
  KSeqRho a;
  const int64_t N = a.N = p.size(0);
  a.p = {p.const_data_ptr(), p.size(1), 0, p.stride(0), check_rows(op, "p", p)};
  check_dim(op, "q", q, 2);
  a.q = {q.const_data_ptr(), q.size(1), 0, q.stride(0), check_rows(op, "q", q)};
  check_shape(op, "q", q, {N, a.q.V});
  a.k = ints_per_row(op, "k", k, N);
  check(p_stats.has_value() == q_stats.has_value(), op, "p_stats and q_stats go together, got ", p_stats ? "p_stats" : "q_stats", " alone");
  if (p_stats) {
    check_shape(op, "p_stats", *p_stats, {N, 4});
    check_shape(op, "q_stats", *q_stats, {N, 4});
    a.p_stats = stats_pointer(op, "p_stats", *p_stats), a.q_stats = stats_pointer(op, "q_stats", *q_stats);
  }
  if (values_at_hand(op))
    for (int64_t n = 0; n < N; ++n) check(a.k[n] >= 1, op, "k must be >= 1, got ", a.k[n], " at index ", n);

  Tensor rho = empty({N}, ScalarType::Double, p), beta = empty({N}, ScalarType::Double, p), p_acc = empty({N}, ScalarType::Double, p);
  a.rho = out_pointer<double>(rho), a.beta = out_pointer<double>(beta), a.p_acc = out_pointer<double>(p_acc);
  if (N > 0) Run(a, p);
  return {rho, beta, p_acc};
}

}  // namespace specdec
