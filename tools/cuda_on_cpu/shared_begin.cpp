// SPDX-License-Identifier: Apache-2.0
// Linked before the kernels. The linker keeps thread-local zeros in the order of the objects, so exactly the __shared__
// variables are between this marker and the one in shared_end.cpp.
extern "C" __attribute__((visibility("hidden"), aligned(64))) thread_local char specdec_shared_begin[64];
thread_local char specdec_shared_begin[64];
