// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "../../binding/cpu_op.h"
#include "../../cpu/for_requests.h"
#include "support_op.h"

namespace specdec {
namespace {

// Sets the bits of the ids that p keeps. Returns how many there are.
int32_t fill(const Dist& p, int64_t words, const RowReader& reader, uint32_t* bits) {
  if (p.kind != Kind::kLogits) {
    std::fill(bits, bits + words, 0u);
    if (p.kind != Kind::kOneHot) return 0;
    bits[p.hot / 32] = 1u << p.hot % 32;
    return 1;
  }
  int32_t count = 0;
  for (int64_t c = 0; c < chunk_count(p.row.V); ++c) {
    float buf[kChunk];
    const int n = chunk_size(p.row.V, c);
    const float* z = reader.floats(p.row, c, NAN, buf);
    count += reader.kernels.reach(z, n, p.stats.cutoff, bits + c * (kChunk / 32));
  }
  return count;
}

void run(const Support& a, const Tensor&) {
  const RowReader reader;
  for_rows(a.M, a.logits.V, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      uint32_t* bits = a.bits + i * a.words;
      a.counts[i] = fill(a.dist(i), a.words, reader, bits);
      int32_t *at = a.ids + i * a.max_kept, *const behind = at + a.max_kept;
      for (int64_t w = 0; w < a.words && at < behind; ++w)
        for (uint32_t word = bits[w]; word && at < behind; word &= word - 1)
          *at++ = int32_t(32 * w + std::countr_zero(word));
      std::fill(at, behind, -1);
    }
  });
}

}  // namespace

SPECDEC_CPU_OP("support", PlainSupport, ::call)
SPECDEC_CPU_OP("support.views", support_op)

}  // namespace specdec
