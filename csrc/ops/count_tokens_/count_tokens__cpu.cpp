// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>

#include "../../binding/cpu_op.h"
#include "../../cpu/one_lane.h"
#include "../../threads.h"
#include "count_tokens__op.h"

namespace specdec {
namespace {

// The lists and their indices have been checked (check_values), so no list is invalid or shared.
struct Lane : OneLane {
  int min(int x) const { return x; }
  int ids_in(const UsedList& list) const {
    return int(std::partition_point(list.ids, list.ids + list.H, [](int32_t id) { return id >= 0; }) - list.ids);
  }
  int place_in(const int32_t* ids, int n, int32_t v) const { return int(std::lower_bound(ids, ids + n, v) - ids); }
  bool named_before(const CountTokens&, int64_t) const { return false; }
};

void run(const CountTokens& a, const Tensor&) {
  parallel_for(0, a.B, 1 + 16384 / (a.H + 8 * a.n + 1), [&](int64_t begin, int64_t end) {
    const auto step = std::make_unique<StepTokens>();
    for (int64_t b = begin; b < end; ++b) a.status[b] = count_tokens(a, b, *step, Lane());
  });
}

}  // namespace

SPECDEC_CPU_OP("count_tokens_", count_tokens_op)

}  // namespace specdec
