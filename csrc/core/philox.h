// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10 (Salmon et al., SC'11), stateless: a uniform is a function of (seed, offset, domain, slot) alone.
#pragma once

#include <cstdint>

#include "macros.h"

namespace specdec {

// The purpose of a random number. Acceptance tests, final draws and draft samples each have a domain, so their numbers
// are independent. Races (race.h) share one domain, because a position's noise must be the same each time: on the
// target's row, on the draft's row, and in every step that drafts the position.
enum Domain : uint32_t { kDomainAccept = 0, kDomainFinal = 1, kDomainDraft = 2, kDomainNoise = 3 };

// Four words: the counter, or the output of one Philox block
struct Words {
  uint32_t w[4];
};

constexpr int kRounds = 10;
constexpr uint32_t kFactor0 = 0xD2511F53u, kFactor1 = 0xCD9E8D57u, kStep0 = 0x9E3779B9u, kStep1 = 0xBB67AE85u;

// multiply(x, y) returns the product of two uint32_t as a uint64_t.
template <class Multiply>
SPECDEC_HD Words philox4x32(Words counter, uint32_t key0, uint32_t key1, const Multiply& multiply) {
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t a = multiply(kFactor0, counter.w[0]);
    const uint64_t b = multiply(kFactor1, counter.w[2]);
    counter = {
        {uint32_t(b >> 32) ^ counter.w[1] ^ key0, uint32_t(b), uint32_t(a >> 32) ^ counter.w[3] ^ key1, uint32_t(a)}};
    key0 += kStep0;
    key1 += kStep1;
  }
  return counter;
}

SPECDEC_HD Words philox4x32(Words counter, uint32_t key0, uint32_t key1) {
  return philox4x32(counter, key0, key1, [](uint32_t x, uint32_t y) { return uint64_t{x} * y; });
}

constexpr int64_t kSlots = int64_t{1} << 33;  // per (seed, offset, domain): two for each 32-bit block number

// A 53-bit uniform in [0, 1): slot i takes word pair (i & 1) of block i >> 1. Only the low 33 bits of a slot are used.
SPECDEC_HD double uniform(int64_t seed, int64_t offset, uint32_t domain, uint64_t slot) {
  const uint64_t s = uint64_t(seed), o = uint64_t(offset);
  const Words r =
      philox4x32({{uint32_t(slot >> 1), uint32_t(o), uint32_t(o >> 32), domain}}, uint32_t(s), uint32_t(s >> 32));
  // Two conditional choices of a word, not an index: on a device, an array with a variable index would be in memory.
  const bool second = slot & 1;
  const uint64_t bits = (uint64_t{second ? r.w[2] : r.w[0]} << 32 | (second ? r.w[3] : r.w[1])) >> 11;
  return double(bits) * 0x1p-53;
}

// A caller's uniform, clamped to [0, 1); NaN counts as 0.
SPECDEC_HD double given_uniform(double u) { return u > 0 ? (u < 1 ? u : 1 - 0x1p-53) : 0; }

}  // namespace specdec
