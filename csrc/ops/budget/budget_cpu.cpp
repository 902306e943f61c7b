// SPDX-License-Identifier: Apache-2.0
#include "../../binding/cpu_op.h"
#include "../../cpu/one_lane.h"
#include "budget_op.h"

namespace specdec {
namespace {

struct Lane : OneLane {
  void add(int* count) const { ++*count; }
};

void run(const Budget& a, const Tensor&) {
  SlotSearch search;
  spread(a, search, Lane());
}

}  // namespace

SPECDEC_CPU_OP("budget", budget_op)

}  // namespace specdec
