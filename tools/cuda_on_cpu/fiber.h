// SPDX-License-Identifier: Apache-2.0
// A fiber: a stack and the point where it stopped. On x86-64 a switch takes some fifteen instructions and no system
// call. Elsewhere fibers use ucontext.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__) && !defined(SPECDEC_UCONTEXT)

namespace cuda_on_cpu {

struct Fiber {
  void* stack_pointer = nullptr;
};

// Saves the callee-saved registers on the stack of `from`, and restores those of `to` from its stack.
extern "C" void specdec_switch_fiber(void** from, void* to) __attribute__((visibility("hidden")));

inline void switch_fiber(Fiber& from, Fiber& to) { specdec_switch_fiber(&from.stack_pointer, to.stack_pointer); }

inline void start_fiber(Fiber& fiber, char* stack, size_t bytes, void (*entry)()) {
  void** top = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(stack) + bytes) & ~uintptr_t{63});
  *--top = nullptr;  // the return address of entry, which never returns
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;  // rbp rbx r12 r13 r14 r15
  fiber.stack_pointer = top;
}

}  // namespace cuda_on_cpu

#else

#include <ucontext.h>

namespace cuda_on_cpu {

struct Fiber {
  ucontext_t context;
};

inline void switch_fiber(Fiber& from, Fiber& to) { swapcontext(&from.context, &to.context); }

inline void start_fiber(Fiber& fiber, char* stack, size_t bytes, void (*entry)()) {
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = stack;
  fiber.context.uc_stack.ss_size = bytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, entry, 0);
}

}  // namespace cuda_on_cpu

#endif
