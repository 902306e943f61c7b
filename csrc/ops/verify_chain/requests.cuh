// SPDX-License-Identifier: Apache-2.0
// The walks of the requests that ask for a rule, or for block verification. `a` has the laws of all their rows.
#pragma once

#include "../../cuda/launch.h"
#include "verify_chain.h"

namespace specdec {

void run_requests(const VerifyChain& a, const Tensor& like, cudaStream_t stream);

}  // namespace specdec
