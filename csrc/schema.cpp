// SPDX-License-Identifier: Apache-2.0
// Every op, one page. p = target, q = draft. B requests, G drafted tokens, V vocabulary, N rows, R = sum(g_b) + B, D =
// sum(g_b).
#include <torch/csrc/stable/library.h>

// The rows of one side and how they are sampled from. `numbers`, in place of tensors that hold one entry for all:
// temperature, top_k, top_p, min_p, -DBL_MAX where none is given.
#define SAMPLING(prefix)                                                                             \
  "Tensor? " prefix "temperature, Tensor? " prefix "top_k, Tensor? " prefix "top_p, Tensor? " prefix \
  "min_p, float[]? " prefix "numbers"
#define PARAMETERS SAMPLING("")
#define ROWS(logits, side) \
  logits " " side "_logits, " SAMPLING(side "_") ", Tensor? " side "_stats, int " side "_kind, Tensor? " side "_row"

#define TARGET ROWS("Tensor", "target")
#define DRAFT ROWS("Tensor?", "draft")

// rule_numbers: the rule's code, alpha, second alpha, in place of tensors
#define RULE "Tensor? rule, Tensor? alpha, float[]? rule_numbers"
#define RANDOMNESS "Tensor? seed, Tensor? offset, Tensor? uniforms"

#define VERIFY_CHAIN_ARGUMENTS                                                                           \
  TARGET ", Tensor draft_tokens, " DRAFT                                                                 \
         ", Tensor? cu_draft, SymInt max_draft, Tensor? bonus_tokens, int method, " RULE ", " RANDOMNESS \
         ", Tensor? num_requests"
#define VERIFY_TREE_ARGUMENTS                                                                                   \
  "Tensor parents, Tensor node_tokens, Tensor? draft_nodes, Tensor? first_child, Tensor? next_sibling, " TARGET \
  ", " DRAFT ", int method, SymInt max_depth, " RULE ", " RANDOMNESS ", Tensor? num_requests"
#define OUT "Tensor(a!) tokens, Tensor(b!) num_accepted, Tensor(c!) logprobs, Tensor(d!) status"

namespace {

template <class Library>
void define_parts(Library& m) {
  // num_rows, num_requests [1], int32 or int64, on the device: those from it on are absent; nothing of them is read,
  // and every result is 0 for them, or -1 where it is a token or a node

  // logits [N,V], parameters [N] or [1] -> stats [N,4]: scale, cutoff, log_norm, max
  m.def("row_stats(Tensor logits, " PARAMETERS ", Tensor? num_rows) -> Tensor");

  // seed [B], offset [B] -> [B,n] float64 in [0,1)
  m.def("uniforms(Tensor seed, Tensor offset, SymInt n, int domain) -> Tensor");

  // logits [N,V], stats [N,4], parameters and seed/offset/slot [N], uniforms [N,k] -> tokens, ln q [N,k], stats [N,4]
  m.def("sample(Tensor logits, " PARAMETERS
        ", Tensor? stats, SymInt k, bool replacement, Tensor? seed, Tensor? offset, "
        "Tensor? slot, SymInt first_slot, Tensor? uniforms, Tensor? num_rows) -> (Tensor, Tensor, Tensor)");

  // logits [N,V], stats [N,4], tokens [N,m], num_rows [1] -> ids, logprobs [N,k], token_logprobs, token_ranks [N,m]
  m.def(
      "top_logprobs(Tensor logits, Tensor stats, SymInt k, Tensor? tokens, Tensor? num_rows) -> (Tensor, Tensor, "
      "Tensor, Tensor)");

  // logits [N,V], stats [N,4], score [N], num_rows [1] -> scores, ids [N,w]
  m.def("row_topw(Tensor logits, Tensor? stats, Tensor score, SymInt w, Tensor? num_rows) -> (Tensor, Tensor)");

  // logits [N,V], stats [N,4], row [M], num_rows [1] -> ids [M,max_kept], counts [M], bits [M,ceil(V/32)]
  m.def(
      "support(Tensor logits, Tensor stats, Tensor? row, SymInt max_kept, Tensor? num_rows) -> (Tensor, Tensor, "
      "Tensor)");

  // p, q (or integer ids of one-hot drafts), u of one shape -> bool
  m.def("accept(Tensor p, Tensor q, Tensor u) -> Tensor");

  // p [N,V], q [N,Vq] or ids [N] -> norm((p-q)+) [N,V], its mass [N]
  m.def("residual(Tensor p, Tensor q, Tensor? num_rows) -> (Tensor, Tensor)");

  // p [N,V], q [N,Vq], k [N] or [1]; logits with stats [N,4] each, probabilities without -> rho, beta, p_acc [N]
  m.def("kseq_rho(Tensor p, Tensor? p_stats, Tensor q, Tensor? q_stats, Tensor k) -> (Tensor, Tensor, Tensor)");

  // p, q and their stats as for kseq_rho -> TV, sum min(p, q), H(p), H(q), max p, max q [N,6]
  m.def("row_gap(Tensor p, Tensor? p_stats, Tensor q, Tensor? q_stats) -> Tensor");

  // draft_tokens [B,K,L] -> parents [B,N], tokens [B,N], multiplicity [B,N], draft_nodes [B,K,L]; N = K * L + 1
  m.def("build_tree(Tensor draft_tokens) -> (Tensor, Tensor, Tensor, Tensor)");

  // parents [B,N], prefix_len and tree_start [B] or [1]; num_keys -1: the nodes alone; formats: 0 bool, 1 float32, 2
  // float64, 3 bfloat16, 4 float16, 5 uint8, 6 uint32, 7 uint64 -> mask [B,N,keys] or packed, depth [B,N], positions
  // [B,N], status [B]
  m.def(
      "tree_mask(Tensor parents, Tensor? prefix_len, Tensor? tree_start, SymInt num_keys, int format) -> (Tensor, "
      "Tensor, Tensor, Tensor)");
}

template <class Library>
void define_verification(Library& m) {
  // dense: target [B,G+1,V], tokens [B,G], draft [B,G,Vq]; ragged with cu_draft [B+1]: target [R,V], tokens [D], draft
  // [D,Vq]; without the bonus row (G or D target rows) where bonus_tokens [B] is given; kinds: 0 logits, 1
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

}  // namespace

STABLE_TORCH_LIBRARY(specdec, m) { define_parts(m), define_verification(m); }

// The same, where nothing runs: arguments are checked, and results made that nobody has written. What a backend calls
// that is not written in C++, so that a check stands once.
STABLE_TORCH_LIBRARY(specdec_check, m) { define_parts(m), define_verification(m); }
