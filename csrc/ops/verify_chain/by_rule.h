// SPDX-License-Identifier: Apache-2.0
// Verifies one request by its method and its rule. Under a rule that does not replace the target's distribution, drafts
// are always verified token by token.
#pragma once

#include "block_verification.h"
#include "token.h"

namespace specdec {

// The number of Positions to allocate for verifying one request
SPECDEC_HD int64_t positions_of(const VerifyChain& a) { return a.block ? a.G + 1 : 1; }

template <class Executor>
SPECDEC_WALK void verify_request(Executor& executor, const VerifyChain& a, int64_t b, Position* positions) {
  if (a.block && replaces_target(a.rules[b])) return verify_block(executor, a, b, positions);
  verify_tokens(executor, a, b, *positions);
}

}  // namespace specdec
