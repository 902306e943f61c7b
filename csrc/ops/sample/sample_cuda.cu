// SPDX-License-Identifier: Apache-2.0
// The blocks of a row reduce its chunks; the last of them to finish makes the draws.
#include <torch/csrc/stable/library.h>

#include "../../cuda/block_executor.cuh"
#include "../../cuda/list_entries.cuh"
#include "sample_op.h"

namespace specdec {
namespace {

struct Draws {
  Sample a;
  ChunkTable tables;
  RowGrid grid;

  SPECDEC_DEVICE ChunkTable table(int64_t n) const { return tables.row(n, chunk_count(a.logits.V)); }
};

// The stats of a row of logits without its removed ids. Rarely run, so not inlined.
SPECDEC_APART RowStats stats_of_rest(Row row, RowStats stats, Few removed, ChunkTable table, const Listed* ids) {
  Dist p;
  p.kind = Kind::kLogits, p.row = row, p.stats = stats;
  reduce_chunks_without(p, removed, 0, turns(chunk_count(row.V), 1), table, ids);
  __syncthreads();
  return block_stats_without(p, table, table.sum);
}

// A BlockExecutor that draws repeatedly from one row. exclude() takes the last drawn id out of its sums. A row by id is
// drawn from as its entries lie.
class SampleExecutor : public BlockExecutor {
 public:
  SPECDEC_DEVICE SampleExecutor(const Draws& s, int64_t n, const RowStats& stats, Held held)
      : BlockExecutor(stats, s.table(n).sum, s.a.stats_in ? nullptr : s.table(n).max, held), s_(s), n_(n) {}

  using BlockExecutor::sum;
  SPECDEC_DEVICE double sum(const Dist& p, const Dist& q) { return BlockExecutor::sum(as_it_lies(p), q); }
  SPECDEC_DEVICE int64_t argmax_finite(const Row& row) const {
    return id_at(row, BlockExecutor::argmax_finite(row.as_it_lies()));
  }

  // Adds the chunk sums up again: over many draws no register is free to keep what sum() found.
  SPECDEC_DEVICE int64_t draw(const Dist& p, const Dist& q, double v) const {
    const Dist lying = as_it_lies(p);
    const int64_t at = block_draw(
        block_choose(lying.row.V, v, sum_),
        [&](const ThreadRun& at, auto& w, const auto& meanwhile) { weigh_left(lying, q, at, w, meanwhile); });
    return id_at(p.row, at);
  }

  // Removes the last drawn id from the sums of p. Its chunk is summed again, since what is left of it may be far
  // smaller than what was removed. Returns the distribution of the next draw, of kind kNothing if nothing is left.
  SPECDEC_DEVICE Dist exclude(const Dist& p, const Few& removed) {
    removed_ = removed;
    const int64_t last = removed[removed.n - 1];
    const Dist lying = as_it_lies(p);
    if (s_.a.logits.ids) {
      const Listed& listed = *listed_row();
      int64_t before = -1;
#pragma unroll 1
      for (int i = first_place(listed, last); i < listed.n && listed.places[i].id == last; ++i) {
        const int64_t chunk = clamped(listed.places[i].at, listed.k - 1) / kChunk;
        if (chunk != before) sum_again(lying, chunk);
        before = chunk;
      }
    } else {
      sum_again(lying, last / kChunk);
    }
    const double total = block_sum_of(lying.row.V, sum_);
    if (total >= kEnough) return p;
    Dist left = p;
    left.stats = stats_of_rest(lying.row, p.stats, removed, s_.table(n_), listed_row());
    return left.valid() ? left : Dist{};
  }

 private:
  SPECDEC_DEVICE const Listed* listed_row() const { return s_.a.logits.ids ? s_.a.logits.ids.listed + n_ : nullptr; }
  SPECDEC_DEVICE static int64_t id_at(const Row& row, int64_t at) {
    return row.is_listed() ? clamped(row.listed()->of(at), kIdsEnd - 1) : at;
  }
  SPECDEC_DEVICE static Dist as_it_lies(const Dist& p) {
    Dist lying = p;
    lying.row = p.row.as_it_lies();
    return lying;
  }

