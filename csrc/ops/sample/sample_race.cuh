// SPDX-License-Identifier: Apache-2.0
// The races of rows
#pragma once

#include <functional>

#include "../../cuda/launch.h"
#include "sample.h"

namespace specdec {

// Takes the memory of races on rows without ids, or with ids, and returns the function that launches them.
template <bool kById>
std::function<void()> prepare_race(const Sample& a, const Tensor& like, cudaStream_t stream);

}  // namespace specdec
