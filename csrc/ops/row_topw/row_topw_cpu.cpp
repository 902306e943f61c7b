// SPDX-License-Identifier: Apache-2.0
// One pass over a row computes its stats, unless they are given, and the largest entry of every chunk. After it, only
// the chunks that may have one of the w best are read.
#include "../../binding/cpu_op.h"
#include "../../cpu/best_ids.h"
#include "../../cpu/for_requests.h"
#include "row_topw_op.h"

namespace specdec {
namespace {

// The smallest logit whose score is at least `least`; NaN, which nothing reaches, if there is none
float logit_worth(const Extension& worth, float least) {
  uint32_t lo = ordered(-HUGE_VALF), hi = ordered(HUGE_VALF);
  if (!(worth(HUGE_VALF) >= least)) return NAN;
  while (lo < hi) {
    const uint32_t mid = lo + (hi - lo) / 2;
    worth(from_ordered(mid)) >= least ? hi = mid : lo = mid + 1;
  }
  return from_ordered(lo);
}

// A score that at least w ids reach: the w-th largest of the best scores of the chunks; -inf if there are fewer chunks
float bound(std::vector<float> best_of, int64_t w) {
  if (w > int64_t(best_of.size())) return -HUGE_VALF;
  std::nth_element(best_of.begin(), best_of.begin() + (w - 1), best_of.end(), std::greater<float>());
  return best_of[w - 1];
}

void search(const RowTopW& a, int64_t n, const Extension& worth, const std::vector<float>& best_of, BestIds& best) {
  const RowReader reader;
  const Row row = a.logits.at(0, n);
  best.clear(bound(best_of, a.w));
  float reaching = logit_worth(worth, best.least());
  for (int64_t c = 0; c < int64_t(best_of.size()); ++c) {
    if (!(best_of[c] >= best.least())) continue;
    float buf[kChunk];
    const int size = chunk_size(row.V, c);
    const float* z = reader.floats(row, c, NAN, buf);
    const auto add = [&](int i) { best.add(worth(z[i]), c * kChunk + i); };
    if (best.least() > -HUGE_VALF)
      for_reaching(reader.kernels, z, size, reaching, add);
    else  // all entries, also NaN, which for_reaching() leaves out
      for (int i = 0; i < size; ++i) add(i);
    if (best.drop_worst()) reaching = logit_worth(worth, best.least());
  }
}

// The best score of each chunk
void measure(const RowTopW& a, int64_t n, const CpuExecutor& executor, const Extension& worth,
             std::vector<float>& best_of) {
  const Row row = a.logits.at(0, n);
  best_of.resize(chunk_count(row.V));
  for (int64_t c = 0; c < int64_t(best_of.size()); ++c)
    best_of[c] = worth(a.stats ? executor.max_of_chunk(row, c) : executor.chunk_max(c));
}

void run(const RowTopW& a, const Tensor&) {
  const auto walk = [&](CpuExecutor& executor, int64_t n) {
    const Extension worth = a.extension(n, a.stats ? RowStats{} : executor.stats(a.logits.at(0, n), Filters{}));
    if (worth.flat()) {
      for (int64_t i = 0; i < a.w; ++i) a.put(n, i, worth.flat_order(i));
      return;
    }
    BestIds best(a.w);
    std::vector<float> best_of;
    measure(a, n, executor, worth, best_of);
    search(a, n, worth, best_of, best);
    const std::vector<uint64_t>& orders = best.in_order();
    for (int64_t i = 0; i < a.w; ++i) a.put(n, i, orders[i]);
  };
  for_requests(a.present, a.N, a.logits.V, walk, [&](int64_t n) {
    for (int64_t i = 0; i < a.w; ++i) a.put_nothing(n, i);
  });
}

}  // namespace

SPECDEC_CPU_OP("row_topw", PlainRowTopw, ::call)
SPECDEC_CPU_OP("row_topw.views", row_topw_op)

}  // namespace specdec
