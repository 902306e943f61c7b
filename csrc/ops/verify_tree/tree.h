// SPDX-License-Identifier: Apache-2.0
// The arguments and results of verify_tree, and the order in which a node's children are tested
#pragma once

#include "../../core/residual.h"
#include "../../core/race.h"
#include "../../core/rows.h"
#include "../../rules/rule.h"

namespace specdec {

enum class Method : int32_t {
  kKseq,
  kRecursive,
  kRecursiveWithoutReplacement,
  kTargetOnly,
  kGreedy,
  kTraversal,
  kRace
};
constexpr const char* kMethodNames[] = {
    "kseq", "recursive", "recursive_without_replacement", "target_only", "greedy", "traversal", "race"};
constexpr int64_t kMethods = sizeof(kMethodNames) / sizeof(*kMethodNames);

// Whether a method takes a rule. All methods take the exact rule. Greedy and the race take no other. target_only also
// takes SGLang's thresholds; the other methods take the rules that replace the target distribution.
SPECDEC_HD bool takes(Method method, Rule rule) {
  if (method == Method::kTargetOnly) return rule == Rule::kExact || rule == Rule::kThresholds;
  return rule == Rule::kExact || (method != Method::kGreedy && method != Method::kRace && replaces_target(rule));
}

SPECDEC_HD bool reads_draft(Method method) {
  return method != Method::kTargetOnly && method != Method::kGreedy && method != Method::kRace;
}

// Integers [B, n] or [B, n, m].
struct IntTable {
  Ints values;
  int64_t batch = 0, row = 0, column = 0;  // strides
  SPECDEC_HD explicit operator bool() const { return bool(values); }
  SPECDEC_HD int64_t at(int64_t b, int64_t i, int64_t j = 0) const {
    return values.at(b * batch + i * row + j * column);
  }
};

struct VerifyTree {
  static constexpr const char* kName = "verify_tree";
  static constexpr bool kHasPath = true;
  Method method = Method::kKseq;
  int64_t B = 0, N = 0, D = 0;         // D: the deepest level whose nodes may be accepted
  Present present;                     // of the B requests
  int64_t K = 0, L = 0;                // number of drafts and levels in draft_nodes
  IntTable parents, node_tokens;       // [B, N]
  bool tests_drafts = false;           // true: tests the drafts of draft_nodes one by one; false: the nodes
  IntTable draft_nodes;                // [B, K, L]
  IntTable target_row, draft_row;      // [B, N]: index of the node's target row, and of the draft row it was drawn from
  IntTable first_child, next_sibling;  // [B, N]
  Rows target, draft;                  // draft.memory empty: one-hot drafts
  Rules rules;
  Ints seed, offset;                 // [B]; a race without offset has a noise key for each node
  int64_t seed_stride = 0;           // of noise keys, from request to request
  const double* uniforms = nullptr;  // [B, columns + 1], in place of seed and offset
  TokensOut tokens;                  // [B, D+1]
  int32_t* num_accepted = nullptr;   // [B]
  float* logprobs = nullptr;         // [B, D+1]
  int32_t* status = nullptr;         // [B]
  int32_t* path = nullptr;           // [B, D+1]

