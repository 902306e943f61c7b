// SPDX-License-Identifier: Apache-2.0
#include "accept.h"

#include <torch/csrc/stable/library.h>

#include "../common/check.h"

namespace specdec {
namespace {

// Probabilities of any dtype; of integer ids, 1 for a one-hot draft and 0 for a missing one.
struct Probs {
  const void* data;
  ScalarType dtype;

  template <class Read>
  static void fill(double* out, int64_t n, const Read& read) {
    for (int64_t i = 0; i < n; ++i) out[i] = read(i);
  }
  void load(int64_t begin, int64_t n, double* out) const {
    const auto at = [&](auto* x) { return x + begin; };
    switch (dtype) {
      case ScalarType::Double: return fill(out, n, [x = at(static_cast<const double*>(data))](int64_t i) { return x[i]; });
      case ScalarType::Float: return fill(out, n, [x = at(static_cast<const float*>(data))](int64_t i) { return x[i]; });
      case ScalarType::Long: return fill(out, n, [x = at(static_cast<const int64_t*>(data))](int64_t i) { return x[i] >= 0; });
      case ScalarType::Int: return fill(out, n, [x = at(static_cast<const int32_t*>(data))](int64_t i) { return x[i] >= 0; });
      default: break;
    }
    const Row row{at(static_cast<const uint16_t*>(data)), n, dtype == ScalarType::Half ? kFloat16 : kBFloat16};
    fill(out, n, [&](int64_t i) { return load_scalar(row, i); });
  }
};

Probs probs(const char* name, const Tensor& t, bool ids) {
  const ScalarType s = t.scalar_type();
  const bool real = s == ScalarType::Double || s == ScalarType::Float || s == ScalarType::Half || s == ScalarType::BFloat16;
  check(real || (ids && (s == ScalarType::Long || s == ScalarType::Int)), "accept", name,
        ids ? " must be floating point, int32 or int64, got " : " must be floating point, got ", toString(s));
  check(t.is_contiguous(), "accept", name, " must be contiguous, got strides ", bracketed(t.strides()));
  return {t.const_data_ptr(), s};
}

Tensor accept_cpu(const Tensor& p, const Tensor& q, const Tensor& u) {
  const auto same_shape = [&](const char* name, const Tensor& t) {
    check(bracketed(t.sizes()) == bracketed(p.sizes()), "accept", name, " must have shape ", bracketed(p.sizes()), ", got ",
          bracketed(t.sizes()));
  };
  same_shape("q", q);
  same_shape("u", u);
  check_dtype("accept", "u", u, ScalarType::Double);
  const Probs pp = probs("p", p, false), qq = probs("q", q, true), uu = probs("u", u, false);

  Tensor accepted = empty(u.sizes(), ScalarType::Bool, u);
  bool* out = out_pointer<bool>(accepted);
  constexpr int64_t kBlock = 256;
  torch::stable::parallel_for(0, (p.numel() + kBlock - 1) / kBlock, 64, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kBlock, n = std::min(kBlock, p.numel() - first);
      double a[kBlock], b[kBlock], c[kBlock];
      pp.load(first, n, a), qq.load(first, n, b), uu.load(first, n, c);
      for (int64_t i = 0; i < n; ++i) out[first + i] = accept(a[i], b[i], c[i]);
    }
  });
  return accepted;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, CPU, m) { m.impl("accept", TORCH_BOX(&accept_cpu)); }

}  // namespace specdec
