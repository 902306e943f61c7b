// SPDX-License-Identifier: Apache-2.0
// Every op, one page. p = target, q = draft. B requests, G drafted tokens, V vocabulary, N rows, R = sum(g_b) + B, D =
// sum(g_b).
#include <torch/csrc/stable/library.h>

// What an op is given, with results of its own or with the caller's.
#define VERIFY_CHAIN_ARGUMENTS                                                                                     \
  "Tensor target_logits, Tensor draft_tokens, Tensor? draft_logits, Tensor? cu_draft, SymInt max_draft, Tensor? "  \
  "bonus_tokens, Tensor? temperature, Tensor? top_k, Tensor? top_p, Tensor? min_p, Tensor? target_stats, Tensor? " \
  "draft_stats, Tensor? draft_temperature, Tensor? draft_top_k, Tensor? draft_top_p, Tensor? draft_min_p, int "    \
  "target_kind, int draft_kind, int method, Tensor? rule, Tensor? alpha, Tensor? seed, Tensor? offset, Tensor? "   \
  "uniforms, Tensor? target_row, Tensor? draft_row, Tensor? num_requests, float[]? numbers=None, float[]? "        \
  "rule_numbers=None"
#define VERIFY_TREE_ARGUMENTS                                                                                         \
  "Tensor parents, Tensor node_tokens, Tensor? draft_nodes, Tensor target_logits, Tensor? draft_logits, int method, " \
  "SymInt max_depth, Tensor? target_row, Tensor? draft_row, Tensor? first_child, Tensor? next_sibling, Tensor? "      \
  "temperature, Tensor? top_k, Tensor? top_p, Tensor? min_p, Tensor? target_stats, Tensor? draft_stats, Tensor? "     \
  "draft_temperature, Tensor? draft_top_k, Tensor? draft_top_p, Tensor? draft_min_p, int target_kind, int "           \
  "draft_kind, Tensor? rule, Tensor? alpha, Tensor? seed, Tensor? offset, Tensor? uniforms, Tensor? num_requests, "   \
  "float[]? numbers=None, float[]? rule_numbers=None"
#define OUT "Tensor(a!) tokens, Tensor(b!) num_accepted, Tensor(c!) logprobs, Tensor(d!) status"

