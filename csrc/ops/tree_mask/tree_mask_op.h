// SPDX-License-Identifier: Apache-2.0
// Makes tree_mask's parameters from its tensors, on any device. The template parameter Run then does the work.
#pragma once

#include <tuple>

#include "../../binding/check.h"
#include "tree_mask.h"

namespace specdec {

inline ScalarType mask_dtype(MaskFormat f) {
  constexpr ScalarType dtypes[] = {ScalarType::Bool, ScalarType::Float, ScalarType::Double, ScalarType::BFloat16,
                                   ScalarType::Half, ScalarType::Byte,  ScalarType::UInt32, ScalarType::UInt64};
  return dtypes[f];
}

inline void check_tree(const Op& op, const TreeMask& a) {
  if (!values_at_hand(op)) return;
  for (int64_t b = 0; b < a.B; ++b) {
    const auto check_length = [&](const char* name, const Ints& x) {
      check(!x || is_length(x[b]), op, name, " must be >= 0 and below 2^62, got ", x ? x[b] : 0, " at index ", b);
    };
    check_length("prefix_len", a.prefix_len);
    check_length("tree_start", a.tree_start);
    for (int64_t i = 0; i < a.N; ++i)
      check(!a.bad_parent(b, i), op, "parents[", b, ", ", i, "] must be in [-1, ", i, "), got ", a.given_parent(b, i));
  }
}

template <void (*Run)(const TreeMask&, const Tensor& like)>
std::tuple<Tensor, Tensor, Tensor, Tensor> tree_mask_op(const Tensor& parents, const OptTensor& prefix_len,
                                                        const OptTensor& tree_start, int64_t num_keys, int64_t format) {
  const Op op("tree_mask", parents);
  check_given(op, "parents", parents);
  check_dims(op, "parents", parents, "B, N");
  check(num_keys >= -1 && num_keys <= 1 << 30, op, "num_keys must be in [0, 2^30], or -1 for the nodes alone, got ",
        num_keys);
  check(format >= 0 && format < kMaskFormats, op, "format must be in [0, ", int(kMaskFormats), "), got ", format);
  TreeMask a;
  const int64_t B = a.B = parents.size(0), N = a.N = parents.size(1);
  check(N <= 1 << 20, op, "parents must have at most 2^20 nodes, got ", N);
  a.nodes_only = num_keys < 0;
  a.keys = a.nodes_only ? N : num_keys;
  a.parents = ints(op, "parents", parents, 1);
  a.strides[0] = parents.stride(0);
  a.strides[1] = parents.stride(1);
  a.prefix_len = ints_per_row(op, "prefix_len", prefix_len, B);
  a.tree_start = ints_per_row(op, "tree_start", tree_start, B);
  a.format = MaskFormat(format);
  check_tree(op, a);

  const ScalarType dtype = mask_dtype(a.format);
  const int64_t words = a.packed_words();
  Tensor mask = a.format == kMaskUint8    ? empty(op, {B, a.packed_bytes()}, dtype)
                : is_element(a.format)    ? empty(op, {B, N, a.keys}, dtype)
                : a.format == kMaskUint64 ? empty(op, {B, N, words / 2}, dtype)
                                          : empty(op, {B, N, words}, dtype);
  a.mask = mask.mutable_data_ptr();
  // If the mask is packed in 32-bit or 64-bit words and its keys are the nodes alone, the ancestors' bits are the mask
  // itself. Else they are scratch memory.
  const bool direct = a.nodes_only && (a.format == kMaskUint32 || a.format == kMaskUint64);
  a.W = direct ? words : (N + 31) / 32;
  Tensor ancestors = direct ? mask : empty(op, {B, N, a.W}, ScalarType::Int);
  a.ancestors = static_cast<uint32_t*>(ancestors.mutable_data_ptr());
  Tensor depth = result(op, {B, N}, a.depth), positions = result(op, {B, N}, a.positions);
  Tensor status = result(op, {B}, a.status);
  if (B > 0) Run(a, parents);
  return {mask, depth, positions, status};
}

}  // namespace specdec
