// SPDX-License-Identifier: Apache-2.0
// How an op's rows are seen under penalties, found by a launch in front of those that read them.
#pragma once

#include "../core/rows.h"
#include "groups.cuh"
#include "launch.h"

namespace specdec {

// The view of a number: of a row as it lies, as request b sees it after the window that ends at a position
SPECDEC_DEVICE void put_view(const Penalties& p, int64_t number, const Row& row, int64_t b, int64_t position) {
  Seen seen{row.pointer(), {}, !p.fine(b)};
  if (seen.invalid || p.amounts(b).any()) seen.view = {p.on_device, int32_t(b), int32_t(position)};
  p.seen[number] = seen;
}

// Of rows [N, V]. Other ops have functions of the same names.
template <class F>
void for_penalties(SeenRows& rows, const F& f) {
  f(rows.penalties);
}
SPECDEC_DEVICE void put_views(const SeenRows& rows, int64_t n) {
  put_view(rows.penalties, n, rows.RowMemory::at(0, n), n, rows.drafted);
}
SPECDEC_DEVICE void keep_penalties(const SeenRows& rows) { *rows.penalties.on_device = rows.penalties; }

// Of both sides of a verification
template <class Op, class F>
void for_penalties(Op& a, const F& f) {
  f(a.target.penalties), f(a.draft.penalties);
}
template <class Op>
SPECDEC_DEVICE void keep_penalties(const Op& a) {
  if (a.target.penalties) *a.target.penalties.on_device = a.target.penalties;
  if (a.draft.penalties) *a.draft.penalties.on_device = a.draft.penalties;
}

// put_views(a, i) for each i below n
template <class Op>
__global__ void __launch_bounds__(kThreads) make_views(const Op a, int64_t n) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i == 0) keep_penalties(a);
  if (i < n) put_views(a, i);
}

// Room for the views of an op's rows, `most` of each side. Takes it where there are penalties, and says so in `a`;
// make() is the launch.
class ViewsRoom {
 public:
  template <class Op>
  ViewsRoom(const Tensor& like, Op& a, int64_t most) {
    for_penalties(a, [&](const Penalties& p) {
      if (p) scratch_.ask<Penalties>(1), scratch_.ask<Seen>(most), any_ = true;
    });
    if (!any_) return;
    scratch_.allocate(like);
    Scratch again;
    for_penalties(a, [&](Penalties& p) {
      if (p)
        p.on_device = scratch_.at<Penalties>(again.ask<Penalties>(1)),
        p.seen = scratch_.at<Seen>(again.ask<Seen>(most));
    });
  }
  template <class Op>
  void make(const char* op, const Op& a, int64_t n, [[maybe_unused]] cudaStream_t stream) const {
    if (any_) SPECDEC_LAUNCH(op, make_views<Op>, (n + kThreads - 1) / kThreads, stream, a, n);
  }

 private:
  Scratch scratch_;
  bool any_ = false;
};

}  // namespace specdec
