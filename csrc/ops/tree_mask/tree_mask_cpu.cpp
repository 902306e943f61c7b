// SPDX-License-Identifier: Apache-2.0
#include "../../binding/cpu_op.h"
#include "../../threads.h"
#include "tree_mask_op.h"

namespace specdec {
namespace {

// Parents come before their children, so their bits are complete when the children copy them.
void put_nodes(const TreeMask& a, int64_t b) {
  a.status[b] = a.bad_position(b) ? kBadPosition : 0;
  for (int64_t i = 0; i < a.N; ++i) {
    const int64_t parent = a.parent(b, i);
    if (a.bad_parent(b, i)) a.status[b] |= kBadParent;
    uint32_t* row = a.ancestors + (b * a.N + i) * a.W;
    for (int64_t w = 0; w < a.W; ++w) row[w] = parent < 0 ? 0 : a.ancestors[(b * a.N + parent) * a.W + w];
    row[i >> 5] |= 1u << (i & 31);
    a.put_node(b, i, parent < 0 ? 0 : a.depth[b * a.N + parent] + 1);
  }
}

void run(const TreeMask& a, const Tensor&) {
  parallel_for(0, a.B, 1 + 16384 / (a.N * (a.W + 1) + 1), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) put_nodes(a, b);
  });
  if (!has_units(a)) return;
  with_format(a.format, [&](auto format) {
    parallel_for(0, a.units(), 4096, [&](int64_t begin, int64_t end) {
      for (int64_t unit = begin; unit < end; ++unit) a.put_unit<decltype(format)::value>(unit);
    });
  });
}

}  // namespace

SPECDEC_CPU_OP("tree_mask", tree_mask_op)

}  // namespace specdec
