// SPDX-License-Identifier: Apache-2.0
// Rows and distributions. Distributions (Dist) never store probabilities that they compute: most are a row of logits
// where the model wrote it, plus four floats (RowStats).
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "entry_ids.h"
#include "macros.h"
#include "views.h"

namespace specdec {

// Every sum over V has one order: a fixed order inside chunks of kChunk, then the chunk totals in order in float64.
constexpr int kChunk = 1024;
constexpr int kMostChunks = 1 << 14;  // per row: a vocabulary has at most 2^24 tokens

// In sums, a logit whose weight is less than 2^-126 of the largest one's counts as weight 0, on every backend.
constexpr float kLeastExponent = -126.0f;

SPECDEC_HD int64_t chunk_count(int64_t V) { return (V + kChunk - 1) / kChunk; }
SPECDEC_HD int chunk_size(int64_t V, int64_t c) { return int(V - c * kChunk < kChunk ? V - c * kChunk : kChunk); }

SPECDEC_HD bool has_mass(double total) { return total > 0 && total < HUGE_VAL; }

// Identifies a row. Two rows with equal RowIds have equal entries.
struct RowId {
  const void* data = nullptr;
  int64_t form = 0;  // V, dtype, and whether entries are looked up by id
#ifndef SPECDEC_IN_CUDA
  View view{};
  const EntryIds* ids = nullptr;
  bool operator==(const RowId& other) const {
    return data == other.data && form == other.form && view == other.view && ids == other.ids;
  }
#else
  SPECDEC_HD bool operator==(const RowId& other) const { return data == other.data && form == other.form; }
#endif
  SPECDEC_HD explicit operator bool() const { return data != nullptr; }
};

// A row of numbers in memory. One file per backend reads this memory: cpu/row_reader.h (with cpu/listed_reader.cpp, for
// rows with ids), cuda/groups.cuh. All other code uses id(), entry(v) and the chunks that these files return.
class Row {
  // [V] of dtype. In CUDA it may instead be the address of a Seen (views.h) plus one, or of a Listed (entry_ids.h) plus
  // three. Both are odd.
  const void* data_ = nullptr;

 public:
  int64_t V = 0;
  DType dtype = kFloat32;

