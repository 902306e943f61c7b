// SPDX-License-Identifier: Apache-2.0
// Verification of one request's tree of drafts, for any Team; the methods stand in files of their own.
#pragma once

#include "kseq.h"
#include "recursive.h"
#include "target_only.h"
#include "traversal.h"

namespace specdec {

// links [most_links()]; frames [D + 1], for traversal alone.
template <class Team>
SPECDEC_WALK void verify_tree(Team& team, const VerifyTree& a, int64_t b, Link* links, Frame* frames) {
  Walk<Team> walk(team, a, b, links);
  if (a.bad_tree(b)) walk.status |= kInvalidDraft;
  switch (a.method) {
    case Method::kKseq: walk_kseq(walk); break;
    case Method::kRecursive: walk_recursively<true>(walk); break;
    case Method::kRecursiveWithoutReplacement: walk_recursively<false>(walk); break;
    case Method::kTargetOnly: walk_target_only(walk); break;
    case Method::kGreedy: walk_greedily(walk); break;
    case Method::kTraversal: Traversal<Team>(walk, frames).run(); break;
  }
  walk.finish();
}

}  // namespace specdec
