// SPDX-License-Identifier: Apache-2.0
// Bits of the status that verify_chain, verify_tree and count_tokens_ return for each request. tree_mask has other bits
// (tree_mask.h).
//   kInvalidRow: a row that was needed held NaN, +inf or no finite value, or its index, parameters or view is invalid;
//     in count_tokens_: a list is invalid
//   kEmptyResidual: (p - q)+ had no mass, so q was not subtracted
//   kInvalidDraft: q of a drafted token was not a probability, so the draft was rejected
//   kInvalidBonus: the caller's bonus token was not an id below V
//   kHistoryFull: (count_tokens_) a list had no room for every token
#pragma once

#include <cstdint>

namespace specdec {

enum Status : int32_t { kInvalidRow = 1, kEmptyResidual = 2, kInvalidDraft = 4, kInvalidBonus = 8, kHistoryFull = 16 };

}  // namespace specdec
