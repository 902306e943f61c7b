// SPDX-License-Identifier: Apache-2.0
// Two launches. In the first, each thread makes one word of a node's ancestors: it walks up from the node. In the
// second, each thread writes one unit of the mask (tree_mask.h). No block waits for another.
#include "../../cuda/launch.h"
#include "tree_mask.h"

namespace specdec {
namespace {

__global__ void __launch_bounds__(kThreads) climb(const TreeMask a) {
  const int64_t at = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= a.B * a.N * a.W) return;
  const int64_t row = quotient(at, a.W), w = at - row * a.W, b = quotient(row, a.N), i = row - b * a.N;
  uint32_t bits = 0;
  int32_t nodes = 0;
  // Parents have lower numbers than children: once the walk is below node 32 * w, no other ancestor is in word w.
  for (int64_t j = i; j >= 32 * w && j >= 0; j = a.parent(b, j), ++nodes)
    if (j >> 5 == w) bits |= 1u << (j & 31);
  a.ancestors[at] = bits;
  if (w > 0) return;
  a.put_node(b, i, nodes - 1);
  const int32_t status = (a.bad_parent(b, i) ? kBadParent : 0) | (i == 0 && a.bad_position(b) ? kBadPosition : 0);
  if (status) atomicOr(a.status + b, status);
}

template <int kFormat>
__global__ void __launch_bounds__(kThreads) put_units(const TreeMask a, int64_t units) {
  const int64_t unit = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (unit < units) a.put_unit<MaskFormat(kFormat)>(unit);
}

}  // namespace

void run(const TreeMask& a, const Tensor& like) {
  const OnDeviceOf device(like);
  check_cuda("tree_mask", cudaMemsetAsync(a.status, 0, a.B * sizeof(int32_t), device.stream));
  const int64_t words = a.B * a.N * a.W, units = a.units();
  if (words > 0) SPECDEC_LAUNCH("tree_mask", climb, (words + kThreads - 1) / kThreads, device.stream, a);
  if (!has_units(a)) return;
  with_format(a.format, [&](auto format) {
    constexpr int kFormat = decltype(format)::value;
    SPECDEC_LAUNCH("tree_mask", put_units<kFormat>, (units + kThreads - 1) / kThreads, device.stream, a, units);
  });
}

}  // namespace specdec
