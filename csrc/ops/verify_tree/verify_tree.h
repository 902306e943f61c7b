// SPDX-License-Identifier: Apache-2.0
// Verification of one request's tree of drafts, for any Executor. The methods are in the files included here; the race
// is in race.h.
#pragma once

#include "kseq.h"
#include "recursive.h"
#include "target_only.h"
#include "traversal.h"

namespace specdec {

enum class Methods { kAll, kKseq, kTraversal, kOthers };  // the methods that are compiled in

// frames: [a.frames()], used only by traversal
template <Methods kMethods = Methods::kAll, class Executor>
SPECDEC_WALK void verify_tree(Executor& executor, const VerifyTree& a, int64_t b, const WalkRoom& room, Frame* frames) {
  Walk<Executor> walk(executor, a, b, room);
  if (a.bad_tree(b)) walk.status |= kInvalidDraft;
  constexpr bool all = kMethods == Methods::kAll;
  if constexpr (all || kMethods == Methods::kKseq) {
    if (a.method == Method::kKseq) walk_kseq(walk);
  }
  if constexpr (all || kMethods == Methods::kTraversal) {
    if (a.method == Method::kTraversal) Traversal<Executor>(walk, frames).run();
  }
  if constexpr (all || kMethods == Methods::kOthers) {
    if (a.method == Method::kRecursive) walk_recursively<true>(walk);
    if (a.method == Method::kRecursiveWithoutReplacement) walk_recursively<false>(walk);
    if (a.method == Method::kTargetOnly) walk_target_only(walk);
    if (a.method == Method::kGreedy) walk_greedily(walk);
  }
  walk.finish();
}

}  // namespace specdec
