// SPDX-License-Identifier: Apache-2.0
// Linked before the kernels. The linker keeps zero-initialised thread-local variables in the order of the objects. So
// the variables between this marker and the one in shared_end.cpp are exactly the kernels' __shared__ variables.
extern "C" __attribute__((visibility("hidden"), aligned(64))) thread_local char specdec_shared_begin[64];
thread_local char specdec_shared_begin[64];
