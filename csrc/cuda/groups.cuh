// SPDX-License-Identifier: Apache-2.0
// Loads rows from memory, for all CUDA code. A warp holds a chunk of 1024 entries of a row: each lane has groups of
// eight adjacent entries (device.cuh).
#pragma once

#include <type_traits>

#include "listed.cuh"
#include "seen.cuh"

namespace specdec {

// The address of a row's stored entries, with or without a view. The row must not be by id.
SPECDEC_HD const void* memory_of(const Row& row) { return row.is_seen() ? row.view()->data : row.pointer(); }

SPECDEC_HD float stored_entry(const Row& row, int64_t v) { return number_at(memory_of(row), row.dtype, v); }

// entry() of a row with a view, or by id
SPECDEC_HD_APART float changed_entry(const void* row, DType dtype, int64_t v, float scale, float cutoff) {
  const Row of(row, 0, dtype);
  if constexpr (!kReadsIds) return seen_entry(*of.view(), v, stored_entry(of, v));
  return of.is_listed() ? listed_entry(*of.listed(), v, scale, cutoff) : seen_entry(*of.view(), v, stored_entry(of, v));
}
SPECDEC_HD float Row::entry(int64_t v, float scale, float cutoff) const {
  return is_seen() ? changed_entry(data_, dtype, v, scale, cutoff) : number_at(data_, dtype, v);
}

// The address of stored entry v of a row that is not by id
SPECDEC_DEVICE const char* place_of(const Row& row, int64_t v) {
  return static_cast<const char*>(memory_of(row)) + v * (row.dtype == kFloat32 ? 4 : 2);
}

// The id of entry r of this lane, in its groups `first`, first + 1, ... of a chunk
SPECDEC_DEVICE int64_t id_of(int64_t chunk, int first, int r) {
  return chunk * kChunk + group_begin(first + r / kGroup) + r % kGroup;
}

// A group with its entries as stored; it lies in memory at a multiple of 16 bytes.
template <DType kType>
struct Group {
  static constexpr int kSize = kType == kFloat32 ? 4 : 2, kWords = kGroup * kSize / 4;
  static constexpr int kStep = kLanes * kGroup * kSize;  // bytes to a lane's next group
  uint32_t words[kWords];

