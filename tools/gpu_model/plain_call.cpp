// SPDX-License-Identifier: Apache-2.0
// Prints, in hexadecimal, the argument that a plain verify_chain passes to its kernels: for a call with few positions,
// and for one with many. A plain call has bf16 rows stored by position, given draft stats, no filters, and a seed and
// an offset for each request.
#include <cstdio>
#include <cstring>

#include "../../csrc/ops/verify_chain/chain_rows.cuh"

namespace {

template <class T>
T* somewhere() {
  return reinterpret_cast<T*>(uintptr_t(1) << 40);
}

void print(int64_t B, bool few) {
  using namespace specdec;
  constexpr int64_t G = 5, V = 151'936;
  alignas(Step) static char bytes[sizeof(Step)];
  std::memset(bytes, 0, sizeof bytes);  // padding between members too
  Step& s = *new (bytes) Step;
  VerifyChain& a = s.a;
  a.B = B, a.G = G, a.draft_tokens_stride = G;
  a.target.memory = {somewhere<void>(), V, (G + 1) * V, V, kBFloat16}, a.target.per_request = G + 1;
  a.draft.memory = {somewhere<void>(), V, G * V, V, kBFloat16}, a.draft.per_request = G;
  a.draft.stats = somewhere<float>();
  if (!few) a.target.stats = somewhere<float>(), a.target.stats_of_positions = true;
  for (Ints* x : {&a.draft_tokens, &a.seed, &a.offset}) *x = {somewhere<void>(), 1, true};
  a.tokens.data = somewhere<void>(), a.num_accepted = a.status = somewhere<int32_t>(), a.logprobs = somewhere<float>();
  s.target.stats = somewhere<RowStats>(), s.target.blocks = 10;
  s.target.table.max = s.target.table.sum = s.residual = s.end_sums = somewhere<float>();
  s.stop = s.tested_blocks = s.summed = somewhere<int>(), s.stops = somewhere<DraftTest>();
  s.per_warp = s.residual_per_warp = 2, s.residual_blocks = 10;
  for (const char x : bytes) std::printf("%02x", uint8_t(x));
  std::printf("\n");
}

}  // namespace

int main() {
  print(8, true);
  print(64, false);
}
