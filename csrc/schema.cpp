// SPDX-License-Identifier: Apache-2.0
// Every op, one page. p = target, q = draft. B requests, G drafted tokens, V vocabulary, N rows, R = sum(g_b) + B, D = sum(g_b).
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(specdec, m) {
  // logits [N,V], parameters [N] or [1] -> stats [N,4]: scale, cutoff, log_norm, max
  m.def("row_stats(Tensor logits, Tensor? temperature, Tensor? top_k, Tensor? top_p, Tensor? min_p) -> Tensor");

  // seed [B], offset [B] -> [B,n] float64 in [0,1)
  m.def("uniforms(Tensor seed, Tensor offset, SymInt n, int domain) -> Tensor");

  // logits [N,V], stats [N,4], parameters [N], seed/offset/slot [N] or uniforms [N,k] -> tokens [N,k], ln q [N,k], stats [N,4]
  m.def(
      "sample(Tensor logits, Tensor? stats, SymInt k, bool replacement, Tensor? temperature, Tensor? top_k, Tensor? top_p, "
      "Tensor? min_p, Tensor? seed, Tensor? offset, Tensor? slot, Tensor? uniforms) -> (Tensor, Tensor, Tensor)");

  // p, q (or integer ids of one-hot drafts), u of one shape -> bool
  m.def("accept(Tensor p, Tensor q, Tensor u) -> Tensor");

  // p [N,V], q [N,Vq] or ids [N] -> norm((p-q)+) [N,V], its mass [N]
  m.def("residual(Tensor p, Tensor q) -> (Tensor, Tensor)");

  // dense: target [B,G+1,V], tokens [B,G], draft [B,G,Vq]; ragged with cu_draft [B+1]: target [R,V], tokens [D], draft [D,Vq]
  // without the bonus row (G or D target rows) where bonus_tokens [B] is given; kinds: 0 logits, 1 probabilities
  // -> tokens [B,G+1], num_accepted [B], logprobs [B,G+1], status [B]
  m.def(
      "verify_chain(Tensor target_logits, Tensor draft_tokens, Tensor? draft_logits, Tensor? cu_draft, SymInt max_draft, "
      "Tensor? bonus_tokens, Tensor? temperature, Tensor? top_k, Tensor? top_p, Tensor? min_p, Tensor? target_stats, "
      "Tensor? draft_stats, Tensor? draft_temperature, Tensor? draft_top_k, Tensor? draft_top_p, Tensor? draft_min_p, "
      "int target_kind, int draft_kind, Tensor? seed, Tensor? offset, Tensor? uniforms) -> (Tensor, Tensor, Tensor, Tensor)");
}