  SPECDEC_DEVICE void load(const char* at) {
#pragma unroll
    for (int h = 0; h < kWords / 4; ++h) {
      const uint4 x = __ldg(reinterpret_cast<const uint4*>(at) + h);
      words[4 * h] = x.x, words[4 * h + 1] = x.y, words[4 * h + 2] = x.z, words[4 * h + 3] = x.w;
    }
  }
  SPECDEC_DEVICE void fill(float pad) {  // pad: 0 or -inf
    const uint32_t infinity = kType == kFloat32 ? 0xff800000u : kType == kBFloat16 ? 0xff80ff80u : 0xfc00fc00u;
#pragma unroll
    for (int w = 0; w < kWords; ++w) words[w] = pad == 0 ? 0 : infinity;
  }
  SPECDEC_DEVICE float operator[](int e) const {
    if constexpr (kType == kFloat32) return __uint_as_float(words[e]);
    const uint32_t pair = words[e * kSize / 4];
    if constexpr (kType == kBFloat16) return __uint_as_float(e % 2 ? pair & 0xffff0000u : pair << 16);
    return half_to_float(e % 2 ? pair >> 16 : pair & 0xffffu);
  }
};

// Calls f with the dtype as a std::integral_constant.
template <class F>
SPECDEC_DEVICE void with_dtype(DType type, const F& f) {
  if (type == kBFloat16)
    f(std::integral_constant<DType, kBFloat16>());
  else if (type == kFloat16)
    f(std::integral_constant<DType, kFloat16>());
  else
    f(std::integral_constant<DType, kFloat32>());
}

// Whether the row starts at a multiple of 16 bytes. A row that a view changes never does: its pointer() is odd.
SPECDEC_DEVICE bool aligned(const Row& row) { return reinterpret_cast<uintptr_t>(row.pointer()) % 16 == 0; }

// How many leading chunks of a row are full and can be loaded by whole groups
SPECDEC_DEVICE int whole_chunks(const Row& row) { return aligned(row) ? int(row.V / kChunk) : 0; }

template <DType kType>
SPECDEC_DEVICE const char* group_at(const Row& row, int64_t chunk, int j) {
  return static_cast<const char*>(row.pointer()) + (chunk * kChunk + group_begin(j)) * Group<kType>::kSize;
}

// Loads N stored entries one by one: entry r of the thread is entry begin + step_of(r) of the row, as in a chunk.
// `left` is the number of entries from `begin` on that exist. Those after them become `pad`. So do entries that the
// row's mask forbids, which are not read (only rows of logits have masks, and their pad is -inf). The rest of the view
// is not applied. For a 16-bit row at most eight loads are in flight at a time.
template <int N>
SPECDEC_DEVICE void load_stored(const Row& row, int64_t begin, int left, float pad, float (&z)[N]) {
  const uint32_t allowed = allowed_bits<N>(row, int(begin));
  if (row.dtype == kFloat32) {
    const float* from = opaque(static_cast<const float*>(memory_of(row)) + begin);
#pragma unroll
    for (int r = 0; r < N; ++r) z[r] = step_of(r) < left && allowed >> r & 1 ? __ldg(from + step_of(r)) : pad;
    return;
  }
  const bool brain = row.dtype == kBFloat16;
  const uint16_t pad_bits = pad == 0 ? 0 : brain ? 0xff80 : 0xfc00;
  const uint16_t* from = opaque(static_cast<const uint16_t*>(memory_of(row)) + begin);
  constexpr int kAtOnce = N < kGroup ? N : kGroup;
#pragma unroll
  for (int j = 0; j < N / kAtOnce; ++j) {
    uint32_t bits[kAtOnce];
#pragma unroll
    for (int e = 0; e < kAtOnce; ++e) {
      const int r = j * kAtOnce + e;
      bits[e] = step_of(r) < left && allowed >> r & 1 ? __ldg(from + step_of(r)) : pad_bits;
    }
#pragma unroll
    for (int e = 0; e < kAtOnce; ++e)
      z[j * kAtOnce + e] = brain ? __uint_as_float(bits[e] << 16) : half_to_float(bits[e]);
  }
}
// The same with the whole view applied, up to the end of the row
template <int N>
SPECDEC_DEVICE void load_entries(const Row& row, int64_t begin, float pad, float (&z)[N]) {
  const int64_t rest = row.V - begin;
  const int left = rest < kChunk ? int(rest) : kChunk;  // entries up to the end of the row, at most kChunk
  load_stored(row, begin, left, pad, z);
  if (row.is_seen()) see(row, begin, left, z);
}

// How many entries of a chunk are inside the row
SPECDEC_DEVICE int left_of(const Row& row, int64_t chunk) {
  const int64_t rest = row.V - chunk * kChunk;
  return rest < kChunk ? int(rest) : kChunk;
}
// Whether a chunk with `left` entries cannot be loaded by whole groups: the row is not aligned, or a view changes it,
// or its last group is not full
SPECDEC_DEVICE bool has_no_groups(const Row& row, int left) { return !aligned(row) || left % kGroup != 0; }

// Calls f with groups first .. first + N - 1 of a chunk that can be loaded by whole groups. Groups beyond the row are
// filled with `pad` (0 or -inf). All loads are issued before any of their results is used.
template <int N, class F>
SPECDEC_DEVICE void with_groups(const Row& row, int64_t chunk, int first, int left, float pad, const F& f) {
  with_dtype(row.dtype, [&](auto type) {
    Group<decltype(type)::value> raw[N];
    const char* at = group_at<decltype(type)::value>(row, chunk, first);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (group_begin(first + j) < left)
        raw[j].load(at + j * raw[j].kStep);
      else
        raw[j].fill(pad);
    }
    f(raw);
  });
}

// Loads groups as floats, by 16-byte loads if the chunk allows them.
template <int N>
SPECDEC_DEVICE void load_groups(const Row& row, int64_t chunk, int first, float pad, float (&z)[N * kGroup]) {
  const int left = left_of(row, chunk);
  if (has_no_groups(row, left)) return load_entries(row, chunk * kChunk + group_begin(first), pad, z);
  with_groups<N>(row, chunk, first, left, pad, [&](const auto& raw) {
#pragma unroll
    for (int r = 0; r < N * kGroup; ++r) z[r] = raw[r / kGroup][r % kGroup];
  });
}

// GroupsOf and RunOf name the entries of a row that a thread holds: N groups of a chunk, or N adjacent entries. id(r)
// is the id of entry r. All these ids lie in [begin(), begin() + kSpan). begin() is the same for all lanes in GroupsOf,
// but not in RunOf. load() returns the entries as floats. raw() and floats() do it in two steps: raw() issues the
// loads, and floats() converts their results. So the loads of two rows can overlap. Only EarlyGroupsOf and RunOf
// separate the two; GroupsOf loads and converts in raw().
template <int N>
struct GroupsOf {
  static constexpr int kEntries = N * kGroup, kSpan = kChunk;
  int64_t chunk;
  int first = 0;

