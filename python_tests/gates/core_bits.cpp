// SPDX-License-Identifier: Apache-2.0
// Prints what the core of the CPU ops computes for a fixed set of rows, as bits. The program compiled for another
// machine must print the same text (python_tests/package/test_aarch64.py). It is linked with csrc/cpu alone, without
// torch: python_tests/gates/no_torch has the one header of torch's that is needed.
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "cpu/row_executor.h"
#include "ops/kseq_rho/kseq_rho.h"
#include "ops/residual/residual.h"
#include "ops/row_gap/row_gap.h"
#include "ops/sample/sample.h"
#include "ops/verify_chain/test_draft.h"

namespace specdec {

extern const RowKernels rows_base;
const RowKernels& rows() { return rows_base; }

// Only rows that are spread over ranks call these. They are defined in csrc/cpu/shards.cpp, which needs torch.
char* ShardTask::post(size_t, std::function<void(const char*, size_t)>) { std::abort(); }
float ShardTask::entry(const Row&, int64_t) { std::abort(); }
ShardTask::RowAsked ShardTask::asked_of(const Row&, const Filters&, bool) { std::abort(); }
ShardTask::ViewKey ShardTask::key_of(const View&) { std::abort(); }
void ShardTask::put_number(float, DType, char*) { std::abort(); }

namespace {

constexpr const char* kDTypes[] = {"float32", "bfloat16", "float16"};
constexpr int64_t kVocabularies[] = {1, 77, 1025, 10317};  // one entry; a tail of lanes; a tail of a chunk; 11 chunks
constexpr int64_t kDrafts = 2;

// peaked: one logit 300 above the others. steep: weights down to 0. huge: differences overflow.
enum Shape { kSpread, kPeaked, kSteep, kTies, kHoles, kHuge, kBad, kShapes };
constexpr const char* kShapeNames[] = {"spread", "peaked", "steep", "ties", "holes", "huge", "bad"};

constexpr Filters kFilters[] = {{},     {0.7f, 50}, {1.3f, 0, 0.9f}, {1.0f, 0, 1.0f, 0.05f},
                                {0.0f}, {0.01f},    {100.0f},        {0.9f, 20, 0.8f, 0.02f}};

// NaNs count as equal: their bits depend on the machine.
void put(float x) { x == x ? void(std::printf(" %08x", std::bit_cast<uint32_t>(x))) : void(std::printf(" nan")); }
void put(double x) {
  x == x ? void(std::printf(" %016llx", (unsigned long long)std::bit_cast<uint64_t>(x))) : void(std::printf(" nan"));
}
void put(int64_t x) { std::printf(" %lld", (long long)x); }

template <class... T>
void line(const std::string& name, const T&... values) {
  std::printf("%s:", name.c_str());
  (put(values), ...);
  std::printf("\n");
}

// A hash of all bits of an array
int64_t digest(const float* x, int64_t n) {
  uint64_t hash = 0xcbf29ce484222325;
  for (int64_t i = 0; i < n; ++i) hash = (hash ^ (x[i] == x[i] ? std::bit_cast<uint32_t>(x[i]) : 1)) * 0x100000001b3;
  return int64_t(hash);
}

uint32_t random_word(int64_t seed, int64_t i) { return philox4x32({{uint32_t(i), 0, 0, 77}}, uint32_t(seed), 0).w[0]; }
// A multiple of 2^-12 in [-1, 1)
float noise(int64_t seed, int64_t i) { return float(int32_t(random_word(seed, i)) >> 19) * 0x1p-12f; }

// Rows with different seeds differ only by noise, so that some drafts are accepted and some are not.
float logit(Shape shape, int64_t V, int64_t seed, int64_t i) {
  const float jitter = noise(seed, i);
  switch (shape) {
    case kPeaked: return i == 2 * V / 3 ? 300.0f : jitter;
    case kSteep: return -0.75f * float(i % 211) + jitter;
    case kTies: return float(random_word(seed, i) % 3);
    case kHoles: return i % 3 == 1 && V > 1 ? -HUGE_VALF : 4 * noise(0, i) + jitter;
    case kHuge: return (jitter > 0 ? 0x1p127f : -0x1p127f) * (1 + 0.25f * noise(1, i));
    case kBad: return i == V / 2 ? NAN : jitter;
    default: return 4 * noise(0, i) + jitter;
  }
}

// The bits of x in a 16-bit format, truncated. For float16, x out of range becomes the largest number, or 0.
uint16_t half_bits(float x, DType dtype) {
  const uint32_t word = std::bit_cast<uint32_t>(x), sign = word >> 16 & 0x8000;
  const int exponent = int(word >> 23 & 255) - 127;
  if (dtype == kBFloat16) return uint16_t(word >> 16);
  if (exponent == 128) return uint16_t(sign | 0x7c00 | (x != x ? 0x200 : 0));
  if (exponent > 15) return uint16_t(sign | 0x7bff);
  return exponent < -14 ? uint16_t(sign) : uint16_t(sign | uint32_t(exponent + 15) << 10 | (word >> 13 & 0x3ff));
}

// n rows of V logits. Vector code loads kPad entries at once only if all of them are inside the row.
struct Block {
  std::vector<char> bytes;
  RowMemory memory;

