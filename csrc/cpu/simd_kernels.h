// SPDX-License-Identifier: Apache-2.0
// The SIMD kernels of the CPU ops, each for one chunk of a row. simd_kernels.cpp is compiled once per instruction set.
#pragma once

#include "../core/filters.h"
#include "../core/pair_sums.h"
#include "../core/row.h"

namespace specdec {

// Kernels work on whole groups of kPad entries. load() pads the last group with a value that the caller chooses.
constexpr int kPad = 16;
constexpr int padded(int64_t n) { return int((n + kPad - 1) / kPad * kPad); }

constexpr int kThresholds = 8;  // tried in one pass of a search for a filter's cutoff

// The entries of a chunk: in place in a row of any dtype, or in a buffer as float32. Kernels other than load() and
// copy() read whole groups of kPad.
struct Entries {
  const void* data;
  const void* next;  // the row's next chunk, which kernels prefetch; null: there is nothing to prefetch
  DType dtype;
  Entries(const void* data, DType dtype)
      : data(data), next(static_cast<const char*>(data) + kChunk * (dtype == kFloat32 ? 4 : 2)), dtype(dtype) {}
  Entries(const float* x) : Entries(x, kFloat32) {}
  // Entries in a buffer, for which nothing is prefetched.
  static Entries copied(const float* buf) {
    Entries z(buf);
    z.next = nullptr;
    return z;
  }
};

struct ChunkMax {
  float max;  // ignores NaN
  bool bad;   // whether an entry is NaN or +inf
};

// Sums over a chunk, with x = (z - max) * scale for a logit z
struct ExpSums {
  float sum, surprise;  // sums of exp(x), -x exp(x)
};
struct GapSums {
  float tv, overlap;             // sums of (p - q)+, min(p, q)
  float surprise_p, surprise_q;  // sums of -x p, -x q
};

// A race (core/race.h) among the ids from `first` on. `first` must be even. Only keys of at least `least` matter.
struct Racing {
  int64_t seed, position, first;
  double least;
};

struct RowKernels {
  const char* isa;
  // Returns n entries as floats: in place if possible, else in buf [padded(total)], which has `pad` from n on. total >=
  // n.
  const float* (*load)(const Entries& z, int n, int total, float pad, float* buf);
  // Writes n entries as floats to buf [padded(n)], then -inf. If `words` is not null, entries whose bit in it is not
  // set become -inf. Returns the largest entry written, NaN aside. buf may be the memory of z.
  float (*copy)(const Entries& z, int n, const uint32_t* words, float* buf);
  // If `lanes` [kPad] is not null, lanes[j] becomes the largest of the entries i with i % kPad = j.
  ChunkMax (*chunk_max)(const Entries& z, int n, float* lanes);
  float (*max)(const Entries& z, int n);  // ignores NaN
  // sum of exp((z - max) * scale) over z >= cutoff; no z may be above max. NaN if an entry is NaN.
  float (*exp_sum)(const Entries& z, int n, float max, float scale, float cutoff);
  // the same sum, bit for bit, with its surprise
  ExpSums (*exp_sums)(const Entries& z, int n, float max, float scale, float cutoff);
  // out = p(z) of a logits row; returns the sum
  float (*probs)(const Entries& z, int n, const RowStats& stats, float* out);
  // out = z where it is a finite positive number, else 0; returns the sum
  float (*clean)(const float* z, int n, float* out);
  // out = q as a residual subtracts it: 0 if it is outside [0, 1 + 1e-3], 1 if it is above 1; returns the sum
  float (*draft)(const float* q, int n, float* out);
  // w = (x - s * min(q, cap * x))+ with x = m * w and q as draft() makes it; returns the sum
  float (*subtract)(float* w, const float* q, int n, float m, float s, float cap);
  // w = m * w; returns the sum
  float (*scale)(float* w, int n, float m);
  // w has p and becomes the weights of a mixture of p and q (core/mixture.h), not capped: (of_p p + f q)+. The factor f
  // is `kept` where score_row >= threshold, else `removed`. Returns the sum.
  float (*mix)(float* w, const float* q, const float* score_row, int n, float threshold, float of_p, float kept,
               float removed);
  // the same for a capped mixture: (m max(min(q, of_q p), of_p p) - minus q)+
  float (*cap)(float* w, const float* q, int n, float of_q, float of_p, float m, float minus);
  // sum of q, as draft() makes it, where score_row is not >= threshold
  float (*deferred)(const float* q, const float* score_row, int n, float threshold);
  // sum over z >= cutoff of -x exp(x), with x = (z - max) * scale
  float (*entropy)(const float* z, int n, const RowStats& stats);
  // sum of -x ln x over positive normal probabilities
  float (*prob_entropy)(const float* p, int n);
  // the sums for two rows of logits, with -inf beyond their ends
  GapSums (*gap)(const float* z_p, const float* z_q, int n, const RowStats& stats_p, const RowStats& stats_q);
  // the number of entries > least
  int (*above)(const float* z, int n, float least);
  // sets bit i % 32 of bits[i / 32], bits [kChunk / 32], to z[i] >= least; returns how many bits are set. The padding
  // must be NaN.
  int (*reach)(const float* z, int n, float least, uint32_t* bits);
  // the sum in float64
  double (*total)(const float* p, int n);
  // sum (p - t q)+ for every candidate t, as accurate as pair_sums.h demands
  void (*clipped_sums)(const float* p, const float* q, int n, const float* t, double* out);
  // indices of lo <= z < below, ascending; returns how many
  int (*find)(const float* z, int n, float lo, float below, int* out);
  Spread (*spread)(const Entries& z, int n, float max);  // of the finite entries
  // Writes to `out` the indices, ascending, of all entries that may have a key of at least race.least; returns how
  // many. Keys are relative to stats->max. stats: null for probabilities. A weight below 2^-126 may count as 0; if
  // race.least is above -60, no entry is missed for that reason.
  int (*racers)(const Entries& z, int n, const RowStats* stats, const Racing& race, int* out);
  // sums of exp((z - max) * scale) over z >= t, for kThresholds t at once
  void (*kept_sums)(const float* z, int n, float max, float scale, const float* t, float* out);
};

// The fastest set this CPU has, or the one that SPECDEC_ISA names (base, avx2, avx512).
const RowKernels& rows();

}  // namespace specdec
