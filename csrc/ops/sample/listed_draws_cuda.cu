// SPDX-License-Identifier: Apache-2.0
// Draws from rows by id. They have a kernel of their own, since that of other draws (sample_cuda.cu) has no registers
// to spare.
#define SPECDEC_READS_IDS
#include "draws.cuh"

namespace specdec {
namespace {

// Like a SampleExecutor, but for a row by id. It draws an entry of the row as stored, and returns the id of that entry.
// exclude() removes all entries of the id.
class ListedExecutor : public BlockExecutor {
 public:
  SPECDEC_DEVICE ListedExecutor(const Draws& s, int64_t n, const RowStats& stats)
      : BlockExecutor(stats, s.table(n).sum, nullptr, kPlain), s_(s), n_(n) {}

  SPECDEC_DEVICE double sum(const Dist&, const Dist&) const { return block_sum_of(s_.a.logits.V, sum_); }
  SPECDEC_DEVICE int64_t argmax_finite(const Row& row) const {
    const Row stored = row.as_stored();
    const int64_t at = BlockExecutor::argmax_finite(stored);
    return fabsf(stored.entry(at)) < HUGE_VALF ? id_at(at) : 0;
  }
  SPECDEC_DEVICE int64_t draw(const Dist& p, const Dist&, double v) const {
    return id_at(
        block_draw(block_choose(s_.a.logits.V, v, sum_), [&](const ThreadRun& at, auto& w, const auto& meanwhile) {
          meanwhile();
          weigh_left(p, at, w);
        }));
  }

  // As SampleExecutor::exclude()
  SPECDEC_DEVICE Dist exclude(const Dist& p, const Few& removed) {
    removed_ = removed;
    __syncthreads();
    const int64_t id = removed[removed.n - 1];
    int64_t last = -1;
#pragma unroll 1
    for (int i = first_place(row(), int(id)); i < row().n && row().places[i].id == id; ++i) {
      const int64_t chunk = clamped(row().places[i].at, row().k - 1) / kChunk;
      if (chunk != last) sum_again(p, chunk);
      last = chunk;
    }
    if (block_sum_of(s_.a.logits.V, sum_) >= kEnough) return p;
    Dist left = p;
    left.stats = stats_of_rest(p.row.as_stored(), p.stats, removed, s_.table(n_), &row());
    return left.valid() ? left : Dist{};
  }

 private:
  SPECDEC_DEVICE const Listed& row() const { return s_.a.logits.ids.listed[n_]; }
  SPECDEC_DEVICE int64_t id_at(int64_t at) const { return clamped(row().of(at), kIdsEnd - 1); }

  SPECDEC_DEVICE void sum_again(const Dist& p, int64_t chunk) const {
    __syncthreads();
    float w[ThreadRun::kEntries];
    weigh_left(p, thread_run(chunk), w);
    double own = 0;
    for (const float x : w) own += x;
    const double rest = block_scan(own).total;
    if (leads()) __stcg(sum_ + chunk, float(rest));
    __syncthreads();
  }

  // The weights of entries without the ids that were drawn before
  SPECDEC_DEVICE void weigh_left(const Dist& p, const ThreadRun& at, float (&w)[ThreadRun::kEntries]) const {
    at.load(p.row.as_stored(), -HUGE_VALF, w);
    to_target_weights(p, w);
#pragma unroll 1
    for (int64_t i = 0; i < removed_.n; ++i) {
      const int64_t gone = removed_[i];
#pragma unroll
      for (int r = 0; r < ThreadRun::kEntries; ++r) w[r] = row().is_at(gone, at.id(r)) ? 0.0f : w[r];
    }
  }

  const Draws& s_;
  const int64_t n_;
  Few removed_;
};

__global__ void __launch_bounds__(kThreads, 1) draws_by_id(const Draws s) {
  const int64_t n = s.grid.row();
  if (!s.a.present.has(n)) {
    if (s.grid.part() == 0) put_absent(s.a, n, threadIdx.x, kThreads);
    return;
  }
  const Row row = s.a.logits.of_ids(n);
  const RowStats stats = s.a.stats_in ? stats_at(s.a.stats_in, n) : stats_by_id(row.listed(), s.a.stats[n]);
  Dist stored = from_stats(row, stats);
  stored.row = row.as_stored();
  if (stored.kind == Kind::kLogits)
    sum_chunks(stored, Dist{}, NoSpecialChunks{}, s.grid.part(), s.grid.per_warp, nullptr, s.table(n).sum);
  if (!s.grid.last()) return;
  ListedExecutor executor(s, n, stats);
  sample(executor, s.a, n);
}

}  // namespace

void launch_draws_by_id(const Draws& s, [[maybe_unused]] cudaStream_t stream) {
  SPECDEC_LAUNCH("sample", draws_by_id, s.a.N * s.grid.blocks, stream, s);
}

}  // namespace specdec
