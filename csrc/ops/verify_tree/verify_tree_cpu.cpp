// SPDX-License-Identifier: Apache-2.0
#include "../../binding/cpu_op.h"
#include "../../cpu/for_requests.h"
#include "race.h"
#include "verify_tree_op.h"

namespace specdec {
namespace {

// For rows spread over ranks. Before the walk, this requests from the other ranks what the tests of all nodes may need,
// entries of drafted tokens and stats of rows, so that they are exchanged together.
void ask_ahead(CpuExecutor& executor, const VerifyTree& a, int64_t b) {
  std::vector<std::vector<int64_t>> tokens(a.N);  // of each node's children
  for (int64_t n = 1; n < a.N; ++n)
    if (!a.bad_parent(b, n) && a.parents.at(b, n) >= 0) tokens[a.parents.at(b, n)].push_back(a.node_tokens.at(b, n));
  const auto ask = [&](const Rows& rows, int64_t row, int64_t node, const std::vector<int64_t>& of) {
    if (!rows.memory || row < 0 || row >= rows.per_request) return;
    for (const int64_t d : of) executor.ask_entry(rows.at(-1, b, row, node, 0), d);
    if (a.method != Method::kGreedy) executor.ask_ahead([&] { rows.dist(executor, -1, b, row, node, 0); });
  };
  for (int64_t n = 0; n < a.N; ++n) {
    const int64_t parent = a.parents.at(b, n);
    ask(a.target, a.target_row ? a.target_row.at(b, n) : n, n, tokens[n]);
    if (n == 0 || parent < 0 || a.bad_parent(b, n)) continue;
    if (!reads_draft(a.method)) continue;
    ask(a.draft, a.draft_row ? a.draft_row.at(b, n) : parent, parent, tokens[parent]);
  }
  executor.forget();
}

void run(const VerifyTree& a, const Tensor&) {
  const auto walk = [&](CpuExecutor& executor, int64_t b) {
    if (executor.is_sharded()) ask_ahead(executor, a, b);
    if (a.method == Method::kRace) return verify_by_race(executor, a, b);
    std::vector<Subtraction> subtractions(a.most_subtractions());
    std::vector<NodeDist> dists(a.rules ? a.N : 0);
    std::vector<Frame> frames(a.method == Method::kTraversal ? a.frames() : 0);
    verify_tree(executor, a, b, {subtractions.data(), dists.data()}, frames.data());
  };
  for_requests(a.present, a.B, a.widest(), walk, [&](int64_t b) { put_absent(a, b); });
}

}  // namespace

SPECDEC_CPU_OP("verify_tree", PlainVerifyTree, ::call)
SPECDEC_CPU_OP("verify_tree.out", PlainVerifyTree, ::out)
SPECDEC_CPU_OP("verify_tree.views", VerifyTreeOp, ::call)
SPECDEC_CPU_OP("verify_tree.views_out", VerifyTreeOp, ::out)

}  // namespace specdec
