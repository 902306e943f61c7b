// SPDX-License-Identifier: Apache-2.0
// The launch of batches in which some request asks for a rule, or for block verification.
#pragma once

#include "../common/cuda_launch.h"
#include "verify_chain.h"

namespace specdec {

void run_requests(const VerifyChain& a, const Tensor& like, cudaStream_t stream);

}  // namespace specdec
