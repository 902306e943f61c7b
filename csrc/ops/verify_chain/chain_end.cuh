// SPDX-License-Identifier: Apache-2.0
// The end of a chain on CUDA. The blocks of a request sum the residual at the position where its walk stops, and the
// last of them draws the final token.
#pragma once

#include "chain_rows.cuh"

namespace specdec {

// What a block of the last launch needs to know of its request b, which stops at position i. In shared memory, like a
// Part (chain_rows.cuh).
struct Ending {
  int64_t b, i;
  float* sums;          // [chunks]: chunk sums of the weights that the token is drawn from
  const float* maxima;  // [chunks]: chunk maxima of p's row, or null
  bool summed;          // `sums` are p's own, left when its stats were made
  int part;             // the index of this block among the request's
  double uniform;       // of the final token
  bool bonus;           // the caller gives the final token
  int64_t bonus_token;
};

// Loads what the caller gives for the final token of a present request. This reads only the caller's inputs. It runs in
// another thread than set_out().
SPECDEC_DEVICE void find_given(const Step& s, int64_t b, Ending& end) {
  if (threadIdx.x != kLanes) return;
  end.uniform = s.a.final_uniform(b);
  end.bonus_token = s.a.bonus_tokens ? s.a.bonus_tokens[b] : 0;
}

// Fills in the rest of `end`; called by one thread. `plain` [chunks]: the chunk sums of the target's distribution,
// which were left there if it has no filters.
SPECDEC_DEVICE void set_out(const Step& s, int64_t start, int64_t b, int64_t i, bool drafted, bool bonus,
                            const DraftTest& test, float* plain, Ending& end) {
  const Rows& target = s.a.target;
  const int64_t V = target.memory.V, chunks = chunk_count(V);
  end.b = b, end.i = i, end.bonus = bonus;
  end.part = int(blockIdx.x % s.residual_blocks);
  end.sums = s.residual + b * chunks, end.maxima = nullptr, end.summed = false;
  if (!s.target.stats) return;
  end.maxima = s.target.table.row(target.index(start, b, i), chunks).max;
  // A one-hot draft is rejected only if p of its token is at most u < 1, so the residual weighs at least 2^-53. p's own
  // chunk sums also count entries that weigh less than 2^-126, while elsewhere these weigh 0. Beside 2^-53 they do not
  // matter. An invalid draft, which is another token than that of its one-hot q, may leave a smaller residual.
  const bool one_hot = test.q.kind == Kind::kOneHot && !(test.status & kInvalidDraft);
  end.summed = (one_hot || (test.q.kind == Kind::kNothing && !drafted)) && !target.sampling[b].any(V);
  if (end.summed) end.sums = plain;
}

// Makes end.sums the chunk sums of (p - q)+. If they are p's own sums so far, one block sums only the chunks that q
// changes.
SPECDEC_DEVICE void sum_at(const Step& s, const Dist& p, const Dist& q, const Ending& end) {
  SpecialChunks& special = special_chunks(p, q);
  int first = int(chunk_count(p.row.V)), per_warp = turns(first, 1);
  if (!end.summed) {
    sum_grouped_chunks(p, q, special, end.part, s.residual_per_warp, end.maxima, end.sums);
    first = grouped_chunks(p, q), per_warp = s.residual_per_warp;
  }
  forget();
  sum_left_chunks<kPairs>(first, p, q, special, end.part, per_warp, end.maxima, end.sums);
}

// Draws from chunk sums that are in memory. The constructor issues the loads of the sums. sum() adds up the chunk sums
// and chooses a chunk in one step, and issues the loads of the chunk's entries before the total is used. From draw()
// on, the thread that finds the token leads.
class EndExecutor : public BlockExecutor {
 public:
  // `drawn`: whether the token is drawn from a row; V: the length of that row
  SPECDEC_DEVICE EndExecutor(const Ending& end, bool drawn, int64_t V)
      : BlockExecutor(RowStats{}, end.sums, end.maxima, kPair), uniform_(end.uniform), leads_(threadIdx.x == 0) {
    if (drawn && threadIdx.x < kLanes) sums_ = sums_of(V, sum_);
  }

  using BlockExecutor::draw, BlockExecutor::sum;
  SPECDEC_DEVICE bool leads() const { return leads_; }
  // Threads are counted from the second warp on, since the first one adds up the sums.
  SPECDEC_DEVICE int thread() const { return int(threadIdx.x + kThreads - kLanes) % kThreads; }
  // p and q must be those that the chunk sums belong to.
  SPECDEC_DEVICE double sum(const Dist& p, const Dist& q) {
    chosen_ = &block_choose([&](ChosenChunk* chosen) { warp_choose(sums_, uniform_, chosen); });
    p_ = p, q_ = q;
    ask(p_, q_, thread_run(chosen_->index), w_, y_);
    return chosen_->total;
  }
  // Must follow sum(). Only the thread that leads from here on gets the token.
  SPECDEC_DEVICE int64_t draw(const Dist&, const Dist&, double) {
    if (threadIdx.x == 0) chosen_->set_fraction();
    weigh_asked(p_, q_, thread_run(chosen_->index), w_, y_);
    int64_t id = 0;
    leads_ = finds_in_chunk(*chosen_, w_, id);
    return id;
  }

 private:
  const double& uniform_;
  bool leads_;
  SumRuns sums_;  // in the first warp only
  ChosenChunk* chosen_ = nullptr;
  Dist p_, q_;  // kept until the entries arrive
  float w_[ThreadRun::kEntries], y_[ThreadRun::kEntries];
};

// Writes the final token of a request, whose blocks share the work of the chunk sums.
SPECDEC_DEVICE void finish_at(const Step& s, const DraftTest& test, Ending& end) {
  const bool drawn = test.p.valid() && has_row(test.p);
  if (end.part > 0 && (!drawn || end.summed)) return;
  if (drawn && !(end.summed && test.q.kind == Kind::kNothing)) {
    sum_at(s, test.p, test.q, end);
    if (!last_block(s.summed + end.b, end.summed ? 1 : s.residual_blocks)) return;
  }
  forget();
  EndExecutor executor(end, drawn, test.p.row.V);
  finish(executor, s.a, end.b, end.i, test, [&] { return end.uniform; }, Bonus{end.bonus, end.bonus_token});
}

}  // namespace specdec
