// SPDX-License-Identifier: Apache-2.0
// Linked before the kernels: the linker keeps thread-local zeros in the order of the objects, so what lies between this
// marker and that of shared_end.cpp is exactly the __shared__ variables.
extern "C" __attribute__((visibility("hidden"), aligned(64))) thread_local char specdec_shared_begin[64];
thread_local char specdec_shared_begin[64];
