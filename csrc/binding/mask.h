// SPDX-License-Identifier: Apache-2.0
// A mask of allowed ids as the dispatcher passes it
#pragma once

#include "../core/mask.h"
#include "lists.h"

namespace specdec {

struct GivenMask {
  const char* side;  // in errors
  const OptTensor &bits, &row;
};

#define SPECDEC_MASK_ARGUMENTS(prefix) const OptTensor &prefix##allowed_bits, const OptTensor &prefix##allowed_row
constexpr size_t kMaskArguments = 2;
#define SPECDEC_GIVEN_MASK(side, prefix) \
  GivenMask { side, prefix##allowed_bits, prefix##allowed_row }

// The masks of the target's rows or of the draft's
inline Mask mask(const Op& op, const GivenMask& given, const Positions& positions, const Window& window,
                 const Present& present) {
  Mask m;
  if (!given.bits && !given.row) return m;
  const Name name(given.side, "allowed.bits"), row_name(given.side, "allowed.row");
  check(given.bits.has_value(), op, name, " must be given with allowed.row, got None");
  const Tensor& t = *given.bits;
  check_device(op, name, t);
  check_dims(op, name, t, "S, W");
  check_dtype(op, name, t, ScalarType::Int, "int32");
  check_adjacent(op, name, t);
  // An empty tensor's address may be null, which would mean that there is no mask.
  m.words = static_cast<const uint32_t*>(t.numel() == 0 ? "" : data_of(t));
  m.W = t.size(1), m.stride = t.stride(0);
  take_lists(op, name, row_name, m, t.size(0), given.row, positions);
  if (m.row && values_at_hand(op)) for_lists(op, row_name, m, window, positions, present, [](int64_t) {});
  return m;
}

}  // namespace specdec
