// SPDX-License-Identifier: Apache-2.0
// Lists the best ids of a row in order, by one block, in batches of as many ids as it can sort in shared memory. Worth
// maps an entry to the number by which ids are ranked, and an order (core/order.h) is the sort key of such a number and
// its id. No two ids have equal orders, so ties need no care. A larger entry must not have a smaller worth. So a
// chunk's largest entry bounds the worths of the chunk, and the chunk maxima give a lower bound of the orders in the
// first batch. If the maxima give none, if too many ids reach it, and in later batches, a radix select over the orders
// finds a better bound.
#pragma once

#include "../core/order.h"
#include "thread_block.cuh"

namespace specdec {

constexpr int kSorted = 4096;      // ids of a batch
constexpr int kDigits = kThreads;  // values of a digit in the radix select, one per thread
static_assert(kDigits == 256);

template <class Worth>
class BestIds {
 public:
  // chunk_max [chunks]: the largest entry of each chunk; NaN is ignored
  SPECDEC_DEVICE BestIds(const Row& row, const float* chunk_max, const Worth& worth)
      : row_(row), chunk_max_(chunk_max), worth_(worth), chunks_(int(chunk_count(row.V))) {}

  // Calls put(i, order) for the i-th best id, for every i < k.
  template <class Put>
  SPECDEC_DEVICE void each(int64_t k, const Put& put) {
    uint64_t end = ~uint64_t{0};  // all orders still to come are below it
    for (int64_t done = 0; done < k; done += kSorted) {
      const int wanted = k - done < kSorted ? int(k - done) : kSorted;
      const bool all = row_.V <= kSorted, by_maxima = done == 0 && wanted <= chunks_ && chunks_ <= kSorted;
      int count = kSorted + 1;
      if (all || by_maxima) count = gather(all ? 0 : bound(wanted), end);
      if (count > kSorted) count = gather(select(wanted, end), end);
      sort(count);
      const Shared& s = shared();
      for (int i = threadIdx.x; i < wanted; i += kThreads) put(done + i, s.orders[i]);
      end = s.orders[wanted - 1];
      __syncthreads();
    }
  }

 private:
  struct Shared {
    uint64_t orders[kSorted];
    unsigned digits[kDigits];
    int count;
  };
  SPECDEC_DEVICE static Shared& shared() {
    __shared__ Shared s;
    return s;
  }

  // Calls f(order) for every id in the chunks that may hold an order >= least.
  template <class F>
  SPECDEC_DEVICE void for_orders(uint64_t least, const F& f) const {
    for (int c = threadIdx.x / kLanes; c < chunks_; c += kWarps) {
      if (worth_order(worth_(__ldcg(chunk_max_ + c))) < uint32_t(least >> 32)) continue;
#pragma unroll 1
      for (int j = 0; j < kGroups; ++j) {
        float z[kGroup];
        load_groups<1>(row_, c, j, -HUGE_VALF, z);
#pragma unroll
        for (int e = 0; e < kGroup; ++e) {
          const int64_t id = id_of(c, j, e);
          if (id < row_.V) f(order_of(worth_(z[e]), id));
        }
      }
    }
  }

  // A lower bound that the orders of at least `wanted` ids reach, made from the `wanted`-th largest of the chunk
  // maxima; 0 if these give none
  SPECDEC_DEVICE uint64_t bound(int wanted) const {
    Shared& s = shared();
    for (int c = threadIdx.x; c < chunks_; c += kThreads) s.orders[c] = order_of(worth_(__ldcg(chunk_max_ + c)), 0);
    sort(chunks_);
    const uint32_t least = uint32_t(s.orders[wanted - 1] >> 32);
    __syncthreads();
    // A chunk that is all NaN has a maximum of -inf, which none of its entries reaches.
    return least > worth_order(-HUGE_VALF) ? uint64_t(least) << 32 : 0;
  }

  // Stores the orders in [least, end), up to kSorted of them, and returns how many there are.
  SPECDEC_DEVICE int gather(uint64_t least, uint64_t end) const {
    Shared& s = shared();
    if (threadIdx.x == 0) s.count = 0;
    __syncthreads();
    for_orders(least, [&](uint64_t order) {
      if (order < least || order >= end) return;
      const int at = atomicAdd(&s.count, 1);
      if (at < kSorted) s.orders[at] = order;
    });
    __syncthreads();
    const int count = s.count;
    __syncthreads();
    return count;
  }

  // Returns a bound such that at least `wanted` and at most kSorted orders lie in [bound, end). Each read of the row
  // finds eight bits of the bound.
  SPECDEC_DEVICE uint64_t select(int wanted, uint64_t end) const {
    Shared& s = shared();
    uint64_t found = 0, known = 0;  // the bound's high bits, and their mask
    int over = 0;                   // how many orders have higher high bits
    for (int shift = 56; shift >= 0; shift -= 8) {
      s.digits[threadIdx.x] = 0;
      __syncthreads();
      for_orders(found, [&](uint64_t order) {
        if ((order & known) == found && order < end) atomicAdd(&s.digits[order >> shift & (kDigits - 1)], 1u);
      });
      __syncthreads();
      const int digit = kDigits - 1 - int(threadIdx.x), own = int(s.digits[digit]);
      const int upto = over + block_scan(own).before + own;
      const int chosen = block_max(upto >= wanted ? digit : -1);
      if (digit == chosen) s.count = upto;
      __syncthreads();
      const int count = s.count;
      over = count - int(s.digits[chosen]);
      found |= uint64_t(chosen) << shift, known |= uint64_t(kDigits - 1) << shift;
      __syncthreads();
      if (count <= kSorted) break;
    }
    return found;
  }

  // Sorts the first `count` stored orders by a bitonic network, largest first.
  SPECDEC_DEVICE static void sort(int count) {
    Shared& s = shared();
    int n = 2;
    while (n < count) n *= 2;
    for (int i = count + int(threadIdx.x); i < n; i += kThreads) s.orders[i] = 0;  // below every order
    for (int size = 2; size <= n; size *= 2) {
      for (int step = size / 2; step > 0; step /= 2) {
        __syncthreads();
        for (int i = threadIdx.x; i < n / 2; i += kThreads) {
          const int at = 2 * i - i % step, other = at + step;
          const uint64_t x = s.orders[at], y = s.orders[other];
          if ((x < y) == !(at & size)) s.orders[at] = y, s.orders[other] = x;
        }
      }
    }
    __syncthreads();
  }

  const Row row_;
  const float* chunk_max_;
  const Worth worth_;
  const int chunks_;
};

}  // namespace specdec
