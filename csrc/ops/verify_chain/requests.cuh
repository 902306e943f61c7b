// SPDX-License-Identifier: Apache-2.0
// The walks of the requests that ask for a rule, for block verification, or for the race.
#pragma once

#include <functional>

#include "../../cuda/launch.h"
#include "verify_chain.h"

namespace specdec {

// Allocates the memory that the walks by a rule and for block verification need, and returns the function that launches
// them. That function must be given an `a` with the stats of all their rows.
template <bool kById>
std::function<void(const VerifyChain& a)> prepare_requests(const VerifyChain& a, const Tensor& like,
                                                           cudaStream_t stream);

// Allocates the memory that races need, which read no draft row, and returns the function that launches them.
std::function<void()> prepare_race(const VerifyChain& a, const Tensor& like, cudaStream_t stream);

}  // namespace specdec
