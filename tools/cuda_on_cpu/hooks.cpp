// SPDX-License-Identifier: Apache-2.0
// The functions that -fsanitize=thread and -fsanitize=undefined call. We use the compiler's instrumentation without its
// runtimes: accesses of kernels are noted here, and undefined behaviour fails the launch.
#include "block.h"

using cuda_on_cpu::Access;
using cuda_on_cpu::note;

extern "C" {

void __tsan_init() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_read_range(void* p, size_t n) { note(p, n, Access::read); }
void __tsan_write_range(void* p, size_t n) { note(p, n, Access::write); }

// Records the calls that lead to where a thread is: for each depth, one number that stands for all calls down to it.
void __tsan_func_entry(void* caller) {
  if (!cuda_on_cpu::in_kernel()) return;
  cuda_on_cpu::Thread& t = cuda_on_cpu::block->running();
  const uint64_t way = t.way() * 0x9E3779B97F4A7C15u + reinterpret_cast<uintptr_t>(caller);
  if (++t.depth < t.kDepth) t.path[t.depth] = way;
}
void __tsan_func_exit() {
  if (cuda_on_cpu::in_kernel()) --cuda_on_cpu::block->running().depth;
}

#define PLAIN(size)                                                          \
  void __tsan_read##size(void* p) { note(p, size, Access::read); }           \
  void __tsan_write##size(void* p) { note(p, size, Access::write); }         \
  void __tsan_unaligned_read##size(void* p) { note(p, size, Access::read); } \
  void __tsan_unaligned_write##size(void* p) { note(p, size, Access::write); }
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)
#undef PLAIN

// Atomics of the host's headers (reference counts). Kernels use those of cuda_runtime.h.
#define ATOMIC(bits, T)                                                                                             \
  T __tsan_atomic##bits##_load(const volatile T* p, int) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }           \
  void __tsan_atomic##bits##_store(volatile T* p, T v, int) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }           \
  T __tsan_atomic##bits##_exchange(volatile T* p, T v, int) { return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##bits##_fetch_add(volatile T* p, T v, int) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##bits##_fetch_sub(volatile T* p, T v, int) { return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##bits##_fetch_and(volatile T* p, T v, int) { return __atomic_fetch_and(p, v, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##bits##_fetch_or(volatile T* p, T v, int) { return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST); }   \
  T __tsan_atomic##bits##_fetch_xor(volatile T* p, T v, int) { return __atomic_fetch_xor(p, v, __ATOMIC_SEQ_CST); } \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile T* p, T* c, T v, int, int) {                           \
    return __atomic_compare_exchange_n(p, c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                         \
  }                                                                                                                 \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile T* p, T* c, T v, int, int) {                             \
    return __atomic_compare_exchange_n(p, c, v, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                          \
  }
ATOMIC(8, uint8_t)
ATOMIC(16, uint16_t)
ATOMIC(32, uint32_t)
ATOMIC(64, uint64_t)
#undef ATOMIC
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }

// The compiler does not instrument calls of memcpy and the like. build.py redirects those of the .cu files here.
void* specdec_memcpy(void* to, const void* from, size_t n) {
  note(from, n, Access::read), note(to, n, Access::write);
  return std::memcpy(to, from, n);
}
void* specdec_memmove(void* to, const void* from, size_t n) {
  note(from, n, Access::read), note(to, n, Access::write);
  return std::memmove(to, from, n);
}
void* specdec_memset(void* p, int v, size_t n) {
  note(p, n, Access::write);
  return std::memset(p, v, n);
}

// The data of a handler begins with the place in the source. (nonnull_return_v1 gets the place as an argument of its
// own.)
struct Place {
  const char* file;
  uint32_t line, column;
};

[[noreturn]] static void undefined(const Place* place, const std::string& what) {
  const std::string file = place && place->file ? place->file : "?";
  cuda_on_cpu::fail("undefined: " + what + " (" + file.substr(file.rfind('/') + 1) + ":" +
                    std::to_string(place ? place->line : 0) + ")");
}

struct TypeMismatch {
  Place place;
  const void* type;
  unsigned char log_alignment, kind;
};
void __ubsan_handle_type_mismatch_v1(TypeMismatch* data, uintptr_t address) {
  const uintptr_t alignment = uintptr_t{1} << data->log_alignment;
  undefined(&data->place, !address ? "access through a null pointer"
                          : address % alignment
                              ? "misaligned access, the type needs " + std::to_string(alignment) + " bytes"
                              : "access past the object");
}

#define UNDEFINED(name, what) \
  void __ubsan_handle_##name(Place* place) { undefined(place, what); }
UNDEFINED(add_overflow, "signed addition overflows")
UNDEFINED(sub_overflow, "signed subtraction overflows")
UNDEFINED(mul_overflow, "signed multiplication overflows")
UNDEFINED(negate_overflow, "signed negation overflows")
UNDEFINED(divrem_overflow, "division by zero or overflow")
UNDEFINED(shift_out_of_bounds, "shift by the width or more, or of a negative value")
UNDEFINED(out_of_bounds, "index out of bounds")
UNDEFINED(pointer_overflow, "pointer arithmetic overflows")
UNDEFINED(float_cast_overflow, "the float does not fit the integer")
UNDEFINED(load_invalid_value, "a bool or enum holds another value")
UNDEFINED(vla_bound_not_positive, "array of negative size")
UNDEFINED(alignment_assumption, "assumed alignment does not hold")
UNDEFINED(nonnull_arg, "null for an argument that must not be")
UNDEFINED(invalid_builtin, "builtin of zero")
UNDEFINED(builtin_unreachable, "end of a path that cannot be")
UNDEFINED(missing_return, "function ends without a value")
void __ubsan_handle_nonnull_return_v1(void*, Place* place) { undefined(place, "null returned"); }
#undef UNDEFINED
}
