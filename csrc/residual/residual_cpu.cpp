// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "../common/check.h"
#include "../common/cpu_team.h"
#include "../common/draw.h"

namespace specdec {
namespace {

// norm(w), where w are the weights (p - q)+ whose total is `total`
void write_normalised(const CpuTeam& team, const Dist& p, const Dist& q, double total, float* out) {
  const double inverse = 1 / total;
  for (int64_t c = 0; c < chunk_count(p.row.V); ++c) {
    float w[kChunk];
    team.weights(p, q, c, w);
    for (int i = 0; i < chunk_size(p.row.V, c); ++i) out[c * kChunk + i] = float(w[i] * inverse);
  }
}

std::tuple<Tensor, Tensor> residual_cpu(const Tensor& p, const Tensor& q) {
  constexpr const char* kOp = "residual";
  check_dim(kOp, "p", p, 2);
  const int64_t N = p.size(0), V = p.size(1);
  const Rows p_rows{p.const_data_ptr(), V, 0, p.stride(0), check_rows(kOp, "p", p)};
  const bool ids = q.scalar_type() == ScalarType::Long || q.scalar_type() == ScalarType::Int;
  Ints q_ids;
  Rows q_rows;
  if (ids) {
    check_shape(kOp, "q", q, {N});
    q_ids = ints(kOp, "q", q, q.stride(0));
  } else {
    check_dim(kOp, "q", q, 2);
    q_rows = {q.const_data_ptr(), q.size(1), 0, q.stride(0), check_rows(kOp, "q", q)};
    check_shape(kOp, "q", q, {N, q_rows.V});
  }

  Tensor probs = empty({N, V}, ScalarType::Float, p), mass = empty({N}, ScalarType::Double, p);
  float* out = out_pointer<float>(probs);
  double* masses = out_pointer<double>(mass);
  for_requests(N, V, [&](CpuTeam& team, int64_t n) {
    const Dist target = from_probs(p_rows.at(0, n)), draft = ids ? one_hot(q_ids[n]) : from_probs(q_rows.at(0, n));
    const double total = masses[n] = team.sum(target, draft);
    if (has_mass(total)) return write_normalised(team, target, draft, total, out + n * V);
    const double p_total = team.sum(target, Dist{});
    if (has_mass(p_total)) return write_normalised(team, target, Dist{}, p_total, out + n * V);
    for (int64_t v = 0; v < V; ++v) out[n * V + v] = 0;
    out[n * V + team.argmax_finite(target.row)] = 1;
  });
  return {probs, mass};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, CPU, m) { m.impl("residual", TORCH_BOX(&residual_cpu)); }

}  // namespace specdec