  bool has_ids() const { return bool(draft.ids); }
  SPECDEC_HD Rule rule(int64_t b) const { return takes(method, rules[b]) ? rules[b] : Rule::kExact; }
  SPECDEC_HD bool by_rule(int64_t b) const { return rules && rule(b) != Rule::kExact; }
  SPECDEC_HD int64_t columns() const { return tests_drafts ? K * L : N; }
  SPECDEC_HD int64_t most_subtractions() const { return N > K ? N : K; }  // of one request at any time
  SPECDEC_HD int64_t frames() const { return (D < N ? D : N - 1) + 1; }   // of one request: the nodes of a path
  SPECDEC_HD int64_t widest() const {
    const int64_t V = target.memory.V, of_draft = draft.most_ids(V);
    return V > of_draft ? V : of_draft;
  }
  SPECDEC_HD bool is_child(int64_t b, int64_t child, int64_t node) const {
    return child > node && child < N && parents.at(b, child) == node;
  }
  // Invalid parts of a tree are ignored: a node whose parent does not come before it (bad_parent), and a step of a
  // draft that does not lead to a child (bad_step).
  SPECDEC_HD bool bad_parent(int64_t b, int64_t i) const { return parents.at(b, i) < -1 || parents.at(b, i) >= i; }
  SPECDEC_HD bool bad_step(int64_t b, int64_t k, int64_t l) const {
    const int64_t node = draft_nodes.at(b, k, l);
    return node != -1 && !is_child(b, node, l == 0 ? 0 : draft_nodes.at(b, k, l - 1));
  }
  SPECDEC_HD int32_t depth_of(int64_t b, int32_t node) const {
    int32_t depth = 0;
    while (node > 0 && !bad_parent(b, node)) node = int32_t(parents.at(b, node)), ++depth;
    return node == 0 ? depth : -1;  // -1: not in the tree
  }
  SPECDEC_HD bool bad_tree(int64_t b) const {
    bool bad = false;
    for (int64_t i = 0; i < N; ++i) bad |= bad_parent(b, i);
    for (int64_t k = 0; k < K; ++k)
      for (int64_t l = 0; l < L; ++l) bad |= bad_step(b, k, l);
    return bad;
  }
  SPECDEC_HD double test_uniform(int64_t b, int64_t column) const {
    return uniforms ? given_uniform(uniforms[b * (columns() + 1) + column])
           : seed   ? uniform(seed[b], offset[b], kDomainAccept, column)
                    : 0.0;
  }
  // The noise of a race at a node
  SPECDEC_HD Noise noise(int64_t b, int64_t node, int64_t depth) const {
    if (!seed) return {};
    if (offset) return later({seed[b], offset[b]}, depth);
    return {seed.at(b * seed_stride + node * seed.stride), 0};
  }
  SPECDEC_HD double final_uniform(int64_t b) const {
    return uniforms ? given_uniform(uniforms[b * (columns() + 1) + columns()])
           : seed   ? uniform(seed[b], offset[b], kDomainFinal, 0)
                    : 0.0;
  }
};

// Writes the results of an absent request; called by each of `threads` threads.
SPECDEC_HD void put_absent(const VerifyTree& a, int64_t b, int thread = 0, int threads = 1) {
  const int64_t first = b * (a.D + 1);
  for (int64_t i = thread; i <= a.D; i += threads)
    a.tokens.put(first + i, -1), a.path[first + i] = -1, a.logprobs[first + i] = 0;
  if (thread == 0) a.num_accepted[b] = a.status[b] = 0;
}

struct Test {
  int32_t child = -1;  // -1: no more tests
  int64_t column = 0;  // of the test's uniform in `uniforms`
};

// The tests at a node, in the order in which its children were drawn. If tests_drafts, there is one test for every
// draft that passes through the node and goes on to a child. Else there is one for every child, in the order of the
// links (first_child, next_sibling), or of node numbers if there are no links. A link that does not lead to a child of
// the node ends the list.
struct Tests {
  int32_t node = 0, depth = 0;
  int32_t at = 0;     // the next draft or node to look at; with links, the last child
  int32_t count = 0;  // with links, the number of children so far

  SPECDEC_HD Test next(const VerifyTree& a, int64_t b) {
    if (depth >= a.D) return {};
    if (a.tests_drafts) {
      while (depth < a.L && at < a.K) {
        const int32_t k = at++;
        if (depth > 0 && a.draft_nodes.at(b, k, depth - 1) != node) continue;
        const int64_t child = a.draft_nodes.at(b, k, depth);
        if (a.is_child(b, child, node)) return {int32_t(child), k * a.L + depth};
      }
      return {};
    }
    if (a.first_child) {
      if (count >= a.N) return {};
      const int64_t child = count == 0 ? a.first_child.at(b, node) : a.next_sibling.at(b, at);
      if (!a.is_child(b, child, node)) {
        count = int32_t(a.N);
        return {};
      }
      at = int32_t(child), ++count;
      return {at, at};
    }
    if (at <= node) at = node + 1;
    while (at < a.N) {
      const int32_t child = at++;
      if (a.is_child(b, child, node)) return {child, child};
    }
    return {};
  }
};

SPECDEC_HD Tests tests_at(int32_t node, int32_t depth) {
  Tests tests;
  tests.node = node;
  tests.depth = depth;
  return tests;
}

}  // namespace specdec
