// SPDX-License-Identifier: Apache-2.0
// One pass over a row: a chunk leaves the ids that may be among the best, and what it adds to each token's rank.
#include <torch/csrc/stable/library.h>

#include <bit>
#include <functional>

#include "../../cpu/row_executor.h"
#include "top_logprobs_op.h"

namespace specdec {
namespace {

// The k best ids of those it was shown, which come in ascending order. It holds a few more before it lets the worst go,
// so that a row costs much less than its sort.
class Best {
 public:
  explicit Best(int64_t k) : k_(k), most_(2 * k + 64) {}

  void clear() { orders_.clear(), least_ = -HUGE_VALF; }
  // A logit below this is none of them: an id that only ties with the k-th best comes after it.
  float least() const { return least_; }
  bool full() const { return int64_t(orders_.size()) >= k_; }

  void add(float z, int64_t id) { orders_.push_back(order_of(z, id)); }
  void let_go() {
    if (int64_t(orders_.size()) <= most_) return;
    cut();
    least_ = std::nextafter(from_ordered(uint32_t(orders_.back() >> 32)), HUGE_VALF);
  }
  // Best first.
  const std::vector<uint64_t>& in_order() {
    cut();
    std::sort(orders_.begin(), orders_.end(), std::greater<uint64_t>());
    return orders_;
  }

 private:
  // Leaves the k best, the last of them at the end.
  void cut() {
    if (int64_t(orders_.size()) <= k_) return;
    std::nth_element(orders_.begin(), orders_.begin() + (k_ - 1), orders_.end(), std::greater<uint64_t>());
    orders_.resize(k_);
  }

  int64_t k_, most_;
  float least_ = -HUGE_VALF;
  std::vector<uint64_t> orders_;
};

void add_chunk(const RowKernels& kernels, const float* z, int64_t c, int n, Best& best) {
  uint32_t bits[kChunk / 32];
  if (!kernels.reach(z, n, best.least(), bits)) return;
  for (int w = 0; 32 * w < n; ++w)
    for (uint32_t word = bits[w]; word; word &= word - 1) {
      const int i = 32 * w + std::countr_zero(word);
      best.add(z[i], c * kChunk + i);
    }
  best.let_go();
}

void walk(const TopLogprobs& a, int64_t n, const RowKernels& kernels, Best& best, std::vector<float>& token_logits) {
  const Dist p = a.dist(n);
  const Row row = a.logits.at(0, n);
  int64_t* ranks = a.token_ranks + n * a.m;
  for (int64_t j = 0; j < a.m; ++j) token_logits[j] = a.token_logit(row, n, j), ranks[j] = 0, a.put_token(p, n, j);
  best.clear();
  for (int64_t c = 0; c < chunk_count(row.V); ++c) {
    float buf[kChunk];
    uint32_t bits[kChunk / 32];
    const int size = chunk_size(row.V, c);
    const float* z = kernels.load(row, c * kChunk, size, size, NAN, buf);
    if (a.k) add_chunk(kernels, z, c, size, best);
    for (int64_t j = 0; j < a.m; ++j) ranks[j] += kernels.reach(z, size, token_logits[j], bits);
  }
  for (int64_t v = 0; v < row.V && !best.full(); ++v) {  // nothing reaches NaN: what is left to fill up with
    const float z = load_scalar(row, v);
    if (z != z) best.add(z, v);
  }
  const std::vector<uint64_t>& orders = best.in_order();
  for (int64_t i = 0; i < a.k; ++i) a.put(p, n, i, orders[i]);
}

void run(const TopLogprobs& a, const Tensor&) {
  const RowKernels& kernels = rows();
  for_rows(a.N, a.logits.V, [&](int64_t begin, int64_t end) {
    Best best(a.k);
    std::vector<float> token_logits(a.m);
    for (int64_t n = begin; n < end; ++n) {
      if (a.present.has(n)) {
        walk(a, n, kernels, best, token_logits);
      } else {
        for (int64_t i = 0; i < std::max(a.k, a.m); ++i) a.put_nothing(n, i);
      }
    }
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, CPU, m) { m.impl("top_logprobs", TORCH_BOX(&top_logprobs_op<run>)); }

}  // namespace specdec
