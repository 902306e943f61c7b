// SPDX-License-Identifier: Apache-2.0
// Chunks that loops over whole chunks leave to a loop that serves any: a set of bits in shared memory, made once a
// block. Chunk c is that of warp c % kWarps, here as in for_chunks(), and a warp's bits have bytes of their own: it
// adds chunks to the set, and sees them, with no barrier between it and the other warps.
#pragma once

#include "thread_block.cuh"

namespace specdec {

class SpecialChunks {
 public:
  static constexpr unsigned kSpan = 8 * kWarps;  // chunks of a byte a warp

  // The one chunk, none if it is negative. By all threads of a block, which may ask for it behind this.
  SPECDEC_DEVICE void make(int64_t chunks, int chunk) {
    const int bytes = int((chunks + kSpan - 1) / kSpan * kWarps);
    for (int i = threadIdx.x; i < bytes; i += kThreads)
      bytes_[i] = chunk >= 0 && i == int(place(chunk)) ? bit(chunk) : 0;
    __syncthreads();
  }
  // By all lanes of the chunk's warp
  SPECDEC_DEVICE void add(int c) {
    __syncwarp();
    if (threadIdx.x % kLanes == 0) bytes_[place(c)] |= bit(c);
    __syncwarp();
  }
  SPECDEC_DEVICE bool has(int c) const { return bytes_[place(c)] & bit(c); }
  // Of this warp's chunks from `base` on, a multiple of kSpan: chunk base + kWarps k + warp is bit k.
  SPECDEC_DEVICE uint32_t of_warp(int base) const { return bytes_[unsigned(base) / kSpan * kWarps + own()]; }

  SPECDEC_DEVICE static int own() { return int(threadIdx.x) / kLanes; }

 private:
  SPECDEC_DEVICE static unsigned place(unsigned c) { return c / kSpan * kWarps + c % kWarps; }
  SPECDEC_DEVICE static unsigned bit(unsigned c) { return 1u << c / kWarps % 8; }

  uint8_t bytes_[kMostChunks / 8];
};

// None
struct NoSpecialChunks {
  SPECDEC_DEVICE void add(int) {}
  SPECDEC_DEVICE uint32_t of_warp(int) const { return 0; }
  SPECDEC_DEVICE bool has(int) const { return false; }
};

// f(c), as for_chunks() shares them out, of the chunks of block `part` that lie from `first` on or are special.
template <class Special, class F>
SPECDEC_DEVICE void for_left_chunks(int64_t chunks, int first, const Special& special, int part, int per_warp,
                                    const F& f) {
  const int begin = part * per_warp * kWarps, behind = begin + per_warp * kWarps;
  const int end = behind < int(chunks) ? behind : int(chunks);
#pragma unroll 1
  for (int base = begin & -int(SpecialChunks::kSpan); base < end; base += int(SpecialChunks::kSpan)) {
    const int own = base + SpecialChunks::own();
    const auto from = [own](int c) {  // the bits of chunks from c on
      const int k = (c - own + kWarps - 1) / kWarps;
      return c <= own ? 0xffu : k < 8 ? 0xffu << k : 0u;
    };
    uint32_t left = (special.of_warp(base) | from(first)) & from(begin) & ~from(end);
#pragma unroll 1
    for (; left; left &= left - 1) f(own + kWarps * (__ffs(int(left)) - 1));
  }
}

}  // namespace specdec
