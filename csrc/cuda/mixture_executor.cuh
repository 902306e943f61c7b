// SPDX-License-Identifier: Apache-2.0
// The CUDA Team of walks by rule: a chain may begin with a blend, and rows are asked how sure they are.
#pragma once

#include "residual_executor.cuh"

namespace specdec {

constexpr int kHeld = kPairs * kGroup;  // entries of a lane at a time

// q as a residual sees it, a one-hot's too; 0 beyond the row
template <int N>
SPECDEC_DEVICE void blend_draft_groups(const Dist& q, int64_t chunk, int first, float (&y)[N]) {
  const bool row = has_row(q) && chunk * kChunk < q.row.V;
  if (row) return draft_groups(q, Taken{}, chunk, first, y);
  const int64_t hot = q.kind == Kind::kOneHot ? q.hot : -1;
#pragma unroll
  for (int r = 0; r < N; ++r) y[r] = id_of(chunk, first, r) == hot;
}

// Whether q is kept, bit by bit; a one-hot ruler says no more than q, `y`, does.
template <int N>
SPECDEC_DEVICE uint32_t kept_groups(const Blend& blend, int64_t V, int64_t chunk, int first, const float (&y)[N]) {
  float z[N];
  const bool row = has_row(blend.ruler) && chunk * kChunk < blend.ruler.row.V;
  if (row) load_groups<N / kGroup>(blend.ruler.row, chunk, first, -HUGE_VALF, z);
  const float cut = blend.cut;
  uint32_t kept = 0;
#pragma unroll
  for (int r = 0; r < N; ++r) kept |= uint32_t((row ? z[r] : y[r]) >= cut && id_of(chunk, first, r) < V) << r;
  return kept;
}

// The weights of p, which become those of the blend
template <int N>
SPECDEC_DEVICE void blend_groups(int64_t V, const Blend& blend, int64_t chunk, int first, float (&w)[N]) {
  float y[N];
  blend_draft_groups(blend.q, chunk, first, y);
  if (blend.capped) {
    const float of_q = blend.of_q, of_p = blend.of_p, m = blend.m, minus = blend.minus;
#pragma unroll
    for (int r = 0; r < N; ++r) {
      const float left = m * fmaxf(fminf(y[r], of_q * w[r]), of_p * w[r]) - minus * y[r];
      w[r] = (left > 0 || w[r] != w[r]) && id_of(chunk, first, r) < V ? w[r] != w[r] ? w[r] : left : 0.0f;
    }
    return;
  }
  const uint32_t keeps = kept_groups(blend, V, chunk, first, y);
  const float of_p = blend.m * blend.of_p, kept = blend.kept(), gone = -blend.minus;
#pragma unroll
  for (int r = 0; r < N; ++r) {
    const float left = of_p * w[r] + (keeps >> r & 1 ? kept : gone) * y[r];
    w[r] = (left > 0 || left != left) && id_of(chunk, first, r) < V ? left : 0.0f;
  }
}

// The weights of two groups of a chunk before any link; 0 beyond p's row.
template <int N>
SPECDEC_DEVICE void law_groups(const Chain& chain, int64_t chunk, int first, float (&w)[N]) {
  DistWeights{chain.p}(chunk, first, w);
  if (chain.blend && chunk * kChunk < chain.p.row.V) blend_groups(chain.p.row.V, *chain.blend, chunk, first, w);
}

SPECDEC_DEVICE float blend_weight_at(const Blend& blend, int64_t v, float x) {
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
  const float x = fmaxf(scaled(z, law.max, law.scale), -100.0f);
  return z >= law.cutoff ? -x * fast_exp2(x * kLog2E) : 0.0f;
}

// The passes over V, each compiled once for all the places in a walk that need it. They take values, and pointers to what lies in
// memory anyway: a pointer to what a thread holds would put that on its stack.
namespace apart {

#define SPECDEC_APART static __device__ __attribute__((noinline))

SPECDEC_APART double chain_sum(const Chain* chain, float* sums) {
  return block_sum_over(chain->p.row.V, sums, [&](int64_t chunk, int first, float (&w)[kHeld]) {
    law_groups(*chain, chunk, first, w);
    link_groups(*chain, chunk, first, w);
  });
}

SPECDEC_APART int64_t chain_draw(const Chain* chain, double v, const float* sums) {
  const int64_t V = chain->p.row.V;
  const Pick chunk = pick(int(chunk_count(V)), v, [&](int c) { return double(__ldcg(sums + c)); });
  const int64_t first = int64_t(chunk.index) * kChunk;
  const int n = int(V - first < kChunk ? V - first : kChunk);
  // The fraction of the chunk's own weight, since the rescan adds it up in another order.
  const double fraction = (v * chunk.total - chunk.before) / chunk.inside;
  return first + pick(n, fraction, [&](int i) {
    const int64_t v = first + i;
    const Dist& p = chain->p;
    const float x = p.kind == Kind::kOneHot ? float(v == p.hot) : target_weight(p, load_scalar(p.row, v));
    return double(link_weight_at(*chain, v, chain->blend ? blend_weight_at(*chain->blend, v, x) : x));
  }).index;
}

// The weights of a law without links
struct ChainWeights {
  static constexpr int kWide = kGroup;
  const Chain& chain;

