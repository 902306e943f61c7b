// SPDX-License-Identifier: Apache-2.0
#include "sample.h"

#include <torch/csrc/stable/library.h>

#include <tuple>

#include "../common/check.h"
#include "../common/cpu_team.h"

namespace specdec {
namespace {

std::tuple<Tensor, Tensor, Tensor> sample_cpu(const Tensor& logits, const OptTensor& stats, int64_t k, bool replacement,
                                              const OptTensor& temperature, const OptTensor& top_k, const OptTensor& top_p,
                                              const OptTensor& min_p, const OptTensor& seed, const OptTensor& offset, const OptTensor& slot,
                                              const OptTensor& uniforms) {
  constexpr const char* kOp = "sample";
  Sample a;
  check_dim(kOp, "logits", logits, 2);
  const int64_t N = logits.size(0);
  a.logits = {logits.const_data_ptr(), logits.size(1), 0, logits.stride(0), check_rows(kOp, "logits", logits)};
  check(k >= 0, kOp, "k must be >= 0, got ", k);
  a.k = k;
  a.replacement = replacement;
  a.sampling = sampling(kOp, "", temperature, top_k, top_p, min_p, N);
  check_values(kOp, "", a.sampling, N);
  if (stats) {
    check(!a.sampling, kOp, "stats already hold the sampling parameters: give one or the other");
    check_shape(kOp, "stats", *stats, {N, 4});
    a.stats_in = stats_pointer(kOp, "stats", *stats);
  }
  if (uniforms) {
    check_shape(kOp, "uniforms", *uniforms, {N, k});
    check_dtype(kOp, "uniforms", *uniforms, ScalarType::Double);
    check(uniforms->is_contiguous(), kOp, "uniforms must be contiguous, got strides ", bracketed(uniforms->strides()));
    a.uniforms = static_cast<const double*>(uniforms->const_data_ptr());
  }
  a.seed = ints_per_row(kOp, "seed", seed, N);
  a.offset = ints_per_row(kOp, "offset", offset, N);
  a.slot = ints_per_row(kOp, "slot", slot, N);
  check(seed.has_value() == offset.has_value(), kOp, "seed and offset go together, got ", seed ? "seed" : "offset", " alone");
  check(uniforms || seed || temperature || stats, kOp, "needs seed and offset, or uniforms, got neither");

  Tensor tokens = empty({N, k}, ScalarType::Long, logits), logprobs = empty({N, k}, ScalarType::Float, logits);
  Tensor stats_out = empty({N, 4}, ScalarType::Float, logits);
  a.tokens = out_pointer<int64_t>(tokens);
  a.logprobs = out_pointer<float>(logprobs);
  a.stats = out_pointer<Law>(stats_out);
  for_requests(N, a.logits.V, [&](CpuTeam& team, int64_t n) { sample(team, a, n); });
  return {tokens, logprobs, stats_out};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, CPU, m) { m.impl("sample", TORCH_BOX(&sample_cpu)); }

}  // namespace specdec
