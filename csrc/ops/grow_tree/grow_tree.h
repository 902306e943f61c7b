// SPDX-License-Identifier: Apache-2.0
// Grows a tree of the likeliest paths, best first (DDTree). Each level has candidate tokens that do not depend on the
// path, as block drafters such as DFlash give them. So all nodes of a level have the same candidates as children.
//
// A node's cost is minus the sum of ln q along its path, summed in float32 from the root on. Nodes are ordered by a
// key: cost, then level, then rank among the level's candidates, then the number of the parent. A node has two
// successors, its next sibling and its first child, and both have larger keys. So the next node is always the one with
// the smallest key among the successors of the nodes so far. The frontier holds the keys of these successors: for each
// parent, that of its next child.
#pragma once

#include <cmath>

#include "../../core/filters.h"
#include "../../core/ints.h"

namespace specdec {

constexpr int kMaxNodes = 1024;       // of a tree, with its root
constexpr int kMaxCandidates = 4096;  // of all levels that a tree of `nodes` nodes can reach
constexpr uint16_t kNoCandidate = UINT16_MAX;

// The key of a node: the child of `parent` that is the candidate at `rank` of `level`. Level, rank and parent have ten
// bits each, since they are less than kMaxNodes.
struct NodeKey {
  uint64_t bits;
  static constexpr uint64_t kNone = UINT64_MAX;

  SPECDEC_HD static uint64_t of(float cost, int level, int rank, int parent) {
    return uint64_t{ordered(cost)} << 32 | uint32_t(level << 20 | rank << 10 | parent);
  }
  SPECDEC_HD float cost() const { return from_ordered(uint32_t(bits >> 32)); }
  SPECDEC_HD int level() const { return int(bits >> 20 & 1023); }
  SPECDEC_HD int rank() const { return int(bits >> 10 & 1023); }
  SPECDEC_HD int parent() const { return int(bits & 1023); }
};

// Working memory for the tree of one request. A candidate's index is level * K + its index in the level.
struct GrownTree {
  float cost[kMaxCandidates];      // minus ln q; infinite: the candidate is left out
  uint16_t order[kMaxCandidates];  // the level's candidates by rank, then kNoCandidate
  union {
    int32_t token[kMaxCandidates];  // used only while candidates are put in order
    struct {
      uint64_t node[kMaxNodes];      // the key of each node
      uint64_t frontier[kMaxNodes];  // the keys of the frontier, in an order that the executor chooses
    };
  };
  int count;  // number of nodes
};

struct GrowTree {
  int64_t B = 0;
  int L = 0, K = 0;  // L: levels that are read
  int nodes = 0;
  Floats log_q;  // [B, L, K]
  int64_t log_q_strides[3] = {};
  Ints tokens;  // [B, L, K]
  int64_t token_strides[3] = {};
  int32_t* parents = nullptr;      // [B, nodes]
  int64_t* node_tokens = nullptr;  // [B, nodes]

