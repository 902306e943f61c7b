// SPDX-License-Identifier: Apache-2.0
// From residual's tensors to its parameters, on any device; Run then does the work.
#pragma once

#include <tuple>

#include "../../binding/check.h"
#include "residual.h"

namespace specdec {

template <void (*Run)(const ResidualRows&, const Tensor& like)>
std::tuple<Tensor, Tensor> residual_op(const Tensor& p, const Tensor& q, const OptTensor& num_rows) {
  const Op op("residual", p);
  check_given(op, "p", p, "q", q);
  check_dim(op, "p", p, 2);
  ResidualRows a;
  const int64_t N = a.N = p.size(0), V = p.size(1);
  a.p = {p.const_data_ptr(), V, 0, p.stride(0), check_rows(op, "p", p)};
  if (q.scalar_type() == ScalarType::Long || q.scalar_type() == ScalarType::Int) {
    check_shape(op, "q", q, {N});
    a.q_ids = ints(op, "q", q, q.stride(0));
  } else {
    check_dim(op, "q", q, 2);
    a.q = {q.const_data_ptr(), q.size(1), 0, q.stride(0), check_rows(op, "q", q)};
    check_shape(op, "q", q, {N, a.q.V});
  }
  a.present = present(op, "num_rows", num_rows);

  Tensor probs = empty(op, {N, V}, ScalarType::Float), mass = empty(op, {N}, ScalarType::Double);
  a.probs = out_pointer<float>(probs);
  a.mass = out_pointer<double>(mass);
  if (N > 0) Run(a, p);
  return {probs, mass};
}

}  // namespace specdec
