// SPDX-License-Identifier: Apache-2.0
// Linked after the kernels; see shared_begin.cpp.
extern "C" __attribute__((visibility("hidden"), aligned(64))) thread_local char specdec_shared_end[64];
thread_local char specdec_shared_end[64];
