// SPDX-License-Identifier: Apache-2.0
// A sort key for an id and its worth, the number by which ids are ranked. A larger worth has a larger key. If two
// worths are equal, the lower id has the larger key. A NaN worth has the smallest keys. Two ids of a row never have
// equal keys.
#pragma once

#include "filters.h"

namespace specdec {

SPECDEC_HD uint32_t worth_order(float x) { return x == x ? ordered(x + 0.0f) : 0; }
SPECDEC_HD uint64_t order_of(float x, int64_t id) { return uint64_t(worth_order(x)) << 32 | uint32_t(~id); }
SPECDEC_HD int64_t id_of_order(uint64_t order) { return int64_t(uint32_t(~order)); }
SPECDEC_HD float worth_of_order(uint64_t order) { return from_ordered(uint32_t(order >> 32)); }  // NaN stays NaN

// Ranks entries by their logits
struct ByLogit {
  SPECDEC_HD float operator()(float z) const { return z; }
};

}  // namespace specdec
