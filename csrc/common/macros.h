// SPDX-License-Identifier: Apache-2.0
#pragma once

// A rule marked SPECDEC_HD is compiled for the host and for the device.
#if defined(__CUDACC__)
#define SPECDEC_HD __host__ __device__ inline
#else
#define SPECDEC_HD inline
#endif
