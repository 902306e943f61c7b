// SPDX-License-Identifier: Apache-2.0
// The chunks that a loop over whole chunks leaves to a general loop: a set of bits in shared memory, initialised once
// per block. As in for_chunks() (chunk_reduce.cuh), chunk c belongs to warp c % kWarps. No two warps have bits in the
// same byte, so a warp adds chunks of its own and reads them back without a barrier for the block.
#pragma once

#include "thread_block.cuh"

namespace specdec {

class SpecialChunks {
 public:
  static constexpr unsigned kSpan = 8 * kWarps;  // chunks covered by one byte of every warp

  // Makes the set {chunk}, or the empty set if chunk < 0. All threads of the block call this, and may read the set
  // afterwards.
  SPECDEC_DEVICE void make(int64_t chunks, int chunk) {
    const int bytes = int((chunks + kSpan - 1) / kSpan * kWarps);
    for (int i = threadIdx.x; i < bytes; i += kThreads)
      bytes_[i] = chunk >= 0 && i == int(place(chunk)) ? bit(chunk) : 0;
    __syncthreads();
  }
  // Called by any thread of the block. Before the set is read, there must be a barrier for all threads.
  SPECDEC_DEVICE void add_from_any_warp(int c) {
    atomicOr(reinterpret_cast<unsigned*>(bytes_) + place(c) / 4, bit(c) << place(c) % 4 * 8);
  }
  // Called by all lanes of the chunk's warp
  SPECDEC_DEVICE void add(int c) {
    __syncwarp();
    if (threadIdx.x % kLanes == 0) bytes_[place(c)] |= bit(c);
    __syncwarp();
  }
  SPECDEC_DEVICE bool has(int c) const { return bytes_[place(c)] & bit(c); }
  // This warp's bits of the kSpan chunks from `base`, a multiple of kSpan, on: bit k stands for chunk own() + base +
  // kWarps * k.
  SPECDEC_DEVICE uint32_t of_warp(int base) const { return bytes_[unsigned(base) / kSpan * kWarps + own()]; }

  // The index of this warp
  SPECDEC_DEVICE static int own() { return int(threadIdx.x) / kLanes; }

 private:
  SPECDEC_DEVICE static unsigned place(unsigned c) { return c / kSpan * kWarps + c % kWarps; }
  SPECDEC_DEVICE static unsigned bit(unsigned c) { return 1u << c / kWarps % 8; }

  alignas(4) uint8_t bytes_[kMostChunks / 8];
};

// The empty set
struct NoSpecialChunks {
  SPECDEC_DEVICE void add(int) {}
  SPECDEC_DEVICE uint32_t of_warp(int) const { return 0; }
  SPECDEC_DEVICE bool has(int) const { return false; }
};

// Calls f(c) for the chunks of block `part` that are in `special`, or are not less than `first`. Warps share the chunks
// as in for_chunks().
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
