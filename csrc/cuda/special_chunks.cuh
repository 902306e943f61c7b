// SPDX-License-Identifier: Apache-2.0
// Chunks that loops over whole chunks leave to a loop that serves any: a set of bits in shared memory, made once a
// block.
#pragma once

#include "thread_block.cuh"

namespace specdec {

constexpr int kWordBits = 32;
static_assert(kWordBits % kWarps == 0);

class SpecialChunks {
 public:
  // By all threads of a block, which may ask it behind this: word_of(i) has a bit for each of chunks 32 i .. 32 i + 31.
  template <class WordOf>
  SPECDEC_DEVICE void make(int64_t chunks, const WordOf& word_of) {
    for (int i = threadIdx.x; i * kWordBits < int(chunks); i += kThreads) words_[i] = word_of(i);
    __syncthreads();
  }
  SPECDEC_DEVICE uint32_t word(int i) const { return words_[i]; }
  SPECDEC_DEVICE bool has(int c) const { return words_[c / kWordBits] >> c % kWordBits & 1; }

 private:
  uint32_t words_[kMostChunks / kWordBits];
};

// None
struct NoSpecialChunks {
  SPECDEC_DEVICE uint32_t word(int) const { return 0; }
  SPECDEC_DEVICE bool has(int) const { return false; }
};

// f(c), as for_chunks() shares them out, of the chunks of block `part` that lie from `first` on or are special.
template <class Special, class F>
SPECDEC_DEVICE void for_left_chunks(int64_t chunks, int first, const Special& special, int part, int per_warp,
                                    const F& f) {
  const int begin = part * per_warp * kWarps, behind = begin + per_warp * kWarps;
  const int end = behind < int(chunks) ? behind : int(chunks);
  const uint32_t of_warp = 0x01010101u << threadIdx.x / kLanes;  // chunk c is that of warp c % kWarps
  static_assert(kWarps == 8);
  const auto from = [](int c, int base) { return c <= base ? ~0u : c < base + kWordBits ? ~0u << (c - base) : 0u; };
#pragma unroll 1
  for (int base = begin / kWordBits * kWordBits; base < end; base += kWordBits) {
    uint32_t left = (special.word(base / kWordBits) | from(first, base)) & from(begin, base) & ~from(end, base);
#pragma unroll 1
    for (left &= of_warp; left; left &= left - 1) f(base + __ffs(int(left)) - 1);
  }
}

}  // namespace specdec
