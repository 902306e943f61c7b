// SPDX-License-Identifier: Apache-2.0
// The end of a chain on CUDA: the blocks of a request sum up what is left at its stop, and the last one draws.
#pragma once

#include "chain_rows.cuh"

namespace specdec {

// What a block of the last launch goes by, in shared memory as a Part is
struct Ending {
  int64_t b, i;
  float* sums;          // of chunks of what the token is drawn from
  const float* maxima;  // of chunks of p's row, or null
  bool summed;          // they are p's own, left where its law was made
  int part;
  double uniform;  // of the final token
  bool bonus;      // the caller gives the final token:
  int64_t bonus_token;
};

// Of a request that is present; asks the caller's inputs alone, by another thread than the one that sets the rest out.
SPECDEC_DEVICE void find_given(const Step& s, int64_t b, Ending& end) {
  if (threadIdx.x != kLanes) return;
  end.uniform = s.a.final_uniform(b);
  end.bonus_token = s.a.bonus_tokens ? s.a.bonus_tokens[b] : 0;
}

// `plain`: where the sums of the target's law were left, if it has no filters
SPECDEC_DEVICE void set_out(const Step& s, int64_t start, int64_t b, int64_t i, bool drafted, bool bonus,
                            const DraftTest& test, float* plain, Ending& end) {
  const Rows& target = s.a.target;
  const int64_t V = target.memory.V, chunks = chunk_count(V);
  end.b = b, end.i = i, end.bonus = bonus;
  end.part = int(blockIdx.x % s.residual_blocks);
  end.sums = s.residual + b * chunks, end.maxima = nullptr, end.summed = false;
  if (!s.target.stats) return;
  end.maxima = s.target.table.row(target.index(start, b, i), chunks).max;
  // A drafted token that is all of its law is rejected by a u < 1 alone, so what is left weighs 2^-53 at least: what
  // sums of the law count beside weights, each less than 2^-126, is nothing of it. A draft that its law does not hold
  // may leave less.
  const bool one_hot = test.q.kind == Kind::kOneHot && !(test.status & kInvalidDraft);
  end.summed = (one_hot || (test.q.kind == Kind::kNothing && !drafted)) && !target.sampling[b].any(V);
  if (end.summed) end.sums = plain;
}

// Chunk sums of (p - q)+. Of a law whose own are there only chunks that q changes are summed, by one block.
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

// Draws from sums that are there. It asks for them as it begins, chooses the chunk with their total, and asks for its
// entries before anybody has looked at the total. The thread that finds the token goes on with it.
class EndExecutor : public BlockExecutor {
 public:
  // `drawn`: whether the token is drawn from a row; V: how many entries that has
  SPECDEC_DEVICE EndExecutor(const Ending& end, bool drawn, int64_t V)
      : BlockExecutor(RowStats{}, end.sums, end.maxima, kPair), uniform_(end.uniform), leads_(threadIdx.x == 0) {
    if (drawn && threadIdx.x < kLanes) sums_ = sums_of(V, sum_);
  }

  using BlockExecutor::draw, BlockExecutor::sum;
  SPECDEC_DEVICE bool leads() const { return leads_; }
  // In turn from the second warp on: the first one has the sums to add up
  SPECDEC_DEVICE int thread() const { return int(threadIdx.x + kThreads - kLanes) % kThreads; }
  // Of what the sums are of
  SPECDEC_DEVICE double sum(const Dist& p, const Dist& q) {
    chosen_ = &block_choose([&](ChosenChunk* chosen) { warp_choose(sums_, uniform_, chosen); });
    p_ = p, q_ = q;
    ask(p_, q_, thread_run(chosen_->index), w_, y_);
    return chosen_->total;
  }
  // Right after the sum; known to the thread that leads from here on
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
  SumRuns sums_;  // of the first warp
  ChosenChunk* chosen_ = nullptr;
  Dist p_, q_;  // at hand when the entries are
  float w_[ThreadRun::kEntries], y_[ThreadRun::kEntries];
};

// The final token of a request, whose blocks share the sums that it is drawn from.
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