  Row() = default;
  SPECDEC_HD Row(const void* data, int64_t V, DType dtype) : data_(data), V(V), dtype(dtype) {}
  SPECDEC_HD explicit operator bool() const { return data_ != nullptr; }
  // This row as request b sees it at a position, which says what drafted tokens (window.h) come before the row. The
  // views must outlive the result. In CUDA, an earlier launch has made the view; `view_number` is its index.
  SPECDEC_HD Row seen(const Views& views, [[maybe_unused]] int64_t b, [[maybe_unused]] int64_t position,
                      [[maybe_unused]] int64_t view_number) const {
    Row row = *this;
#ifndef SPECDEC_IN_CUDA
    if (views && views.change(b, position)) row.view = {&views, int32_t(b), int32_t(position)};
#else
    if (views.seen && views.seen[view_number].entries)
      row.data_ = reinterpret_cast<const char*>(views.seen + view_number) + 1;
#endif
    return row;
  }
  SPECDEC_HD const void* pointer() const { return data_; }
  // Whether several entries have the same id. Their weights add up, so no single logit gives the probability of that
  // id.
  SPECDEC_HD bool repeats() const {
#ifndef SPECDEC_IN_CUDA
    return ids && ids->repeats;
#else
    return is_listed() && *listed()->repeats;
#endif
  }
  // All ids of the row are less than this.
  SPECDEC_HD int64_t ids_end() const {
#ifndef SPECDEC_IN_CUDA
    if (ids) return ids->end;
#else
    if constexpr (kReadsIds) {  // nvcc would keep a stack frame for a run-time test, even if it drops the test later
      if (is_listed()) return kIdsEnd;
    }
#endif
    return V;
  }
  // entry(v) may be called only for v less than this.
#ifdef SPECDEC_IN_CUDA
  SPECDEC_HD int64_t entries_end() const { return ids_end(); }
#else
  int64_t entries_end() const { return V; }
#endif
#ifdef SPECDEC_IN_CUDA
  // A draft's row by id: entry(v) looks up the entries of id v.
  SPECDEC_HD explicit Row(const Listed* listed) : data_(reinterpret_cast<const char*>(listed) + 3), V(listed->end) {}
  // Whether the row differs from its memory: it has a view, or is by id
  SPECDEC_HD bool is_seen() const { return reinterpret_cast<uintptr_t>(data_) % 2; }
  SPECDEC_HD bool is_listed() const { return kReadsIds && reinterpret_cast<uintptr_t>(data_) % 4 == 3; }
  SPECDEC_HD const Listed* listed() const {
    return reinterpret_cast<const Listed*>(static_cast<const char*>(data_) - 3);
  }
  // The row as stored: entry(v) is at place v in memory
  SPECDEC_HD Row as_stored() const { return is_listed() ? Row(listed()->stored, listed()->k, listed()->dtype) : *this; }
  // The view of a row for which is_seen() holds, and is_listed() does not
  SPECDEC_HD const Seen* view() const { return reinterpret_cast<const Seen*>(static_cast<const char*>(data_) - 1); }
  SPECDEC_HD RowId id() const { return {data_, V << 2 | dtype}; }
  // Entry v. In a row of logits by id, an id may have several entries. The result is then the logit whose weight is the
  // sum of their weights at this scale and cutoff.
  SPECDEC_HD_DECLARED float entry(int64_t v, float scale = 1, float cutoff = -FLT_MAX) const;
#else
  View view{};                    // none: the row is as in memory
  const EntryIds* ids = nullptr;  // null: entry v is that of id v
  bool by_id = false;             // with ids: entry(v) and chunks are indexed by id; else by place in memory
  // If by_id: how entries of one id are joined. True: they are probabilities, which are added. False: they are logits,
  // whose weights at T = 1 are added.
  bool adds = false;
  RowId id() const { return {data_, V << 3 | dtype << 1 | by_id, view, ids}; }
  float entry(int64_t v) const;  // also if the row is spread over ranks (cpu/shards.h)
  // The same row, read by id. A row without ids stays as it is.
  Row by_ids(bool adds) const {
    Row row = *this;
    if (ids) row.V = ids->end, row.by_id = true, row.adds = adds;
    return row;
  }
  // The id of the entry at place `at`; -1: it has none
  int64_t id_at(int64_t at) const { return ids && !by_id ? id_of(ids->ids, at) : at; }
  // Calls f with each place of id v in the row.
  template <class F>
  void for_places(int64_t v, const F& f) const {
    if (!ids || by_id) return f(v);
    for (const EntryIds::Place& place : ids->between(v, v + 1)) f(place.at);
  }
  // The row as stored: entry(v) is at place v in memory, and belongs to id_at(v)
  Row as_stored() const {
    Row row = *this;
    if (ids) row.V = ids->k, row.by_id = false;
    return row;
  }
#endif
};

// p(v) = exp((z_v - max) * scale - log_norm) if z_v >= cutoff else 0.
// log_norm is relative to the maximum: it lies in [0, ln V], so a low temperature costs no precision.
struct RowStats {
  float scale;   // 1 / T; +inf marks a greedy row
  float cutoff;  // all filters as one threshold: logits >= cutoff are kept
  // ln of the sum of exp((z - max) * scale) over the kept logits; for a greedy row, the id of its argmax; NaN if the
  // row is invalid
  float log_norm;
  float max;

  // Whether the row is greedy and log_norm is an id in [0, V)
  SPECDEC_HD bool greedy(int64_t V) const { return scale == HUGE_VALF && log_norm >= 0 && log_norm < float(V); }
  // ln p of an entry z. The row must be neither greedy nor invalid.
  SPECDEC_HD double log_prob(float z) const { return z >= cutoff ? (double(z) - max) * scale - log_norm : -HUGE_VAL; }
};

// (z - max) * scale, computed from halves, since the difference of two finite logits may overflow
SPECDEC_HD float scaled(float z, float max, float scale) { return (0.5f * z - 0.5f * max) * (2 * scale); }

// An entry of a probability row: 0 if it is negative, NaN if it is NaN or +inf
SPECDEC_HD float clean_prob(float z) { return z > 0 ? (z <= FLT_MAX ? z : NAN) : z <= 0 ? 0.0f : NAN; }

// A few ids whose mass is not that of the row's entries. If `rest` is true, they were removed: they have no mass, and
// all other ids have the mass that the row gives them. If `rest` is false, they have all the mass.
struct Few {
  const int64_t* ids = nullptr;
  int64_t n = 0, stride = 1;  // in int64s
  bool rest = true;

