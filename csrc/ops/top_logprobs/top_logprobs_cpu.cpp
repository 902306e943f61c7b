// SPDX-License-Identifier: Apache-2.0
// Reads a row in one pass. Each chunk adds the ids that may be among the k best. To the rank of each given token, it
// adds the number of logits that are at least the token's.
#include "../../binding/cpu_op.h"
#include "../../cpu/best_ids.h"
#include "../../cpu/for_requests.h"
#include "top_logprobs_op.h"

namespace specdec {
namespace {

void add_chunk(const RowKernels& kernels, const float* z, int64_t c, int n, BestIds& best) {
  for_reaching(kernels, z, n, best.least(), [&](int i) { best.add(z[i], c * kChunk + i); });
  best.drop_worst();
}

void walk(const TopLogprobs& a, int64_t n, const RowReader& reader, BestIds& best, std::vector<float>& token_logits) {
  const Dist p = a.dist(n);
  const Row row = a.logits.at(0, n);
  int64_t* ranks = a.token_ranks + n * a.m;
  for (int64_t j = 0; j < a.m; ++j) token_logits[j] = a.token_logit(row, n, j), ranks[j] = 0, a.put_token(p, n, j);
  best.clear();
  for (int64_t c = 0; c < chunk_count(row.V); ++c) {
    float buf[kChunk];
    uint32_t bits[kChunk / 32];
    const int size = chunk_size(row.V, c);
    const float* z = reader.floats(row, c, NAN, buf);
    if (a.k) add_chunk(reader.kernels, z, c, size, best);
    for (int64_t j = 0; j < a.m; ++j) ranks[j] += reader.kernels.reach(z, size, token_logits[j], bits);
  }
  for (int64_t v = 0; v < row.V && !best.full(); ++v) {  // ids with NaN rank last
    const float z = row.entry(v);
    if (z != z) best.add(z, v);
  }
  const std::vector<uint64_t>& orders = best.in_order();
  for (int64_t i = 0; i < a.k; ++i) a.put(p, n, i, orders[i]);
}

void run(const TopLogprobs& a, const Tensor&) {
  const RowReader reader;
  for_rows(a.N, a.logits.V, [&](int64_t begin, int64_t end) {
    BestIds best(a.k);
    std::vector<float> token_logits(a.m);
    for (int64_t n = begin; n < end; ++n) {
      if (a.present.has(n)) {
        walk(a, n, reader, best, token_logits);
      } else {
        for (int64_t i = 0; i < std::max(a.k, a.m); ++i) a.put_nothing(n, i);
      }
    }
  });
}

}  // namespace

SPECDEC_CPU_OP("top_logprobs", PlainTopLogprobs, ::call)
SPECDEC_CPU_OP("top_logprobs.views", top_logprobs_op)

}  // namespace specdec
