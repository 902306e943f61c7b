// SPDX-License-Identifier: Apache-2.0
// Makes verify_tree's parameters from its tensors, on any device. The template parameter Run then does the work.
#pragma once

#include <tuple>

#include "../../binding/entry_ids.h"
#include "../../binding/views.h"
#include "../../binding/rows.h"
#include "../../binding/rule_arguments.h"
#include "../../binding/verification.h"
#include "verify_tree.h"

namespace specdec {

inline IntTable int_table(const Op& op, Name name, const Tensor& t, std::initializer_list<Size> want) {
  check_shape(op, name, t, want);
  IntTable table{ints(op, name, t, 0), t.stride(0), t.stride(1), 0};
  if (t.dim() == 3) table.column = t.stride(2);
  return table;
}

inline IntTable int_table(const Op& op, Name name, const OptTensor& t, std::initializer_list<Size> want) {
  return t ? int_table(op, name, *t, want) : IntTable{};
}

// Raises if a tree is invalid. On a GPU, an invalid tree sets kInvalidDraft in the status instead.
inline void check_tree(const Op& op, const VerifyTree& a) {
  if (!values_at_hand(op)) return;
  for (int64_t b = 0; b < a.present.of(a.B); ++b) {
    for (int64_t i = 0; i < a.N; ++i)
      check(!a.bad_parent(b, i), op, "parents[", b, ", ", i, "] must be in [-1, ", i, "), got ", a.parents.at(b, i));
    for (int64_t k = 0; k < a.K; ++k)
      for (int64_t l = 0; l < a.L; ++l)
        check(!a.bad_step(b, k, l), op, "draft_nodes[", b, ", ", k, ", ", l,
              "] must be -1 or a child of the node before, got ", a.draft_nodes.at(b, k, l));
  }
}

inline void take_tree(const Op& op, VerifyTree& a, const Tensor& parents, const Tensor& node_tokens,
                      const OptTensor& draft_nodes, int64_t max_depth, const OptTensor& target_row,
                      const OptTensor& draft_row, const OptTensor& first_child, const OptTensor& next_sibling) {
  check_dims(op, "parents", parents, "B, N");
  const int64_t B = a.B = parents.size(0), N = a.N = parents.size(1), D = a.D = max_depth;
  check(N >= 1 && N <= INT32_MAX, op, "parents must have at least the root, got shape ", bracketed(parents.sizes()));
  check(D >= 0 && D < INT32_MAX, op, "max_depth must be in [0, 2^31 - 1), got ", D);
  a.parents = int_table(op, "parents", parents, {{"B", B}, {"N", N}});
  a.node_tokens = int_table(op, "tokens", node_tokens, {{"B", B}, {"N", N}});
  if (draft_nodes) {
    check(a.method == Method::kKseq || a.method == Method::kRecursive, op,
          "draft_nodes are for methods that test drafts, got method ", int(a.method));
    check(!first_child, op, "links give no order where method '", kMethodNames[int(a.method)],
          "' tests the drafts of draft_nodes, got both");
    check_dims(op, "draft_nodes", *draft_nodes, "B, K, L");
    a.tests_drafts = true;
    a.K = draft_nodes->size(1), a.L = draft_nodes->size(2);
    check(a.K < INT32_MAX && a.L < INT32_MAX, op,
          "draft_nodes must have fewer than 2^31 - 1 drafts and levels, got shape ", bracketed(draft_nodes->sizes()));
    a.draft_nodes = int_table(op, "draft_nodes", *draft_nodes, {{"B", B}, {"K", a.K}, {"L", a.L}});
  }
  a.target_row = int_table(op, {"target", "row"}, target_row, {{"B", B}, {"N", N}});
  a.draft_row = int_table(op, {"draft", "row"}, draft_row, {{"B", B}, {"N", N}});
  a.first_child = int_table(op, "first_child", first_child, {{"B", B}, {"N", N}});
  a.next_sibling = int_table(op, "next_sibling", next_sibling, {{"B", B}, {"N", N}});
  check(first_child.has_value() == next_sibling.has_value(), op,
        "links must be (first_child, next_sibling), got one of them");
}

// The rows of one side. Without `row`, there is one for every node. With `row`, which has the index of each node's row,
// there may be any number.
inline Rows tree_rows(const Op& op, const VerifyTree& a, const GivenRows& given, const Sampling& sampling) {
  const char* dims = given.name[0] == 't' ? "B, M, V" : "B, Mq, Vq";
  check_dims(op, given.field("logits"), *given.logits, dims);
  const Size nodes = given.row ? Size(given.name[0] == 't' ? "M" : "Mq", given.logits->size(1)) : Size("N", a.N);
  return rows(op, given, sampling, {{"B", a.B}, nodes}, dims);
}

// Sets the views of both sides. A row's penalties also count the tokens of its position and of the nodes above it,
// except the root.
inline void take_views(const Op& op, VerifyTree& a, const GivenViews& of_target, const GivenViews& of_draft) {
  Window window{a.node_tokens.values, a.node_tokens.batch, {}, 0, a.parents.values, a.parents.batch};
  window.tokens.stride = a.node_tokens.row, window.parents.stride = a.parents.row;
  const Positions positions{a.B, a.N, a.B * a.N, "[B, N]"};
  take_views(op, a.target, of_target, positions, window, a.present);
  take_views(op, a.draft, of_draft, positions, window, a.present);
}

// Sets the ids of the draft's entries.
inline void take_draft_ids(const Op& op, VerifyTree& a, const Tensor* logits, const OptTensor& ids) {
  const int64_t rows = a.draft.per_request;
  take_ids(op, "draft", a.draft.ids, ids, logits, a.B * rows, [&](const auto& f) {
    for (int64_t n = 0; n < a.present.of(a.B) * rows; ++n)
      f(n, n / rows * a.draft.ids.batch_stride + n % rows * a.draft.ids.row_stride);
  });
}

inline Prepared<VerifyTree> prepare_verify_tree(
    const Tensor& parents, const Tensor& node_tokens, const OptTensor& draft_nodes, const OptTensor& first_child,
    const OptTensor& next_sibling, SPECDEC_ROWS_ARGUMENTS(Tensor, target), SPECDEC_ROWS_ARGUMENTS(OptTensor, draft),
    int64_t method, int64_t max_depth, const OptTensor& rule, const OptTensor& alpha, const OptNumbers& rule_numbers,
    const OptTensor& seed, const OptTensor& offset, const OptTensor& uniforms, const OptTensor& num_requests,
    SPECDEC_VIEWS_ARGUMENTS(target_), SPECDEC_VIEWS_ARGUMENTS(draft_), const OptTensor& draft_ids) {
  const Op op(VerifyTree::kName, target_logits);
  check_given(op, "parents", parents, "node_tokens", node_tokens, "target_logits", target_logits);
  const GivenRows target = SPECDEC_GIVEN_ROWS(target), draft = SPECDEC_GIVEN_ROWS(draft);
  VerifyTree a;
  a.present = present(op, "num_requests", num_requests);
  check(method >= 0 && method < kMethods, op, "method must be 0 to ", kMethods - 1, ", got ", method);
  a.method = Method(method);
  take_tree(op, a, parents, node_tokens, draft_nodes, max_depth, target_row, draft_row, first_child, next_sibling);
  check_tree(op, a);
  const int64_t B = a.B;
  const Sampling of_target = sampling(op, target.name, target.sampling, B, a.present);
  const Sampling of_draft = sampling(op, draft.name, draft.sampling, B, a.present);
  a.target = tree_rows(op, a, target, of_target);
  check(draft.logits || a.method != Method::kKseq, op, "method 'kseq' needs draft, got None");
  if (draft.logits)
    a.draft = tree_rows(op, a, draft, of_draft);
  else
    check_missing(op, draft, of_draft);
  take_views(op, a, SPECDEC_GIVEN_VIEWS("target", target_), SPECDEC_GIVEN_VIEWS("draft", draft_));
  take_draft_ids(op, a, draft.logits, draft_ids);

  a.rules = rules(op, rule, alpha, {op, "rule_numbers", rule_numbers, 3}, B);
  check_rules(op, a.rules, false, B, a.present);
  check_taken(op, a.rules, kMethodNames[method], B, a.present, [&](Rule rule) { return takes(a.method, rule); });

  const bool certain = target_temperature || of_target.numbers.greedy() || target_stats || a.method == Method::kGreedy;
  if (a.method == Method::kRace)
    take_noise(op, a, B, seed, offset, uniforms, certain, {{"B", B}, {"N", a.N}});
  else
    take_randomness(op, a, B, a.columns() + 1, seed, offset, uniforms, certain);
  return {a, target_logits, a.D + 1};
}

template <void (*Run)(const VerifyTree&, const Tensor& like)>
using VerifyTreeOp = Verification<&prepare_verify_tree, Run, std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>>;

// Without the views of both sides and without draft_ids
template <void (*Run)(const VerifyTree&, const Tensor& like)>
using PlainVerifyTree = Verification<&WithoutViews<&prepare_verify_tree, 2 * kViewsArguments + 1>::call, Run,
                                     std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>>;

}  // namespace specdec
