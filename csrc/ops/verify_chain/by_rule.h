// SPDX-License-Identifier: Apache-2.0
// One request by its method and its rule. A rule that is no law is verified token by token.
#pragma once

#include "block_verification.h"
#include "token.h"

namespace specdec {

// How many places the walk of a request needs
SPECDEC_HD int64_t places_of(const VerifyChain& a) { return a.block ? a.G + 1 : 1; }

template <class Team>
SPECDEC_WALK void verify_request(Team& team, const VerifyChain& a, int64_t b, Place* places) {
  if (a.block && replaces_target(a.rules[b])) return verify_block(team, a, b, places);
  verify_tokens(team, a, b, *places);
}

}  // namespace specdec