STABLE_TORCH_LIBRARY(specdec, m) {
  // num_rows, num_requests [1], int32 or int64, on the device: those from it on are absent; nothing of them is read,
  // and every result is 0 for them, or -1 where it is a token or a node

  // numbers: in place of tensors, one that serves all: temperature, top_k, top_p, min_p (then the draft's four
  // where there are two sides), -DBL_MAX where none is given; rule_numbers: the rule's code, alpha, second alpha

  // logits [N,V], parameters [N] or [1] -> stats [N,4]: scale, cutoff, log_norm, max
  m.def(
      "row_stats(Tensor logits, Tensor? temperature, Tensor? top_k, Tensor? top_p, Tensor? min_p, Tensor? num_rows, "
      "float[]? numbers=None) -> Tensor");

  // seed [B], offset [B] -> [B,n] float64 in [0,1)
  m.def("uniforms(Tensor seed, Tensor offset, SymInt n, int domain) -> Tensor");

  // logits [N,V], stats [N,4], parameters and seed/offset/slot [N], uniforms [N,k] -> tokens, ln q [N,k], stats [N,4]
  m.def(
      "sample(Tensor logits, Tensor? stats, SymInt k, bool replacement, Tensor? temperature, Tensor? top_k, Tensor? "
      "top_p, Tensor? min_p, Tensor? seed, Tensor? offset, Tensor? slot, Tensor? uniforms, Tensor? num_rows, "
      "float[]? numbers=None, SymInt first_slot=0) -> (Tensor, Tensor, Tensor)");

  // logits [N,V], stats [N,4], tokens [N,m], num_rows [1] -> ids, logprobs [N,k], token_logprobs, token_ranks [N,m]
  m.def(
      "top_logprobs(Tensor logits, Tensor stats, SymInt k, Tensor? tokens, Tensor? num_rows) -> (Tensor, Tensor, "
      "Tensor, Tensor)");

  // logits [N,V], score [N], stats [N,4], num_rows [1] -> scores, ids [N,w]
  m.def("row_topw(Tensor logits, Tensor score, SymInt w, Tensor? stats, Tensor? num_rows) -> (Tensor, Tensor)");

  // logits [N,V], stats [N,4], rows [M], num_rows [1] -> ids [M,max_kept], counts [M], bits [M,ceil(V/32)]
  m.def(
      "support(Tensor logits, Tensor stats, SymInt max_kept, Tensor? rows, Tensor? num_rows) -> (Tensor, Tensor, "
      "Tensor)");

  // p, q (or integer ids of one-hot drafts), u of one shape -> bool
  m.def("accept(Tensor p, Tensor q, Tensor u) -> Tensor");

  // p [N,V], q [N,Vq] or ids [N] -> norm((p-q)+) [N,V], its mass [N]
  m.def("residual(Tensor p, Tensor q, Tensor? num_rows) -> (Tensor, Tensor)");

  // p [N,V], q [N,Vq], k [N] or [1]; logits with stats [N,4] each, probabilities without -> rho, beta, p_acc [N]
  m.def("kseq_rho(Tensor p, Tensor q, Tensor k, Tensor? p_stats, Tensor? q_stats) -> (Tensor, Tensor, Tensor)");

  // p, q and their stats as for kseq_rho -> TV, sum min(p, q), H(p), H(q), max p, max q [N,6]
  m.def("row_gap(Tensor p, Tensor q, Tensor? p_stats, Tensor? q_stats) -> Tensor");

  // draft_tokens [B,K,L] -> parents [B,N], tokens [B,N], multiplicity [B,N], draft_nodes [B,K,L]; N = K * L + 1
  m.def("build_tree(Tensor draft_tokens) -> (Tensor, Tensor, Tensor, Tensor)");

  // parents [B,N], prefix_len and tree_start [B] or [1]; num_keys -1: the nodes alone; formats: 0 bool, 1 float32, 2
  // float64, 3 bfloat16, 4 float16, 5 uint8, 6 uint32, 7 uint64 -> mask [B,N,keys] or packed, depth [B,N], positions
  // [B,N], status [B]
  m.def(
      "tree_mask(Tensor parents, Tensor? prefix_len, Tensor? tree_start, SymInt num_keys, int format) -> (Tensor, "
      "Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_FRAGMENT(specdec, m) {
  // dense: target [B,G+1,V], tokens [B,G], draft [B,G,Vq]; ragged with cu_draft [B+1]: target [R,V], tokens [D], draft
  // [D,Vq] without the bonus row (G or D target rows) where bonus_tokens [B] is given; kinds: 0 logits, 1
  // probabilities; methods: 0 token, 1 block; rule [B] or [1], its codes in csrc/rules/rule.h; alpha [B], [1], [B,2] or
  // [1,2]; target_row [B,G+1] (ragged [R]), draft_row [B,G] or [B,G+1] ([D] or [R]): that side's rows are then [N,V] or
  // [S,K,V], its stats [N,4] or [S,K,4] -> tokens [B,G+1], num_accepted [B], logprobs [B,G+1], status [B]
  m.def("verify_chain(" VERIFY_CHAIN_ARGUMENTS ") -> (Tensor, Tensor, Tensor, Tensor)");
  m.def("verify_chain.out(" VERIFY_CHAIN_ARGUMENTS ", *, " OUT ") -> ()");

  // parents, node tokens, target_row, draft_row, first_child, next_sibling [B,N]; draft_nodes [B,K,L]; target [B,M,V];
  // draft [B,Mq,Vq] methods: 0 kseq, 1 recursive, 2 recursive_without_replacement, 3 target_only, 4 greedy, 5
  // traversal; kinds: 0 logits, 1 probabilities; rule and alpha as above -> tokens [B,D+1], num_accepted [B], logprobs
  // [B,D+1], status [B], path [B,D+1], D = max_depth
  m.def("verify_tree(" VERIFY_TREE_ARGUMENTS ") -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def("verify_tree.out(" VERIFY_TREE_ARGUMENTS ", *, " OUT ", Tensor(e!) path) -> ()");
}
