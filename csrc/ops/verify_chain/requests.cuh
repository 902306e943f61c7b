// SPDX-License-Identifier: Apache-2.0
// The walks of the requests that ask for a rule, or for block verification.
#pragma once

#include <functional>

#include "../../cuda/launch.h"
#include "verify_chain.h"

namespace specdec {

// Takes the memory that they need; what it returns launches them, given an `a` with the laws of all their rows.
std::function<void(const VerifyChain& a)> prepare_requests(const VerifyChain& a, const Tensor& like,
                                                           cudaStream_t stream);

}  // namespace specdec