  SPECDEC_DEVICE int64_t id(int r) const { return id_of(chunk, first, r); }
  SPECDEC_DEVICE int64_t begin() const { return chunk * kChunk; }
  SPECDEC_DEVICE void load(const Row& row, float pad, float (&z)[kEntries]) const {
    load_groups<N>(row, chunk, first, pad, z);
  }
  SPECDEC_DEVICE void raw(const Row& row, float pad, float (&z)[kEntries]) const { load(row, pad, z); }
  SPECDEC_DEVICE void floats(const Row&, float, float (&)[kEntries]) const {}
};
// GroupsOf for loops over two rows: raw() leaves 16-bit entries packed, and floats() unpacks them.
template <int N>
struct EarlyGroupsOf : GroupsOf<N> {
  using GroupsOf<N>::kEntries, GroupsOf<N>::kSpan, GroupsOf<N>::chunk, GroupsOf<N>::first;

  SPECDEC_DEVICE void raw(const Row& row, float pad, float (&z)[kEntries]) const {
    const int left = left_of(row, chunk);
    if (has_no_groups(row, left)) return this->load(row, pad, z);
    with_groups<N>(row, chunk, first, left, pad, [&](const auto& raw) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
#pragma unroll
        for (int w = 0; w < raw[j].kWords; ++w) z[j * kGroup + w] = __uint_as_float(raw[j].words[w]);
      }
    });
  }
  SPECDEC_DEVICE void floats(const Row& row, float, float (&z)[kEntries]) const {
    if (row.dtype == kFloat32 || has_no_groups(row, left_of(row, chunk))) return;
    row.dtype == kBFloat16 ? unpack<kBFloat16>(z) : unpack<kFloat16>(z);
  }

 private:
  template <DType kType>
  static SPECDEC_DEVICE void unpack(float (&z)[kEntries]) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      Group<kType> raw;
#pragma unroll
      for (int w = 0; w < raw.kWords; ++w) raw.words[w] = __float_as_uint(z[j * kGroup + w]);
#pragma unroll
      for (int e = 0; e < kGroup; ++e) z[j * kGroup + e] = raw[e];
    }
  }
};
template <int N>
struct RunOf {
  static constexpr int kEntries = N, kSpan = N;
  int64_t first;

  SPECDEC_DEVICE int64_t id(int r) const { return first + r; }
  SPECDEC_DEVICE int64_t begin() const { return first; }
  // Needs fewer registers than raw() and floats().
  SPECDEC_DEVICE void load(const Row& row, float pad, float (&z)[N]) const { load_entries(row, first, pad, z); }
  // For an entry beyond the row this loads the row's last entry, so that no lane branches.
  SPECDEC_DEVICE void raw(const Row& row, float pad, float (&z)[N]) const {
    if (row.is_seen()) return load(row, pad, z);
    const bool wide = row.dtype == kFloat32;
    const char* const from = place_of(row, first);
    const int left = left_of_run(row);
#pragma unroll
    for (int r = 0; r < N; ++r) {
      const char* const at = from + (r < left ? r : left - 1) * (wide ? 4 : 2);
      z[r] = __uint_as_float(wide ? __ldg(reinterpret_cast<const uint32_t*>(at))
                                  : __ldg(reinterpret_cast<const uint16_t*>(at)));
    }
  }
  SPECDEC_DEVICE void floats(const Row& row, float pad, float (&z)[N]) const {
    if (row.is_seen()) return;
    const int left = left_of_run(row);
    if (row.dtype != kFloat32) {
#pragma unroll
      for (int r = 0; r < N; ++r) {
        const uint32_t bits = __float_as_uint(z[r]);
        z[r] = row.dtype == kBFloat16 ? __uint_as_float(bits << 16) : half_to_float(bits);
      }
    }
#pragma unroll
    for (int r = 0; r < N; ++r) z[r] = r < left ? z[r] : pad;
  }

 private:
  // How many of the N entries are inside the row; less than 1 if the run begins after its end
  SPECDEC_DEVICE int left_of_run(const Row& row) const {
    const int64_t rest = row.V - first;
    return rest < N ? int(rest) : N;
  }
};

}  // namespace specdec
