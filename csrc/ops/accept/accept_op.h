// SPDX-License-Identifier: Apache-2.0
// Makes accept's parameters from its tensors, on any device. The template parameter Run then does the work.
#pragma once

#include "../../binding/check.h"
#include "../../core/philox.h"
#include "../../core/accept.h"

namespace specdec {

// An array of probabilities in float64, float32, float16 or bfloat16. For q it may have draft token ids instead, in
// int32 or int64: an id >= 0 stands for a one-hot draft, with probability 1, and a negative id for no draft, with
// probability 0.
struct Probs {
  enum Type : int32_t { kFloat, kDouble, kHalf, kBrain, kInt, kLong };
  const void* data = nullptr;
  Type type = kFloat;

  SPECDEC_HD double operator[](int64_t i) const {
    switch (type) {
      case kFloat: return static_cast<const float*>(data)[i];
      case kDouble: return static_cast<const double*>(data)[i];
      case kInt: return static_cast<const int32_t*>(data)[i] >= 0;
      case kLong: return static_cast<const int64_t*>(data)[i] >= 0;
      default: return number_at(data, type == kHalf ? kFloat16 : kBFloat16, i);
    }
  }
};

struct Accept {
  int64_t n = 0;
  Probs p, q, u;        // [n]
  bool* out = nullptr;  // [n]

  SPECDEC_HD void test(int64_t i) const { out[i] = accept(p[i], q[i], given_uniform(u[i])); }
};

inline Probs probs(const Op& op, const char* name, const Tensor& t, bool ids) {
  check_device(op, name, t);
  check_contiguous(op, name, t);
  switch (t.scalar_type()) {
    case ScalarType::Double: return {data_of(t), Probs::kDouble};
    case ScalarType::Float: return {data_of(t), Probs::kFloat};
    case ScalarType::Half: return {data_of(t), Probs::kHalf};
    case ScalarType::BFloat16: return {data_of(t), Probs::kBrain};
    case ScalarType::Long:
      if (ids) return {data_of(t), Probs::kLong};
      break;
    case ScalarType::Int:
      if (ids) return {data_of(t), Probs::kInt};
      break;
    default: break;
  }
  check(false, op, name, ids ? " must be floating point, int32 or int64, got " : " must be floating point, got ",
        DtypeOfTensor{t});
  return {};
}

template <void (*Run)(const Accept&, const Tensor& like)>
Tensor accept_op(const Tensor& p, const Tensor& q, const Tensor& u) {
  const Op op("accept", p);
  check_given(op, "p", p, "q", q, "u", u);
  Accept a;
  a.n = p.numel();
  a.p = probs(op, "p", p, false);
  a.q = probs(op, "q", q, true);
  a.u = probs(op, "u", u, false);
  const auto same_shape = [&](const char* name, const Tensor& t) {
    check(t.sizes() == p.sizes(), op, name, " must have shape ", bracketed(p.sizes()), ", got ", bracketed(t.sizes()));
  };
  same_shape("q", q);
  same_shape("u", u);
  check_dtype(op, "u", u, ScalarType::Double, "float64");

  Tensor accepted = result(op, u.sizes(), a.out);
  if (a.n > 0) Run(a, p);
  return accepted;
}

}  // namespace specdec