  SPECDEC_DEVICE bool valid() const { return chain.p.valid(); }
  SPECDEC_DEVICE int64_t V() const { return chain.p.row.V; }
  SPECDEC_DEVICE void operator()(int64_t chunk, int first, float (&x)[kWide]) const { law_groups(chain, chunk, first, x); }
};

// Of a law without links
struct Pair {
  Chain p;
  Dist q;
};

SPECDEC_APART PairMass pair_masses(const Pair* pair) { return block_masses(ChainWeights{pair->p}, pair->q); }

// `out` [kCandidates] is shared memory.
SPECDEC_APART void pair_unders(const Pair* pair, float4 t, double* out) {
  const float candidates[kCandidates] = {t.x, t.y, t.z, t.w};
  double sums[kCandidates];
  block_unders(ChainWeights{pair->p}, pair->q, candidates, sums);
  if (threadIdx.x == 0) {
#pragma unroll
    for (int m = 0; m < kCandidates; ++m) out[m] = sums[m];
  }
  __syncthreads();
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
    draft_groups(blend->q, Taken{}, chunk, first, w);
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
  static constexpr bool kBlends = true, kMakesLaws = true;

  using ChainTeam::ChainTeam;

  // What a chain refers to lies in memory.
  SPECDEC_DEVICE double sum(const Chain& chain) {
    if (holds(chain)) return block_sum_of(chain.p.row.V, table_.sum);
    held_ = nullptr;
    return apart::chain_sum(&shared(chain).p, table_.sum);
  }
  SPECDEC_DEVICE int64_t draw(const Chain& chain, double v) const {
    return apart::chain_draw(&shared(chain).p, v, table_.sum);
  }

  // Leaves the pair for unders(), as long as nothing else is asked.
  SPECDEC_DEVICE PairMass masses(const Chain& p, const Dist& q) const {
    return apart::pair_masses(&shared(p, &q));
  }
  SPECDEC_DEVICE void unders(const Chain&, const Dist&, const float (&t)[kCandidates], double (&out)[kCandidates]) const {
    __shared__ double sums[kCandidates];
    apart::pair_unders(&shared(), make_float4(t[0], t[1], t[2], t[3]), sums);
#pragma unroll
    for (int m = 0; m < kCandidates; ++m) out[m] = sums[m];
  }
  SPECDEC_DEVICE PairMass masses(const Dist& p, const Dist& q) const { return masses(Chain{p}, q); }
  SPECDEC_DEVICE void unders(const Dist& p, const Dist& q, const float (&t)[kCandidates], double (&out)[kCandidates]) const {
    unders(Chain{p}, q, t, out);
  }

  // p and q lie in memory.
  SPECDEC_DEVICE double tv(const Dist& p, const Dist& q) {
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
  SPECDEC_DEVICE PairGap gap(const Dist& p, const Dist& q) {
    const PairMass mass = masses(p, q);
    const float t[kCandidates] = {1, 1, 1, 1};
    double under[kCandidates];
    unders(p, q, t, under);
    return {under[0], mass.p > under[0] ? mass.p - under[0] : 0, entropy(p), entropy(q)};
  }
  // A CPU sums on the way what it is told will be asked. Here each is a pass of its own: verify_requests has no registers to spare.
  SPECDEC_DEVICE void expect_entropy(bool) const {}
  SPECDEC_DEVICE void expect_gap(const Dist&, const Dist&) const {}
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

 private:
  // Where all threads find it: a pointer to what a thread holds would put that on its stack.
  SPECDEC_DEVICE apart::Pair& shared() const {
    __shared__ Uninitialised<apart::Pair> room;
    return room.get();
  }
  SPECDEC_DEVICE apart::Pair& shared(const Chain& p, const Dist* q = nullptr) const {
    __syncthreads();
    if (leads()) {
      shared().p = p;
      if (q) shared().q = *q;
    }
    __syncthreads();
    return shared();
  }
};

}  // namespace specdec