  Block(DType dtype, int64_t n, int64_t V, Shape shape, int64_t seed) : bytes(n * V * (dtype == kFloat32 ? 4 : 2)) {
    for (int64_t i = 0; i < n * V; ++i) {
      const float z = logit(shape, V, seed + i / V, i % V);
      const uint16_t half = half_bits(z, dtype);
      if (dtype == kFloat32)
        std::memcpy(bytes.data() + 4 * i, &z, 4);
      else
        std::memcpy(bytes.data() + 2 * i, &half, 2);
    }
    memory.data = bytes.data(), memory.V = V, memory.row_stride = V, memory.batch_stride = n * V, memory.dtype = dtype;
  }
};

Sampling sampling_by(const Filters& filters) {
  Sampling sampling;
  sampling.numbers = filters, sampling.has_numbers = true;
  return sampling;
}

void print_sample(CpuExecutor& executor, const std::string& name, const Block& block, const Filters& filters) {
  int64_t tokens[3] = {}, seed = 5, offset = 9;
  float logprobs[3] = {};
  RowStats stats{};
  Sample a;
  static_cast<RowMemory&>(a.logits) = block.memory;
  a.N = 1, a.k = 3, a.sampling = sampling_by(filters);
  a.seed = {&seed}, a.offset = {&offset}, a.tokens = tokens, a.logprobs = logprobs, a.stats = &stats;
  for (const bool replacement : {true, false}) {
    a.replacement = replacement;
    executor.forget();
    sample(executor, a, 0);
    line("sample " + name, tokens[0], tokens[1], tokens[2], logprobs[0], logprobs[1], logprobs[2]);
  }
}

// One request whose drafts are drawn from the draft's rows
void print_chain(CpuExecutor& executor, const std::string& name, const Block& p, const Block& q, const Filters& f) {
  int64_t drafts[kDrafts], tokens[kDrafts + 1], seed = 0, offset = 0;
  float logprobs[kDrafts + 1];
  int32_t accepted, status;
  VerifyChain a;
  a.B = 1, a.G = kDrafts, a.draft_tokens = {drafts, 1}, a.draft_tokens_stride = kDrafts;
  a.target.memory = p.memory, a.draft.memory = q.memory;
  a.target.sampling = a.draft.sampling = sampling_by(f);
  a.target.per_request = kDrafts + 1, a.draft.per_request = kDrafts;
  a.seed = {&seed}, a.offset = {&offset}, a.tokens = {tokens}, a.num_accepted = &accepted;
  a.logprobs = logprobs, a.status = &status;
  for (seed = 0; seed < 4; ++seed) {
    for (int64_t i = 0; i < kDrafts; ++i) {
      executor.forget();
      const Dist d = a.draft.dist(executor, -1, 0, i);
      const bool drawn = d.kind == Kind::kLogits && has_mass(executor.sum(d));
      drafts[i] = d.kind == Kind::kOneHot ? d.hot : drawn ? executor.draw(d, uniform(seed, 0, kDomainDraft, i)) : 0;
    }
    executor.forget();
    verify_chain(executor, a, 0);
    line("verify_chain " + name, int64_t(accepted), tokens[0], tokens[1], tokens[2], logprobs[0], logprobs[1],
         logprobs[2], int64_t(status));
  }
}

// The acceptance test, the residual, and the results of row_gap and kseq_rho, for a pair of rows with their filters
void print_pair(CpuExecutor& executor, const std::string& name, const Dist& p, const Dist& q, int64_t V) {
  for (int64_t i = 0; i < 4; ++i) {
    const int64_t d = i == 0 ? 2 * V / 3 : int64_t(random_word(3, i)) % V;
    const double of_p = p.prob(d), of_q = q.prob(d), u = uniform(11, V, kDomainAccept, i);
    line("accept " + name, d, of_p, of_q, int64_t(accept(of_p, of_q, u)));
  }
  executor.forget();
  const double mass = executor.sum(p, q);
  line("residual " + name, mass, p.kind == Kind::kLogits && has_mass(mass) ? executor.draw(p, q, 0.375) : -1);
  executor.forget();
  const Gap gap = row_gap(executor, p, q);
  line("row_gap " + name, gap.tv, gap.overlap, gap.entropy_p, gap.entropy_q, gap.max_p, gap.max_q);
  for (const int64_t k : {2, 3, 8}) {
    const KSeq found = kseq_rho(executor, p, q, k);
    line("kseq_rho " + name, k, found.rho, found.beta, found.p_acc);
  }
}

// The entropy of a row, computed after the stats, and in the same pass as the stats
void print_entropy(CpuExecutor& executor, const std::string& name, const Row& row, const Filters& filters) {
  executor.forget();
  const Dist alone = from_stats(row, executor.stats(row, filters));
  const double later = executor.entropy(alone);
  executor.expect_entropy(true);
  const Dist both = from_stats(row, executor.stats(row, filters));
  line("entropy " + name, later, executor.entropy(both));
  executor.forget();
}

// A row with a request's penalties, bias and mask applied
void print_views(CpuExecutor& executor, const std::string& name, const Row& row, const Filters& filters) {
  const int32_t ids[] = {0, int32_t(row.V / 3), int32_t(row.V - 1)}, counts[] = {1, 3, 7};
  Views views;
  views.penalties.numbers = {1.3f, 0.37f, 0.21f};
  views.penalties.ids = ids, views.penalties.counts = counts;
  views.penalties.S = 1, views.penalties.H = row.V < 3 ? 1 : 3;
  views.bias.ids = {ids, 1, false}, views.bias.S = 1, views.bias.n = 2;
  views.bias.sorted.reset(new Bias::Entry[2]{{0, 0.7f}, {int32_t(row.V / 3), -0.3f}});
  std::vector<uint32_t> words(size_t(row.V + 31) / 32, 0xeeeeefffu);
  views.mask.words = words.data(), views.mask.W = int64_t(words.size()), views.mask.S = 1;
  const Row seen = row.seen(views, 0, 0, 0);
  const RowStats stats = executor.stats(seen, filters);
  line("views " + name, seen.entry(0), seen.entry(row.V - 1), stats.cutoff, stats.log_norm, stats.max);
}

// The residual of two rows of probabilities, as the op writes it
void print_probabilities(CpuExecutor& executor, const std::string& name, const Dist& p, const Dist& q, int64_t V) {
  std::vector<float> of_p(chunk_count(V) * kChunk), of_q(of_p.size()), left(of_p.size());
  executor.forget();
  for (int64_t c = 0; c < chunk_count(V); ++c) {
    executor.weights(p, Dist{}, c, of_p.data() + c * kChunk);
    executor.weights(q, Dist{}, c, of_q.data() + c * kChunk);
  }
  const Dist x = from_probs({of_p.data(), V, kFloat32}), y = from_probs({of_q.data(), V, kFloat32});
  double mass = 0;
  executor.forget();
  const Outcome found = outcome(executor, x, y, mass);
  for (int64_t c = 0; found.hot < 0 && c < chunk_count(V); ++c)
    executor.weights(x, found.minus ? y : Dist{}, c, left.data() + c * kChunk);
  line("probs " + name, digest(of_p.data(), V), digest(of_q.data(), V), mass, found.inverse, found.hot,
       digest(left.data(), V), executor.entropy(x));
}

void print_rows(DType dtype, int64_t V, Shape shape) {
  const Block p(dtype, kDrafts + 1, V, shape, 100), q(dtype, kDrafts, V, shape, 200);
  CpuExecutor executor(V, false);
  int number = 0;
  for (const Filters& filters : kFilters) {
    const std::string name = std::string(kDTypes[dtype]) + " V=" + std::to_string(V) + " " + kShapeNames[shape] +
                             " filters " + std::to_string(number++);
    const Row row = p.memory.at(0, 0), draft_row = q.memory.at(0, 0);
    executor.forget();
    const RowStats stats = executor.stats(row, filters), draft_stats = executor.stats(draft_row, filters);
    line("row_stats " + name, stats.scale, stats.cutoff, stats.log_norm, stats.max);
    const Dist of_p = from_stats(row, stats), of_q = from_stats(draft_row, draft_stats);
    print_entropy(executor, name, row, filters);
    print_views(executor, name, row, filters);
    print_sample(executor, name, p, filters);
    print_chain(executor, name, p, q, filters);
    print_pair(executor, name, of_p, of_q, V);
    if (of_p.kind == Kind::kLogits && of_q.kind == Kind::kLogits) print_probabilities(executor, name, of_p, of_q, V);
  }
}

// The kernels' own exponential and logarithm, over the range that rows use, and the libm functions of the walks
void print_functions() {
  const RowKernels& kernels = rows();
  float z[kChunk], out[kChunk];
  for (int block = 0; block < 128; ++block) {
    for (int i = 0; i < kChunk; ++i) z[i] = -float(block) - float(i) * 0x1p-10f + noise(block, i) * 0x1p-11f;
    kernels.probs(z, kChunk, {1, -FLT_MAX, 0, 0}, out);
    line("exp2 from -" + std::to_string(block), digest(out, kChunk));
    for (int i = 0; i < kChunk; ++i) {
      float one[kPad] = {std::bit_cast<float>(std::bit_cast<uint32_t>(out[i]) | 0x00800000)};
      z[i] = kernels.prob_entropy(one, 1);
    }
    line("log of it", digest(z, kChunk));
    for (int i = 0; i < kChunk; ++i) z[i] = std::exp(-float(block) * 0.75f + noise(block, i));
    line("expf", digest(z, kChunk));
  }
  for (int i = 0; i < 512; ++i) {
    const double x = uniform(1, 2, 3, i), y = -40 * uniform(4, 5, 6, i);
    line("philox, exp, log", x, std::exp(y), std::log(x), y);
  }
}

}  // namespace
}  // namespace specdec

int main(int count, char** names) {
  using namespace specdec;
  print_functions();
  for (int dtype = 0; dtype < 3; ++dtype) {
    if (count > 1 && std::strcmp(names[1], kDTypes[dtype])) continue;
    for (const int64_t V : kVocabularies)
      for (int shape = 0; shape < kShapes; ++shape) print_rows(DType(dtype), V, Shape(shape));
  }
}
