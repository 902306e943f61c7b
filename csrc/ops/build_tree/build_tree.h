// SPDX-License-Identifier: Apache-2.0
// Merges K drafts into one prefix tree (SpecInfer, Miao et al. 2023; SpecTr, Sun et al. 2023), level by level. Drafts
// at the same node with the same next token go on to the same new node. The first of these drafts is their leader. New
// nodes are numbered in the order of their leaders.
#pragma once

#include "../../core/arguments.h"

namespace specdec {

constexpr int kMaxDrafts = 1024;

// The drafts of one request at one level.
struct Level {
  int64_t token[kMaxDrafts];     // negative: the draft has ended
  int32_t at[kMaxDrafts];        // the draft's node, one level up
  int32_t leader[kMaxDrafts];    // -1: the draft has ended
  int32_t rank[kMaxDrafts + 1];  // the number of leaders among the drafts before; rank[K]: of all leaders
};

SPECDEC_HD int leader(const Level& s, int k) {
  if (s.token[k] < 0) return -1;
  int j = 0;
  while (s.token[j] != s.token[k] || s.at[j] != s.at[k]) ++j;
  return j;
}

SPECDEC_HD int rank(const Level& s, int k) {
  int leaders = 0;
  for (int j = 0; j < k; ++j) leaders += s.leader[j] == j;
  return leaders;
}

SPECDEC_HD int followers(const Level& s, int leader, int K) {
  int n = 0;
  for (int j = leader; j < K; ++j) n += s.leader[j] == leader;
  return n;
}

struct BuildTree {
  int64_t B = 0;
  int K = 0, L = 0;
  int64_t N = 1;                    // K * L + 1
  Ints draft_tokens;                // [B, K, L]
  int64_t strides[3] = {};          // of draft_tokens
  int32_t* parents = nullptr;       // [B, N]
  int64_t* tokens = nullptr;        // [B, N]
  int32_t* multiplicity = nullptr;  // [B, N]
  int32_t* draft_nodes = nullptr;   // [B, K, L]

  SPECDEC_HD int64_t token(int64_t b, int k, int l) const {
    return draft_tokens.at(b * strides[0] + k * strides[1] + l * strides[2]);
  }

  SPECDEC_HD void put(int64_t b, int64_t node, int32_t parent, int64_t token, int32_t drafts) const {
    parents[b * N + node] = parent;
    tokens[b * N + node] = token;
    multiplicity[b * N + node] = drafts;
  }
};

// Builds the tree of request b. executor.each(n, f) calls f(0) ... f(n - 1) in any order, and returns when all are
// done.
template <class Executor>
SPECDEC_HD void build_tree(const BuildTree& a, int64_t b, Level& s, const Executor& executor) {
  executor.each(a.N, [&](int64_t i) { a.put(b, i, -1, -1, i == 0 ? a.K : 0); });
  executor.each(a.K, [&](int64_t k) { s.at[k] = 0; });
  int32_t first = 1;  // the first node of this level
  for (int l = 0; l < a.L; ++l) {
    executor.each(a.K, [&](int64_t k) { s.token[k] = s.at[k] < 0 ? -1 : a.token(b, int(k), l); });
    executor.each(a.K, [&](int64_t k) { s.leader[k] = leader(s, int(k)); });
    executor.each(a.K + 1, [&](int64_t k) { s.rank[k] = rank(s, int(k)); });
    executor.each(a.K, [&](int64_t k) {
      const int lead = s.leader[k];
      const int32_t node = lead < 0 ? -1 : first + s.rank[lead];
      if (lead == k) a.put(b, node, s.at[k], s.token[k], followers(s, lead, a.K));
      a.draft_nodes[(b * a.K + k) * a.L + l] = s.at[k] = node;
    });
    first += s.rank[a.K];
  }
}

}  // namespace specdec
