// SPDX-License-Identifier: Apache-2.0
// The CUDA Team of walks by rule: a chain may begin with a blend, and rows are asked how sure they are.
#pragma once

#include "../common/chain_team.cuh"

namespace specdec {

constexpr int kHeld = kPairs * kGroup;  // entries of a lane at a time

SPECDEC_DEVICE int64_t id_of(int64_t chunk, int first, int r) { return chunk * kChunk + group_begin(first + r / kGroup) + r % kGroup; }

// q as a residual sees it, a one-hot's too; 0 beyond the row
SPECDEC_DEVICE void blend_draft_groups(const Dist& q, int64_t chunk, int first, float (&y)[kHeld]) {
  const bool row = has_row(q) && chunk * kChunk < q.row.V;
  if (row) return draft_groups(q, nullptr, 0, chunk, first, y);
  const int64_t hot = q.kind == Kind::kOneHot ? q.hot : -1;
#pragma unroll
  for (int r = 0; r < kHeld; ++r) y[r] = id_of(chunk, first, r) == hot;
}

// Whether q is kept, bit by bit; a one-hot ruler says no more than q, `y`, does.
SPECDEC_DEVICE uint32_t kept_groups(const Blend& blend, int64_t V, int64_t chunk, int first, const float (&y)[kHeld]) {
  float z[kHeld];
  const bool row = has_row(blend.ruler) && chunk * kChunk < blend.ruler.row.V;
  if (row) load_groups<kPairs>(blend.ruler.row, chunk, first, -HUGE_VALF, z);
  const float cut = blend.cut;
  uint32_t kept = 0;
#pragma unroll
  for (int r = 0; r < kHeld; ++r) kept |= uint32_t((row ? z[r] : y[r]) >= cut && id_of(chunk, first, r) < V) << r;
  return kept;
}

// The weights of two groups of a chunk; 0 beyond p's row.
SPECDEC_DEVICE void blend_groups(const Dist& p, const Blend& blend, int64_t chunk, int first, float (&w)[kHeld]) {
  const int64_t V = p.row.V;
  if (p.kind == Kind::kOneHot) {
#pragma unroll
    for (int r = 0; r < kHeld; ++r) w[r] = id_of(chunk, first, r) == p.hot;
  } else {
    load_groups<kPairs>(p.row, chunk, first, pad_of(p), w);
#pragma unroll
    for (int r = 0; r < kHeld; ++r) w[r] = target_weight(p, w[r]);
  }
  float y[kHeld];
  blend_draft_groups(blend.q, chunk, first, y);
  if (blend.capped) {
    const float of_q = blend.of_q, of_p = blend.of_p, m = blend.m, minus = blend.minus;
#pragma unroll
    for (int r = 0; r < kHeld; ++r) {
      const float left = m * fmaxf(fminf(y[r], of_q * w[r]), of_p * w[r]) - minus * y[r];
      w[r] = (left > 0 || w[r] != w[r]) && id_of(chunk, first, r) < V ? w[r] != w[r] ? w[r] : left : 0.0f;
    }
    return;
  }
  const uint32_t keeps = kept_groups(blend, V, chunk, first, y);
  const float of_p = blend.m * blend.of_p, kept = blend.kept(), gone = -blend.minus;
#pragma unroll
  for (int r = 0; r < kHeld; ++r) {
    const float left = of_p * w[r] + (keeps >> r & 1 ? kept : gone) * y[r];
    w[r] = (left > 0 || left != left) && id_of(chunk, first, r) < V ? left : 0.0f;
  }
}

SPECDEC_DEVICE float blend_weight_at(const Dist& p, const Blend& blend, int64_t v) {
  const float x = p.kind == Kind::kOneHot ? float(v == p.hot) : target_weight(p, load_scalar(p.row, v));
  float y = blend.q.kind == Kind::kOneHot && v == blend.q.hot;
  if (has_row(blend.q)) y = v < blend.q.row.V ? draft_weight(blend.q, load_scalar(blend.q.row, v)) : 0.0f;
  float left;
  if (blend.capped)
    left = blend.m * fmaxf(fminf(y, blend.of_q * x), blend.of_p * x) - blend.minus * y;
  else
    left = blend.m * blend.of_p * x + (blend.keeps(v) ? blend.kept() : -blend.minus) * y;
  return left > 0 ? left : 0.0f;
}

// -x exp(x) with x = (z - max) * scale, 0 below the cutoff
SPECDEC_DEVICE float surprise(const Law& law, float z) {
  const float x = fmaxf((z - law.max) * law.scale, -100.0f);
  return z >= law.cutoff ? -x * fast_exp2(x * kLog2E) : 0.0f;
}

// The passes over V, each compiled once for all the places in a walk that need it. They take values, and pointers to what lies in
// memory anyway: a pointer to what a thread holds would put that on its stack.
namespace apart {

#define SPECDEC_APART static __device__ __attribute__((noinline))

SPECDEC_APART double blend_sum(const Chain* chain, float* sums) {
  return block_sum_over(chain->p.row.V, sums, [&](int64_t chunk, int first, float (&w)[kHeld]) {
    blend_groups(chain->p, *chain->blend, chunk, first, w);
  });
}

SPECDEC_APART int64_t blend_draw(const Chain* chain, double v, const float* sums) {
  const int64_t V = chain->p.row.V;
  const Pick chunk = pick(int(chunk_count(V)), v, [&](int c) { return double(__ldcg(sums + c)); });
  const int64_t first = int64_t(chunk.index) * kChunk;
  const int n = int(V - first < kChunk ? V - first : kChunk);
  // The fraction of the chunk's own weight, since the rescan adds it up in another order.
  const double fraction = (v * chunk.total - chunk.before) / chunk.inside;
  return first + pick(n, fraction, [&](int i) { return double(blend_weight_at(chain->p, *chain->blend, first + i)); }).index;
}

SPECDEC_APART double pair_sum(const Dist* p, const Dist* q, float* sums) {
  return block_sum_over(p->row.V, sums, [&](int64_t chunk, int first, float (&w)[kHeld]) { weigh_groups(*p, *q, chunk, first, w); });
}

SPECDEC_APART double entropy_sum(Row row, Law law, bool logits, float* sums) {
  return block_sum_over(row.V, sums, [&](int64_t chunk, int first, float (&w)[kHeld]) {
    load_groups<kPairs>(row, chunk, first, logits ? -HUGE_VALF : 0, w);
#pragma unroll
    for (int r = 0; r < kHeld; ++r) w[r] = logits ? surprise(law, w[r]) : w[r] > 0 ? -w[r] * logf(w[r]) : 0.0f;
  });
}

SPECDEC_APART double count_above(Row row, float least, float* sums) {
  return block_sum_over(row.V, sums, [&](int64_t chunk, int first, float (&w)[kHeld]) {
    load_groups<kPairs>(row, chunk, first, -HUGE_VALF, w);
#pragma unroll
    for (int r = 0; r < kHeld; ++r) w[r] = w[r] > least;
  });
}

SPECDEC_APART double deferred_sum(const Blend* blend, int64_t V, float* sums) {
  return block_sum_over(blend->q.row.V, sums, [&](int64_t chunk, int first, float (&w)[kHeld]) {
    draft_groups(blend->q, nullptr, 0, chunk, first, w);
    const uint32_t kept = kept_groups(*blend, V, chunk, first, w);
#pragma unroll
    for (int r = 0; r < kHeld; ++r) w[r] = kept >> r & 1 ? 0.0f : w[r];
  });
}

SPECDEC_APART double largest_prob(Row row) {
  float max = 0;
  bool bad = false;
  for_chunks(chunk_count(row.V), 0, int((chunk_count(row.V) + kWarps - 1) / kWarps), [&](int64_t c) {
#pragma unroll 1
    for (int first = 0; first < kChunk / kLanes / kGroup; first += kPairs) {
      float z[kHeld];
      load_groups<kPairs>(row, c, first, 0, z);
#pragma unroll
      for (int r = 0; r < kHeld; ++r) max = fmaxf(max, z[r]), bad |= !(z[r] < HUGE_VALF);
    }
  });
  max = block_max(max);
  return __syncthreads_or(bad) || !(max > 0) ? NAN : double(max);
}

}  // namespace apart

class BlendTeam : public ChainTeam {
 public:
  using ChainTeam::ChainTeam;