  SPECDEC_HD int64_t token(int64_t b, int i) const {
    return tokens.at(b * token_strides[0] + i / K * token_strides[1] + i % K * token_strides[2]);
  }
  SPECDEC_HD float cost(int64_t b, int i) const {
    const int64_t v = token(b, i);
    const float x = log_q[b * log_q_strides[0] + i / K * log_q_strides[1] + i % K * log_q_strides[2]];
    return x <= 0 && v >= 0 && v < kIdsEnd ? 0.0f - x : HUGE_VALF;  // x <= 0 is false for NaN
  }
};

// Whether the candidate at index i with cost x comes before the one at index `other` of its level. Ties go to the lower
// index. The loops that call this have no branches, so that the CPU's compiler vectorises them.
SPECDEC_HD int comes_before(float x, int i, float other_x, int other) {
  return int(x < other_x) | (int(x == other_x) & int(i < other));
}

// Whether a candidate that comes before i in its level has the same token
SPECDEC_HD bool is_repeated(const GrownTree& s, int i, int K) {
  const int begin = i - i % K, token = s.token[i];
  const float x = s.cost[i];
  int found = 0;
  for (int j = begin; j < begin + K; ++j) found |= int(s.token[j] == token) & comes_before(s.cost[j], j, x, i);
  return found != 0;
}

SPECDEC_HD int rank_of(const GrownTree& s, int i, int K) {
  const int begin = i - i % K;
  const float x = s.cost[i];
  int rank = 0;
  for (int j = begin; j < begin + K; ++j) rank += comes_before(s.cost[j], j, x, i);
  return rank;
}

// Puts the candidates of every level in order, without those that are left out. executor.each(n, f) calls f(0) ...
// f(n - 1) in any order, and returns when all are done.
template <class Executor>
SPECDEC_HD void order_candidates(const GrowTree& a, int64_t b, GrownTree& s, const Executor& executor) {
  const int n = a.L * a.K;
  executor.each(n, [&](int i) { s.cost[i] = a.cost(b, i), s.token[i] = int32_t(a.token(b, i)); });
  executor.each(n, [&](int i) { s.order[i] = s.cost[i] < HUGE_VALF && is_repeated(s, i, a.K); });
  executor.each(n, [&](int i) {
    if (s.order[i]) s.cost[i] = HUGE_VALF;
    s.order[i] = kNoCandidate;
  });
  executor.each(n, [&](int i) {
    if (s.cost[i] < HUGE_VALF) s.order[i - i % a.K + rank_of(s, i, a.K)] = uint16_t(i);
  });
}

// The key of a parent's child at a rank, if there is such a candidate and its cost is finite
SPECDEC_HD uint64_t child_key(const GrowTree& a, const GrownTree& s, float cost, int level, int rank, int parent) {
  if (level >= a.L || rank >= a.K) return NodeKey::kNone;
  const int i = s.order[level * a.K + rank];
  if (i == kNoCandidate) return NodeKey::kNone;
  const float sum = cost + s.cost[i];
  return sum < HUGE_VALF ? NodeKey::of(sum, level, rank, parent) : NodeKey::kNone;
}

// Adds nodes until the tree is full or has all paths. frontier.add(node, key) adds the key of a new node's first child.
// frontier.least() returns the smallest key, and frontier.replace(parent, key) replaces this key by that of the
// parent's next child. frontier.put_node(n, key) stores the key of node n in s, and put_count(n) the number of nodes.
template <class Frontier>
SPECDEC_HD void grow(const GrowTree& a, GrownTree& s, Frontier& frontier) {
  frontier.put_node(0, NodeKey::of(0, 0, 0, 0));
  frontier.add(0, child_key(a, s, 0, 0, 0, 0));
  int n = 1;
  for (; n < a.nodes; ++n) {
    const NodeKey key{frontier.least()};
    if (key.bits == NodeKey::kNone) break;
    const int parent = key.parent(), level = key.level(), rank = key.rank();
    frontier.put_node(n, key.bits);
    frontier.replace(parent, child_key(a, s, NodeKey{s.node[parent]}.cost(), level, rank + 1, parent));
    frontier.add(n, child_key(a, s, key.cost(), level + 1, 0, n));
  }
  frontier.put_count(n);
}

template <class Executor>
SPECDEC_HD void grow_tree(const GrowTree& a, int64_t b, GrownTree& s, const Executor& executor) {
  order_candidates(a, b, s, executor);
  executor.grow(a, s);
  executor.each(a.nodes, [&](int i) {
    const bool real = i > 0 && i < s.count;
    const NodeKey key{s.node[real ? i : 0]};
    a.parents[b * a.nodes + i] = real ? key.parent() : -1;
    a.node_tokens[b * a.nodes + i] = real ? a.token(b, s.order[key.level() * a.K + key.rank()]) : -1;
  });
}

}  // namespace specdec
