// SPDX-License-Identifier: Apache-2.0
// Makes residual's parameters from its tensors, on any device. The template parameter Run then does the work.
#pragma once

#include <tuple>

#include "../../binding/check.h"
#include "residual.h"

namespace specdec {

template <void (*Run)(const ResidualRows&, const Tensor& like)>
std::tuple<Tensor, Tensor> residual_op(const Tensor& p, const Tensor& q, const OptTensor& num_rows) {
  const Op op("residual", p);
  check_given(op, "p", p, "q", q);
  ResidualRows a;
  a.p = row_memory(op, "p", p);
  const int64_t N = a.N = p.size(0), V = a.p.V;
  if (q.scalar_type() == ScalarType::Long || q.scalar_type() == ScalarType::Int) {
    check_shape(op, "q", q, {{"N", N}});
    a.q_ids = ints(op, "q", q, q.stride(0));
  } else {
    const ScalarType dtype = q.scalar_type();
    check(dtype == ScalarType::Float || dtype == ScalarType::BFloat16 || dtype == ScalarType::Half, op,
          "q must be float32, bfloat16, float16, int32 or int64, got ", DtypeOfTensor{q});
    a.q = row_memory(op, "q", q, "N, Vq");
    check_shape(op, "q", q, {{"N", N}, {"Vq", a.q.V}});
  }
  a.present = present(op, "num_rows", num_rows);

  Tensor probs = result(op, {N, V}, a.probs), mass = result(op, {N}, a.mass);
  if (N > 0) Run(a, p);
  return {probs, mass};
}

}  // namespace specdec
