// SPDX-License-Identifier: Apache-2.0
// A row's entries under penalties. Only ids that the request has used change.
#pragma once

#include <cstdint>

#include "../core/penalties.h"

namespace specdec {

// Whether an id in [begin, begin + n) was used
bool is_used(const View& view, int64_t begin, int n);

// Entry z of id v
float penalised(const View& view, int64_t v, float z);

// The entries e of ids [begin, begin + n), in place
void penalise(const View& view, int64_t begin, int n, float* e);

}  // namespace specdec
