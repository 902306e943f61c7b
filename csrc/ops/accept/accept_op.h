// SPDX-License-Identifier: Apache-2.0
// Makes accept's parameters from its tensors, on any device. The template parameter Run then does the work.
#pragma once

#include "../../binding/check.h"
#include "accept.h"

namespace specdec {

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
