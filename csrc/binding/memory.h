// SPDX-License-Identifier: Apache-2.0
// Finds arguments that share memory with a tensor that an op writes to. No argument may do so.
#pragma once

#include "check.h"

namespace specdec {

// The range of addresses of a tensor's entries
struct Extent {
  const char *begin = nullptr, *end = nullptr;
  explicit Extent(const Tensor& t) {
    if (!t.defined() || !has_memory(t) || t.numel() == 0) return;
    int64_t last = 0;
    for (int64_t i = 0; i < t.dim(); ++i) last += (t.size(i) - 1) * t.stride(i);
    begin = static_cast<const char*>(t.const_data_ptr());
    end = begin + (last + 1) * int64_t(t.element_size());
  }
  bool meets(const Extent& other) const { return begin < other.end && other.begin < end; }
};

// Whether an argument of any type shares memory with `out`
inline bool share_memory(const Extent& out, const Tensor& argument) { return out.meets(Extent(argument)); }
inline bool share_memory(const Extent& out, const OptTensor& argument) {
  return argument && share_memory(out, *argument);
}
template <class Other>
bool share_memory(const Extent&, const Other&) {
  return false;
}

}  // namespace specdec
