// SPDX-License-Identifier: Apache-2.0
#include "accept.h"

#include <torch/csrc/stable/library.h>

#include "../common/check.h"

namespace specdec {
namespace {

// One probability, whatever its dtype; of integer ids, 1 for a one-hot draft and 0 for a missing one.
struct Probs {
  const void* data;
  ScalarType dtype;
  double operator[](int64_t i) const {
    switch (dtype) {
      case ScalarType::Double: return static_cast<const double*>(data)[i];
      case ScalarType::Float: return static_cast<const float*>(data)[i];
      case ScalarType::Long: return static_cast<const int64_t*>(data)[i] >= 0;
      case ScalarType::Int: return static_cast<const int32_t*>(data)[i] >= 0;
      default: return load_scalar({data, i + 1, dtype == ScalarType::Half ? kFloat16 : kBFloat16}, i);
    }
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
  for (int64_t i = 0, n = p.numel(); i < n; ++i) out[i] = accept(pp[i], qq[i], uu[i]);
  return accepted;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, CPU, m) { m.impl("accept", TORCH_BOX(&accept_cpu)); }

}  // namespace specdec
