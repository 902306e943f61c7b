// SPDX-License-Identifier: Apache-2.0
// Makes uniforms' parameters from its tensors, on any device. The template parameter Run then does the work.
#pragma once

#include "../../binding/check.h"
#include "uniforms.h"

namespace specdec {

template <void (*Run)(const Uniforms&, const Tensor& like)>
Tensor uniforms_op(const Tensor& seed, const Tensor& offset, int64_t n, int64_t domain) {
  const Op op("uniforms", seed);
  check_given(op, "seed", seed, "offset", offset);
  Uniforms a;
  check_dims(op, "seed", seed, "B");
  a.B = seed.size(0);
  check_shape(op, "offset", offset, {{"B", a.B}});
  check(n >= 0 && n <= kSlots, op, "n must be in [0, 2^33], got ", n);
  check(domain >= 0 && domain < int64_t{1} << 32, op, "domain must be in [0, 2^32), got ", domain);
  a.n = n;
  a.domain = uint32_t(domain);
  a.seed = int64s(op, "seed", seed, seed.stride(0));
  a.offset = int64s(op, "offset", offset, offset.stride(0));

  Tensor u = result(op, {a.B, n}, a.out);
  if (a.B * n > 0) Run(a, seed);
  return u;
}

}  // namespace specdec
