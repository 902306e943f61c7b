// SPDX-License-Identifier: Apache-2.0
// What verify_chain and verify_tree are both given.
#pragma once

#include "../core/side.h"
#include "check.h"

namespace specdec {

// Rows of one side, of shape [..., V]: `shape` tells what stands before V, and per_request is its last.
inline Side side(const Op& op, const std::string& name, const Tensor& rows, int64_t kind, const OptTensor& stats,
                 const Sampling& sampling, std::vector<int64_t> shape) {
  const std::string logits = name + "_logits", floats = name + "_stats";
  check(kind == 0 || kind == 1, op, name, "_kind must be 0 (logits) or 1 (probabilities), got ", kind);
  const int64_t dim = int64_t(shape.size()) + 1;
  check_dim(op, logits.c_str(), rows, dim);
  Side s;
  s.rows = {rows.const_data_ptr(), rows.size(dim - 1), dim == 3 ? rows.stride(0) : 0, rows.stride(dim - 2),
            check_rows(op, logits.c_str(), rows)};
  shape.push_back(s.rows.V);
  check_shape(op, logits.c_str(), rows, shape);
  s.kind = kind == 0 ? Kind::kLogits : Kind::kProbs;
  s.per_request = shape[dim - 2];
  s.sampling = sampling;
  if (stats) {
    shape.back() = 4;
    check_shape(op, floats.c_str(), *stats, shape);
    s.stats = stats_pointer(op, floats.c_str(), *stats);
  }
  check(kind == 0 || (!stats && !sampling), op, name, "_stats and sampling parameters need logits, got ", name,
        "_kind 1 (probabilities)");
  check(!stats || !sampling, op, name, "_stats already hold the sampling parameters: give one or the other");
  return s;
}

// seed and offset [B], or uniforms [B, columns], of an op's arguments `a`; without any, `certain` says that nothing may
// be left to chance.
template <class Arguments>
void take_randomness(const Op& op, Arguments& a, int64_t B, int64_t columns, const OptTensor& seed,
                     const OptTensor& offset, const OptTensor& uniforms, bool certain) {
  if (uniforms) a.uniforms = uniforms_pointer(op, *uniforms, B, columns);
  a.seed = ints_per_row(op, "seed", seed, B);
  a.offset = ints_per_row(op, "offset", offset, B);
  check(seed.has_value() == offset.has_value(), op, "seed and offset go together, got ", seed ? "seed" : "offset",
        " alone");
  check(uniforms || seed || certain, op, "needs seed and offset, or uniforms, got neither");
}

}  // namespace specdec
