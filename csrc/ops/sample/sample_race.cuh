// SPDX-License-Identifier: Apache-2.0
// The launches of races on rows (race_cuda.cu)
#pragma once

#include <functional>

#include "../../cuda/launch.h"
#include "sample.h"

namespace specdec {

// Allocates the memory for races on rows with ids (kById) or without, and returns the function that launches them.
template <bool kById>
std::function<void()> prepare_race(const Sample& a, const Tensor& like, cudaStream_t stream);

}  // namespace specdec
