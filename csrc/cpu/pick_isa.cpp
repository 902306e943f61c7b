// SPDX-License-Identifier: Apache-2.0
#include "simd_kernels.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace specdec {

extern const RowKernels rows_base;
#if defined(__x86_64__)
extern const RowKernels rows_avx2, rows_avx512;
#endif

namespace {

const RowKernels& pick() {
  const char* env = std::getenv("SPECDEC_ISA");
  const std::string wanted = env ? env : "";
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (avx512 && (wanted.empty() || wanted == "avx512")) return rows_avx512;
  if (avx2 && (wanted.empty() || wanted == "avx2")) return rows_avx2;
#endif
  if (wanted.empty() || wanted == "base") return rows_base;
  throw std::runtime_error("specdec: SPECDEC_ISA must name an instruction set of this CPU (base, avx2, avx512), got " +
                           wanted);
}

}  // namespace

const RowKernels& rows() {
  static const RowKernels& picked = pick();
  return picked;
}

}  // namespace specdec

// The instruction set in use, for `python -m specdec_kernels info`
extern "C" __attribute__((visibility("default"))) const char* specdec_cpu_isa() { return specdec::rows().isa; }