  // A chain with a blend, and what it refers to, lies in memory.
  SPECDEC_DEVICE double sum(const Chain& chain) {
    if (!chain.blend) return ChainTeam::sum(chain);
    held_ = nullptr;
    return apart::blend_sum(&chain, table_.sum);
  }
  SPECDEC_DEVICE int64_t draw(const Chain& chain, double v) const {
    return chain.blend ? apart::blend_draw(&chain, v, table_.sum) : ChainTeam::draw(chain, v);
  }

  // So do p and q.
  SPECDEC_DEVICE double sum(const Dist& p, const Dist& q) {
    held_ = nullptr;
    return apart::pair_sum(&p, &q, table_.sum);
  }

  SPECDEC_DEVICE double entropy(const Dist& d) {
    if (d.kind == Kind::kOneHot) return 0;
    if (d.kind == Kind::kProbs && !(largest_prob(d.row) > 0)) return NAN;
    held_ = nullptr;
    const bool logits = d.kind == Kind::kLogits;
    const double sum = apart::entropy_sum(d.row, d.law, logits, table_.sum);
    return logits ? d.law.log_norm + sum * exp(-double(d.law.log_norm)) : sum;
  }
  // NaN if NaN or inf is in it, or nothing positive
  SPECDEC_DEVICE double largest_prob(const Row& row) const { return apart::largest_prob(row); }
  // How many entries are larger
  SPECDEC_DEVICE int64_t above(const Row& row, float least) {
    held_ = nullptr;
    return int64_t(apart::count_above(row, least, table_.sum));
  }
  // Mass of the blend's q where it is not kept, or of ids beyond V
  SPECDEC_DEVICE double deferred(const Blend& blend, int64_t V) {
    const Dist& q = blend.q;
    if (q.kind == Kind::kOneHot) return q.hot < V && blend.keeps(q.hot) ? 0 : 1;
    held_ = nullptr;
    return apart::deferred_sum(&blend, V, table_.sum);
  }
};

}  // namespace specdec
