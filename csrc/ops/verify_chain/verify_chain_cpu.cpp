// SPDX-License-Identifier: Apache-2.0
#include "../../binding/cpu_op.h"
#include "../../cpu/for_requests.h"
#include "by_rule.h"
#include "race.h"
#include "test_draft.h"
#include "verify_chain_op.h"

namespace specdec {
namespace {

// For rows spread over ranks. Before the first test, this requests from the other ranks what the tests of request b may
// need, entries of drafted tokens and stats of rows, so that they are exchanged together.
void ask_ahead(CpuExecutor& executor, const VerifyChain& a, int64_t b) {
  const int64_t start = a.start(b);
  const auto ask = [&](const Rows& rows, int64_t i, int64_t d) {
    if (!rows.has_row(start, b, i)) return;
    executor.ask_entry(rows.at(start, b, i), d);
    executor.ask_ahead([&] { rows.dist(executor, start, b, i); });
  };
  const bool certain =
      !a.by_rule(b) && a.target.kind == Kind::kLogits && !a.target.stats && a.target.sampling[b].greedy();
  for (int64_t i = 0; i <= a.drafted(b); ++i) {
    const bool drafted = a.has_draft(b, i);
    const int64_t d = drafted ? a.draft_token(b, i) : -1;
    executor.expect_entropy(drafted && a.by_rule(b) && reads_entropy(a.rules[b]));
    if (drafted || !a.gives_bonus(b, i)) ask(a.target, i, d);
    if (certain || a.race) continue;
    if (drafted ? !a.draft.is_one_hot(start, b, i) : reads_draft(a, b, i)) ask(a.draft, i, d);
  }
  executor.forget();
}

void run(const VerifyChain& a, const Tensor&) {
  const auto walk = [&](CpuExecutor& executor, int64_t b) {
    if (executor.is_sharded()) ask_ahead(executor, a, b);
    if (a.race) return verify_by_race(executor, a, b);
    if (!a.by_rule(b)) return verify_chain(executor, a, b);
    std::vector<Position> positions(positions_of(a));
    verify_request(executor, a, b, positions.data());
  };
  const int64_t widest = std::max(a.target.memory.V, a.draft.memory.V);
  for_requests(a.present, a.B, widest, walk, [&](int64_t b) { put_absent(a, b); });
}

}  // namespace

SPECDEC_CPU_OP("verify_chain", PlainVerifyChain, ::call)
SPECDEC_CPU_OP("verify_chain.out", PlainVerifyChain, ::out)
SPECDEC_CPU_OP("verify_chain.views", VerifyChainOp, ::call)
SPECDEC_CPU_OP("verify_chain.views_out", VerifyChainOp, ::out)

}  // namespace specdec
