// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/stable/library.h>

#include "../common/check.h"
#include "../common/philox.h"

namespace specdec {
namespace {

Tensor uniforms_cpu(const Tensor& seed, const Tensor& offset, int64_t n, int64_t domain) {
  constexpr const char* kOp = "uniforms";
  check_dim(kOp, "seed", seed, 1);
  const int64_t B = seed.size(0);
  check_shape(kOp, "offset", offset, {B});
  check(n >= 0, kOp, "n must be >= 0, got ", n);
  check(domain >= 0 && domain < int64_t{1} << 32, kOp, "domain must be in [0, 2^32), got ", domain);
  const Ints seeds = ints(kOp, "seed", seed, seed.stride(0)), offsets = ints(kOp, "offset", offset, offset.stride(0));

  Tensor u = empty({B, n}, ScalarType::Double, seed);
  double* out = out_pointer<double>(u);
  torch::stable::parallel_for(0, B, 1 + 4096 / (n + 1), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      for (int64_t i = 0; i < n; ++i) out[b * n + i] = uniform(seeds[b], offsets[b], uint32_t(domain), i);
  });
  return u;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, CPU, m) { m.impl("uniforms", TORCH_BOX(&uniforms_cpu)); }

}  // namespace specdec
