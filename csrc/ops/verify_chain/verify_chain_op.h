// SPDX-License-Identifier: Apache-2.0
// Makes verify_chain's parameters from its tensors, on any device. The template parameter Run then does the work.
#pragma once

#include <tuple>

#include "../../binding/entry_ids.h"
#include "../../binding/views.h"
#include "../../binding/rows.h"
#include "../../binding/rule_arguments.h"
#include "../../binding/verification.h"
#include "verify_chain.h"

namespace specdec {

// The rows of one side. Without `row`, there is one for every position: [B, G + extra, V], or [D + extra * B, V] if
// ragged. With `row`, [B, G + extra] or [D + extra * B], they are [N, V] or [S, K, V], and `row` has the index of each
// position's row.
inline Rows chain_rows(const Op& op, const VerifyChain& a, const GivenRows& given, const Sampling& sampling,
                       int64_t extra) {
  const bool ragged = bool(a.cu_draft);
  const OptTensor& row = given.row;
  const Tensor& logits = *given.logits;
  const bool target = given.name[0] == 't', by_slot = logits.dim() == 3;
  const char* dims = target ? ragged ? "R, V" : "B, G+1, V" : ragged ? "D, Vq" : "B, G, Vq";
  std::vector<Size> shape{{"B", a.B}, {extra ? "G+1" : "G", a.G + extra}};
  if (ragged) shape = {{extra ? "R" : "D", a.D + extra * a.B}};
  const std::vector<Size> positions = shape;
  if (row) {
    const char* V = target ? "V" : "Vq";
    check(logits.dim() == 2 || by_slot, op, given.field("logits"), " must have shape [N, ", V, "] or [S, K, ", V,
          "] where ", given.field("row"), " is given, got ", bracketed(logits.sizes()));
    dims = target ? by_slot ? "S, K, V" : "N, V" : by_slot ? "S, K, Vq" : "N, Vq";
    shape = {{"N", logits.size(0)}};
    if (by_slot) shape = {{"S", logits.size(0)}, {"K", logits.size(1)}};
  }
  Rows r = rows(op, given, sampling, shape, dims);
  r.per_request = a.G + extra;
  r.extra = extra;
  if (!row) return r;
  check_shape(op, given.field("row"), *row, positions);
  r.by_position = false;
  r.store.row = ints(op, given.field("row"), *row, row->stride(row->dim() - 1));
  r.store.request_stride = ragged ? 0 : row->stride(0);
  r.store.K = shape.back().n;
  r.store.N = by_slot ? shape[0].n * r.store.K : r.store.K;
  if (by_slot) r.memory.batch_stride -= r.store.K * r.memory.row_stride;
  return r;
}

// Raises if the target's number of rows does not match the drafts. Of dense rows, only two differences are errors here:
// the rows after the last drafts are missing, or they are there although bonus_tokens are given. For others,
// check_positions() names draft_tokens. Of ragged rows, `any` difference is an error.
inline void check_target_rows(const Op& op, const VerifyChain& a, const GivenRows& given, bool bonus_tokens, bool any) {
  const bool ragged = bool(a.cu_draft);
  const Tensor& positions = given.row ? *given.row : *given.logits;
  if (positions.dim() != (ragged ? 1 : 2) + !given.row) return;
  const int64_t drafts = ragged ? a.D : a.G, bonus = ragged ? a.B : 1, got = positions.size(ragged ? 0 : 1);
  const int64_t want = drafts + (bonus_tokens ? 0 : bonus);
  const bool wrong = bonus > 0 && (got == want - bonus || (bonus_tokens && got == want + bonus));
  const bool ok = any ? got == want : !wrong;
  const char* name = ragged ? "D" : "G";
  check(ok || !bonus_tokens, op, "target must have ", name, "=", drafts, " rows for ", name, "=", drafts,
        " drafts (bonus_tokens take the place of the row after the last draft), got ", got);
  check(ok, op, "target must have ", name, ragged ? "+B=" : "+1=", want, " rows for ", name, "=", drafts,
        " drafts (one after the last draft", ragged ? " of each request), got " : "), got ", got);
}

// The draft's rows: one for each draft, or one more per request
inline Rows draft_rows(const Op& op, const VerifyChain& a, const GivenRows& given, const Sampling& sampling) {
  const Tensor& positions = given.row ? *given.row : *given.logits;
  const bool ragged = bool(a.cu_draft);
  check_dims(op, given.field(given.row ? "row" : "logits"), positions,
             given.row ? ragged ? "D" : "B, G"
             : ragged  ? "D, Vq"
                       : "B, G, Vq");
  const bool more = ragged ? a.B > 0 && positions.size(0) == a.D + a.B : positions.size(1) == a.G + 1;
  return chain_rows(op, a, given, sampling, more);
}

// Checks the offsets of ragged drafts. In padded buffers, offsets after the last present request are ignored, and D is
// the size of the buffer.
inline void check_cu_draft(const Op& op, const Ints& cu_draft, int64_t B, int64_t D, int64_t G,
                           const Present& present) {
  const int64_t n = present.of(B);
  const bool padded = bool(present.number);
  if (padded && n == 0) return;
  check(cu_draft[0] == 0, op, "cu_draft must start at 0, got ", cu_draft[0]);
  for (int64_t b = 0; b < n; ++b) {
    check(cu_draft[b + 1] >= cu_draft[b], op, "cu_draft must ascend, got ", cu_draft[b], " then ", cu_draft[b + 1],
          " at index ", b);
    const int64_t g = cu_draft[b + 1] - cu_draft[b];
    check(g <= G, op, "max_draft must be at least the longest draft, got ", G, " with ", g,
          " drafted tokens in request ", b);
  }
  check(padded ? cu_draft[n] <= D : cu_draft[n] == D, op, "cu_draft must end at ", padded ? "most at " : "", "D=", D,
        ", got ", cu_draft[n]);
}

// Takes draft_tokens [B, G], or ragged [D] with cu_draft [B+1]. max_draft is -1 if it is not given.
inline void take_drafts(const Op& op, VerifyChain& a, const Tensor& draft_tokens, const OptTensor& cu_draft,
                        int64_t max_draft) {
  const bool ragged = cu_draft.has_value();
  if (ragged) ints(op, "cu_draft", *cu_draft, 0);  // checked first: the shapes of the others depend on it
  check_dims(op, "draft_tokens", draft_tokens, ragged ? "D" : "B, G");
  if (ragged) check_dims(op, "cu_draft", *cu_draft, "B+1");
  check(!ragged || cu_draft->size(0) >= 1, op, "cu_draft must have shape [B+1], got [0]");
  a.B = ragged ? cu_draft->size(0) - 1 : draft_tokens.size(0);
  a.D = ragged ? draft_tokens.size(0) : 0;
  a.G = ragged ? max_draft : draft_tokens.size(1);
  check(a.G >= 0 && a.G <= INT32_MAX, op,
        "max_draft must be the longest draft's length where cu_draft is given, in [0, 2^31), got ", a.G);
  check(ragged || max_draft == -1 || max_draft == a.G, op, "max_draft must be G=", a.G,
        " where cu_draft is not given, got ", max_draft);
  a.draft_tokens = ints(op, "draft_tokens", draft_tokens, draft_tokens.stride(ragged ? 0 : 1));
  a.draft_tokens_stride = ragged ? 0 : draft_tokens.stride(0);
  if (ragged) a.cu_draft = ints(op, "cu_draft", *cu_draft, cu_draft->stride(0));
}

// Checks that the target's positions match the drafts. If they do not, the error names draft_tokens or cu_draft if
// possible, not the logits.
inline void check_positions(const Op& op, const VerifyChain& a, const Tensor& logits, const OptTensor& row,
                            const Tensor& draft_tokens, const OptTensor& bonus_tokens) {
  if (!a.cu_draft && !row) {
    check_dims(op, {"target", "logits"}, logits, "B, G+1, V");
    const int64_t G = logits.size(1) - !bonus_tokens;
    check(G >= 0, op, "target.logits must have the bonus row, shape [B, G+1, V], got ", bracketed(logits.sizes()));
    check_shape(op, "draft_tokens", draft_tokens, {{"B", logits.size(0)}, {"G", G}});
  }
  const Tensor& positions = bonus_tokens ? *bonus_tokens : row ? *row : logits;
  const bool one_more = a.cu_draft && positions.dim() > 0 && positions.size(0) - (bonus_tokens ? 0 : a.D) == a.B + 1;
  const bool lacks_0 = one_more && !(values_at_hand(op) && a.cu_draft[0] == 0);
  check(!lacks_0, op, "cu_draft must have shape [B+1=", a.B + 2, "], a leading 0 and then the ends of drafts, got [",
        a.B + 1, "]");
  if (a.cu_draft && values_at_hand(op)) check_cu_draft(op, a.cu_draft, a.B, a.D, a.G, a.present);
}

// Sets the views of both sides. The window of row i has the i drafts before it.
inline void take_views(const Op& op, VerifyChain& a, const GivenViews& of_target, const GivenViews& of_draft) {
  const Window window{a.draft_tokens, a.draft_tokens_stride, a.cu_draft, a.D, {}, 0};
  const bool ragged = bool(a.cu_draft);
  const Positions positions =
      ragged ? Positions{a.B, -1, a.D + a.B, "[R]"} : Positions{a.B, a.G + 1, a.B * (a.G + 1), "[B, G+1]"};
  take_views(op, a.target, of_target, positions, window, a.present);
  take_views(op, a.draft, of_draft, positions, window, a.present);
}

// Sets the ids of the draft's entries.
inline void take_draft_ids(const Op& op, VerifyChain& a, const Tensor* logits, const OptTensor& ids) {
  Rows& rows = a.draft;
  const bool ragged = bool(a.cu_draft);
  const int64_t K = rows.store ? rows.store.K : 0;
  take_ids(op, "draft", rows.ids, ids, logits, ragged ? a.D + a.B : a.B * rows.per_request, [&](const auto& f) {
    const RowsIds& of = rows.ids;
    for (int64_t b = 0; b < a.present.of(a.B); ++b) {
      const int64_t start = a.start(b), there = ragged ? a.drafted(b) + rows.extra : rows.per_request;
      for (int64_t i = 0; i < there; ++i) {
        if (!rows.has_row(start, b, i)) continue;
        const int64_t n = rows.number(start, b, i), at = rows.index(start, b, i);
        f(at, rows.store ? n / K * of.batch_stride + n % K * of.row_stride
              : ragged   ? at * of.row_stride
                         : b * of.batch_stride + i * of.row_stride);
      }
    }
  });
}

inline Prepared<VerifyChain> prepare_verify_chain(SPECDEC_ROWS_ARGUMENTS(Tensor, target), const Tensor& draft_tokens,
                                                  SPECDEC_ROWS_ARGUMENTS(OptTensor, draft), const OptTensor& cu_draft,
                                                  int64_t max_draft, const OptTensor& bonus_tokens, int64_t method,
                                                  const OptTensor& rule, const OptTensor& alpha,
                                                  const OptNumbers& rule_numbers, const OptTensor& seed,
                                                  const OptTensor& offset, const OptTensor& uniforms,
                                                  const OptTensor& num_requests, SPECDEC_VIEWS_ARGUMENTS(target_),
                                                  SPECDEC_VIEWS_ARGUMENTS(draft_), const OptTensor& draft_ids) {
  const Op op(VerifyChain::kName, target_logits);
  check_given(op, "target_logits", target_logits, "draft_tokens", draft_tokens);
  const GivenRows target = SPECDEC_GIVEN_ROWS(target), draft = SPECDEC_GIVEN_ROWS(draft);
  VerifyChain a;
  a.present = present(op, "num_requests", num_requests);
  take_drafts(op, a, draft_tokens, cu_draft, max_draft);
  const int64_t B = a.B, G = a.G;
  if (bonus_tokens) ints(op, "bonus_tokens", *bonus_tokens, 0);
  check_target_rows(op, a, target, bool(bonus_tokens), false);
  check_positions(op, a, target_logits, target_row, draft_tokens, bonus_tokens);
  if (cu_draft) check_target_rows(op, a, target, bool(bonus_tokens), true);
  if (bonus_tokens) check_shape(op, "bonus_tokens", *bonus_tokens, {{"B", B}});
  if (bonus_tokens) a.bonus_tokens = ints(op, "bonus_tokens", *bonus_tokens, bonus_tokens->stride(0));

  const Sampling of_target = sampling(op, target.name, target.sampling, B, a.present);
  const Sampling of_draft = sampling(op, draft.name, draft.sampling, B, a.present);
  a.target = chain_rows(op, a, target, of_target, bonus_tokens ? 0 : 1);
  if (draft.logits)
    a.draft = draft_rows(op, a, draft, of_draft);
  else
    check_missing(op, draft, of_draft);
  take_views(op, a, SPECDEC_GIVEN_VIEWS("target", target_), SPECDEC_GIVEN_VIEWS("draft", draft_));
  take_draft_ids(op, a, draft.logits, draft_ids);

  check(method >= 0 && method <= 2, op, "method must be 0 (token), 1 (block) or 2 (race), got ", method);
  a.block = method == 1, a.race = method == 2;
  a.rules = rules(op, rule, alpha, {op, "rule_numbers", rule_numbers, 3}, B, G);
  check_rules(op, a.rules, a.block, B, a.present, G);

  if (a.race) check_taken(op, a.rules, "race", B, a.present, [](Rule rule) { return rule == Rule::kExact; });
  const bool certain = target_temperature || of_target.numbers.greedy() || target_stats;
  if (!a.race)
    take_randomness(op, a, B, G + 1, seed, offset, uniforms, certain);
  else if (a.cu_draft)
    take_noise(op, a, B, seed, offset, uniforms, certain, {{"R", a.D + B}});
  else
    take_noise(op, a, B, seed, offset, uniforms, certain, {{"B", B}, {"G+1", G + 1}});
  return {a, target_logits, G + 1};
}

template <void (*Run)(const VerifyChain&, const Tensor& like)>
using VerifyChainOp = Verification<&prepare_verify_chain, Run, std::tuple<Tensor, Tensor, Tensor, Tensor>>;

template <void (*Run)(const VerifyChain&, const Tensor& like)>
using PlainVerifyChain = Verification<&WithoutViews<&prepare_verify_chain, 2 * kViewsArguments + 1>::call, Run,
                                      std::tuple<Tensor, Tensor, Tensor, Tensor>>;

}  // namespace specdec
