// SPDX-License-Identifier: Apache-2.0
// The end of a chain on CUDA: the blocks of a request sum up what is left at its stop, and the last one draws.
#pragma once

#include "chain_rows.cuh"

namespace specdec {

// What a block of the last launch goes by, in shared memory as a Part is
struct Ending {
  int64_t b, i;
  DraftTest test;
  float* sums;          // of chunks of what the token is drawn from
  const float* maxima;  // of chunks of p's row, or null
  bool summed;          // the sums are there, left where the row's law was made
  int part;
  double uniform;  // of the final token
};

// Of a request that is present; asks the caller's inputs alone, by another thread than the one that sets the rest out.
SPECDEC_DEVICE void find_uniform(const Step& s, int64_t b, Ending& end) {
  if (threadIdx.x == kLanes) end.uniform = s.a.final_uniform(b);
}

// `plain`: where the sums of a law without filters were left
SPECDEC_DEVICE void set_out(const Step& s, int64_t start, int64_t b, int64_t i, bool drafted, const DraftTest& test,
                            float* plain, Ending& end) {
  const Side& target = s.a.target;
  const int64_t V = target.rows.V, chunks = chunk_count(V);
  end.b = b, end.i = i, end.test = test;
  end.part = int(blockIdx.x % s.residual_blocks);
  end.sums = s.residual + b * chunks, end.maxima = nullptr, end.summed = false;
  if (!s.target.stats) return;
  end.maxima = s.target.table.row(target.index(start, b, i), chunks).max;
  end.summed = end.test.q.kind == Kind::kNothing && !drafted && !target.sampling[b].any(V);
  if (end.summed) end.sums = plain;
}

// The final token of a request, whose blocks share the sums that it is drawn from.
SPECDEC_DEVICE void finish_at(const Step& s, Ending& end) {
  if (!end.test.p.valid() || !has_row(end.test.p) || end.summed) {
    if (end.part > 0) return;
  } else {
    sum_chunks(end.test.p, end.test.q, end.part, s.residual_per_warp, end.maxima, end.sums);
    if (!last_block(s.summed + end.b, s.residual_blocks)) return;
  }
  forget();
  const bool plain = end.test.q.kind == Kind::kNothing;
  BlockExecutor executor(RowStats{}, end.sums, end.maxima, plain ? BlockExecutor::kPlain : BlockExecutor::kPair);
  finish(executor, s.a, end.b, end.i, end.test, [&] { return end.uniform; });
}

}  // namespace specdec
