// SPDX-License-Identifier: Apache-2.0
// Bits of the status that an op returns for each request. tree_mask has its own.
#pragma once

#include <cstdint>

namespace specdec {

enum Status : int32_t { kInvalidRow = 1, kEmptyResidual = 2, kInvalidDraft = 4, kInvalidBonus = 8, kHistoryFull = 16 };

}  // namespace specdec
