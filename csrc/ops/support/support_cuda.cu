// SPDX-License-Identifier: Apache-2.0
// The blocks of a row write the bits of its chunks. The last of them to finish lists the ids whose bits are set.
#include "../../cuda/chunk_reduce.cuh"
#include "../../cuda/views.cuh"
#include "support.h"

namespace specdec {
namespace {

struct SupportLaunch {
  Support a;
  ChunkTable table;  // sum: how many ids of each chunk are kept
  RowGrid grid;
};

// Bit e: whether id first + e is kept. Its entry is z[e].
SPECDEC_DEVICE unsigned kept_bits(const Dist& p, int64_t V, int64_t first, const float* z) {
  unsigned bits = 0;
#pragma unroll
  for (int e = 0; e < kGroup; ++e) {
    const bool kept = p.kind == Kind::kLogits ? z[e] >= p.stats.cutoff && first + e < V : first + e == p.hot;
    bits |= unsigned(kept) << e;
  }
  return bits;
}

// Writes the bits of chunk c: each lane writes a byte for each of its groups of eight ids. Returns how many ids of the
// chunk are kept.
SPECDEC_DEVICE float put_bits(const Support& a, const Dist& p, int64_t c, uint32_t* words) {
  float z[kGroups * kGroup] = {};
  if (p.kind == Kind::kLogits) load_groups<kGroups>(p.row, c, 0, -HUGE_VALF, z);
  int count = 0;
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    const int64_t first = id_of(c, j, 0);
    const unsigned bits = kept_bits(p, a.logits.V, first, z + j * kGroup);
    if (first < 32 * a.words) reinterpret_cast<uint8_t*>(words)[first / 8] = uint8_t(bits);
    count += __popc(bits);
  }
  return warp_sum(float(count));
}

// Writes the ids of one chunk from ids[at] on. Each lane handles one word.
SPECDEC_DEVICE void list_chunk(const Support& a, int64_t c, const uint32_t* words, int64_t at, int32_t* ids) {
  const int64_t w = c * kLanes + threadIdx.x % kLanes;
  uint32_t word = w < a.words ? __ldcg(words + w) : 0;
  at += warp_upto(__popc(word)) - __popc(word);
  for (; word && at < a.max_kept; word &= word - 1) ids[at++] = int32_t(32 * w + __ffs(int(word)) - 1);
}

// Lists the kept ids of a row. Returns how many there are.
SPECDEC_DEVICE int64_t list_ids(const Support& a, const float* kept, const uint32_t* words, int32_t* ids) {
  static_assert(kChunk == 32 * kLanes);
  __shared__ int before[kThreads];
  const int64_t chunks = chunk_count(a.logits.V);
  int64_t count = 0;
  for (int64_t first = 0; first < chunks; first += kThreads) {
    const int64_t own = first + threadIdx.x;
    const Prefix<int> prefix = block_scan(own < chunks ? int(__ldcg(kept + own)) : 0);
    before[threadIdx.x] = prefix.before;
    __syncthreads();
    for (int i = threadIdx.x / kLanes; i < kThreads && first + i < chunks; i += kWarps) {
      if (count + before[i] < a.max_kept) list_chunk(a, first + i, words, count + before[i], ids);
    }
    count += prefix.total;
    __syncthreads();
  }
  return count;
}

__global__ void __launch_bounds__(kThreads, 4) keep(const SupportLaunch s) {
  const Support& a = s.a;
  const int64_t i = s.grid.row(), chunks = chunk_count(a.logits.V);
  const Dist p = a.dist(i);
  uint32_t* words = a.bits + i * a.words;
  float* kept = s.table.row(i, chunks).sum;
  for_chunks(chunks, s.grid.part(), s.grid.per_warp, [&](int64_t c) {
    const float count = put_bits(a, p, c, words);
    if (threadIdx.x % kLanes == 0) __stcg(kept + c, count);
  });
  if (!s.grid.last()) return;
  int32_t* ids = a.ids + i * a.max_kept;
  const int64_t count = list_ids(a, kept, words, ids);
  if (threadIdx.x == 0) a.counts[i] = int32_t(count);
  for (int64_t at = count + threadIdx.x; at < a.max_kept; at += kThreads) ids[at] = -1;
}

}  // namespace

void run(const Support& a, const Tensor& like) {
  constexpr const char* kOp = "support";
  const OnDeviceOf device(like);
  Scratch scratch;
  const RowGridRoom room(scratch, a.M, a.logits.V, false);
  scratch.allocate(like);
  SupportLaunch s{a, {}, {}};
  const ViewsRoom views(like, s.a.logits, a.N);
  room.take(kOp, scratch, device.stream, s.grid, s.table);
  views.make(kOp, s.a.logits, a.N, device.stream);
  SPECDEC_LAUNCH(kOp, keep, a.M * s.grid.blocks, device.stream, s);
}

}  // namespace specdec