  SPECDEC_HD int64_t operator[](int64_t i) const { return ids[i * stride]; }
  SPECDEC_HD bool has(int64_t v) const {
    for (int64_t i = 0; i < n; ++i) {
      if ((*this)[i] == v) return true;
    }
    return false;
  }
};

enum class Kind : int32_t {
  kLogits,
  kProbs,
  kOneHot,  // all mass on `hot`: greedy rows, and drafts without a row
  kNothing  // no mass at all: (p - nothing)+ is p
};

// A distribution over token ids
struct Dist {
  Kind kind = Kind::kNothing;
  Row row{};
  RowStats stats{};
  int64_t hot = -1;

  SPECDEC_HD bool valid() const { return kind != Kind::kLogits || stats.log_norm == stats.log_norm; }
  // Whether the row's entries give the mass. If not, all mass is on few().
  SPECDEC_HD bool reads_row() const { return kind == Kind::kLogits || kind == Kind::kProbs; }
  SPECDEC_HD Few few() const { return {&hot, kind == Kind::kOneHot, 1, reads_row()}; }
  // Whether ids >= V may have mass
  SPECDEC_HD bool beyond(int64_t V) const { return kind == Kind::kOneHot ? hot >= V : row.V > V; }

  // entry() returns the row's entry v. It is called only if the result depends on that entry.
  template <class Entry>
  SPECDEC_HD double log_prob(int64_t v, const Entry& entry) const {
    if (kind == Kind::kOneHot) return v == hot ? 0.0 : -HUGE_VAL;
    if (kind == Kind::kNothing || v >= row.entries_end()) return -HUGE_VAL;
    const float z = entry();
    if (kind == Kind::kProbs) return log(double(clean_prob(z)));
    return stats.log_prob(z);
  }
  template <class Entry>
  SPECDEC_HD double prob(int64_t v, const Entry& entry) const {
    if (kind == Kind::kProbs) return v < row.entries_end() ? double(clean_prob(entry())) : 0.0;
    return exp(log_prob(v, entry));
  }

  SPECDEC_HD double log_prob(int64_t v) const {
#ifndef SPECDEC_IN_CUDA
    if (row.ids && reads_row()) return log_listed_prob(v);
#endif
    return log_prob(v, [&] { return entry(v); });
  }
  SPECDEC_HD double prob(int64_t v) const {
#ifndef SPECDEC_IN_CUDA
    if (row.ids && reads_row()) return listed_prob(v);
#endif
    return prob(v, [&] { return entry(v); });
  }
#ifndef SPECDEC_IN_CUDA
  // prob() and log_prob() of a row with ids (cpu/row_reader.cpp)
  double listed_prob(int64_t v) const;
  double log_listed_prob(int64_t v) const;
  float entry(int64_t v) const { return row.entry(v); }
#else
  SPECDEC_HD float entry(int64_t v) const {
    if constexpr (!kReadsIds) return row.entry(v);
    return row.entry(v, stats.scale, stats.cutoff);
  }
#endif
};

// The id that has all mass, or -1
SPECDEC_HD int64_t hot_id(const Dist& d) { return d.kind == Kind::kOneHot ? d.hot : -1; }

SPECDEC_HD Dist one_hot(int64_t id) {
  Dist d;
  d.kind = Kind::kOneHot;
  d.hot = id;
  return d;
}

// The distribution of a row of logits; of a greedy row it is one-hot at the argmax.
SPECDEC_HD Dist from_stats(const Row& row, const RowStats& stats) {
  Dist d;
  d.kind = Kind::kLogits;
  d.row = row;
  d.stats = stats;
  if (stats.greedy(row.ids_end())) {
    d.kind = Kind::kOneHot;
    d.hot = int64_t(stats.log_norm);
  }
  return d;
}

// Stands for a missing row. It is invalid, like a row with NaN, so nothing can be drawn from it.
SPECDEC_HD Dist no_row() { return from_stats(Row{}, {1, 0, NAN, -HUGE_VALF}); }

SPECDEC_HD Dist from_probs(const Row& row) {
  Dist d;
  d.kind = Kind::kProbs;
  d.row = row;
  return d;
}

}  // namespace specdec