  SPECDEC_DEVICE void sum_again(const Dist& lying, int64_t chunk) {
    __syncthreads();
    float w[ThreadRun::kEntries];
    weigh_left(lying, Dist{}, thread_run(chunk), w, [] {});
    double own = 0;
    for (const float x : w) own += x;
    const double rest = block_scan(own).total;
    if (leads()) __stcg(sum_ + chunk, float(rest));
    __syncthreads();
  }

  // The weights without the ids that were drawn before
  template <class Meanwhile>
  SPECDEC_DEVICE void weigh_left(const Dist& lying, const Dist& q, const ThreadRun& at, float (&w)[ThreadRun::kEntries],
                                 const Meanwhile& meanwhile) const {
    weigh(lying, q, at, w, meanwhile);
#pragma unroll 1
    for (int64_t i = 0; i < removed_.n; ++i) {
      const int64_t gone = removed_[i];
#pragma unroll
      for (int r = 0; r < ThreadRun::kEntries; ++r) {
        if (s_.a.logits.ids ? listed_row()->is_at(gone, at.id(r)) : gone == at.id(r)) w[r] = 0;
      }
    }
  }

  const Draws& s_;
  const int64_t n_;
  Few removed_;
};

// Blocks that must fit an SM. On sm_100 and newer the walk over draws needs about 90 registers, and must not spill.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kResident = 2;
#else
constexpr int kResident = 3;
#endif

template <bool kFiltered>
__global__ void __launch_bounds__(kThreads, kFiltered ? 2 : kResident) draws(const Draws s) {
  const int64_t n = s.grid.row();
  if (!s.a.present.has(n)) {
    if (s.grid.part() == 0) put_absent(s.a, n, threadIdx.x, kThreads);
    return;
  }
  const Row row = s.a.logits.at(0, n);
  const Filters filters = s.a.sampling.at<kFiltered>(n);
  Dist q;
  if (s.a.stats_in) q = from_stats(s.a.logits.of_ids(n), stats_at(s.a.stats_in, n)), q.row = row;
  if (q.kind == Kind::kLogits)
    sum_chunks(q, Dist{}, NoSpecialChunks{}, s.grid.part(), s.grid.per_warp, nullptr, s.table(n).sum);
  else if (!s.a.stats_in)
    reduce_chunks<kFiltered>(row, filters.scale(), s.grid.part(), s.grid.per_warp, s.table(n).under(filters, row.V));
  if (!s.grid.last()) return;

  RowStats stats{};
  if (!s.a.stats_in) stats = block_stats<kFiltered>(row, filters, s.table(n));
  if (!s.a.stats_in && s.a.logits.ids) stats = stats_by_id(s.a.logits.ids.listed + n, stats);
  const bool held = s.a.stats_in || !filters.any(row.V);
  SampleExecutor executor(s, n, stats, held ? BlockExecutor::kPlain : BlockExecutor::kNothingHeld);
  sample(executor, s.a, n);
}

void run(const Sample& a, const Tensor& like) {
  constexpr const char* kOp = "sample";
  const OnDeviceOf device(like);
  Scratch scratch;
  const RowGridRoom room(scratch, a.N, a.logits.V, a.sampling.filters());
  scratch.allocate(like);
  Draws s{a, {}, {}};
  SeenRows& rows = s.a.logits;
  const ViewsRoom views(like, rows, a.N);
  const EntriesRoom entries(like, rows.ids, rows.views, rows.V, a.N, kIdsEnd, false);
  room.take(kOp, scratch, device.stream, s.grid, s.tables);
  views.make(kOp, rows, a.N, device.stream);
  entries.make(kOp, rows, a.N, views.lists(0), device.stream);
  if (a.sampling.filters())
    SPECDEC_LAUNCH(kOp, draws<true>, a.N * s.grid.blocks, device.stream, s);
  else
    SPECDEC_LAUNCH(kOp, draws<false>, a.N * s.grid.blocks, device.stream, s);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, SPECDEC_CUDA_KEY, m) {
  m.impl("sample", TORCH_BOX(&PlainSample<run>::call));
  m.impl("sample.views", TORCH_BOX(&sample_op<run>));
}

}  // namespace specdec
