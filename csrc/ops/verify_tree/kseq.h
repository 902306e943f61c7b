// SPDX-License-Identifier: Apache-2.0
// K-SEQ (SpecTr, Sun et al. 2023; in the paper, p is the draft and q the target). At a node, k drafts remain whose next
// tokens are i.i.d. from q. They are tested in order, and each is accepted with probability min(1, p / (rho q)). If
// none is, the token is drawn from norm(p - c min(q, p / rho)), c = p_acc / beta. This is exact for every rho that is
// not less than the best one (kseq_rho.h).
#pragma once

#include "../kseq_rho/kseq_rho.h"
#include "walk.h"

namespace specdec {

template <class Executor>
SPECDEC_WALK int32_t accept_by_kseq(Walk<Executor>& walk, const Tests& tests) {
  const Dist& p = walk.rest.p;
  Tests all = tests;
  const int32_t first = walk.next(all).child;
  if (first < 0) return -1;
  walk.complete_pi();
  if (walk.own().kind == Kind::kProbs && !has_mass(walk.executor().sum(walk.rest))) return -1;
  int64_t k = 1;
  for (Test t = walk.next(all); t.child >= 0; t = walk.next(all)) {
    if (walk.same_dist(first, t.child))
      ++k;
    else
      walk.status |= kInvalidDraft;
  }
  double q_first;
  if constexpr (Executor::kMakesRuleDists)
    q_first = walk.draft(first);
  else
    q_first = walk.draft_again(first);  // q is known: the walk recalled it at this node
  if (q_first != q_first || (walk.draft_row(first) < 0 && walk.token(first) >= p.row.V)) return -1;
  const KSeq best = kseq_rho(walk.executor(), walk.rest, walk.dist_of(first), k);
  if (best.beta != best.beta) {  // q is an invalid probability row, which only its sum shows
    walk.status |= kInvalidRow | kInvalidDraft;
    return -1;
  }
  const float s = float(best.beta > 0 ? best.p_acc / best.beta : best.rho), cap = float(1 / best.rho);

  Tests each = tests;
  for (Test t = walk.next(each); t.child >= 0; t = walk.next(each)) {
    if (!walk.same_dist(first, t.child)) continue;
    const double q_t = walk.draft_again(t.child);
    if (accept(walk.residual(walk.token(t.child)), q_t, walk.test_uniform(t.column) * best.rho)) return t.child;
  }
  Subtraction subtraction = subtracting(walk.dist_of(first));
  subtraction.s = s, subtraction.cap = cap;
  walk.push(subtraction);
  return -1;
}

template <class Executor>
SPECDEC_WALK void walk_kseq(Walk<Executor>& walk) {
  descend(walk, [](Walk<Executor>& w, const Tests& tests) { return accept_by_kseq(w, tests); });
}

}  // namespace specdec
