// SPDX-License-Identifier: Apache-2.0
// Kernels that the gates must refuse: one needs more registers than it has, one has a stack, and one has narrow loads.
// The gates must pass the last kernel.

__global__ void __launch_bounds__(256, 4) spills(const float4* __restrict__ in, float* __restrict__ out) {
  float4 kept[32];  // 128 registers, where 64 are allowed
  for (int i = 0; i < 32; ++i) kept[i] = in[i * 256 + threadIdx.x];
  __syncthreads();
  for (int i = 0; i < 32; ++i)
    out[i * 256 + threadIdx.x] = kept[i].x * kept[31 - i].y + kept[(i * 7) % 32].z - kept[(i * 5) % 32].w;
}

__global__ void __launch_bounds__(256, 4) has_a_stack(const float4* in, const int* order, float* out) {
  float kept[64];
  for (int i = 0; i < 16; ++i) {
    const float4 v = in[i * 256 + threadIdx.x];
    kept[4 * i] = v.x, kept[4 * i + 1] = v.y, kept[4 * i + 2] = v.z, kept[4 * i + 3] = v.w;
  }
  for (int i = 0; i < 64; ++i) kept[order[i] & 63] += 1;  // registers cannot be indexed at run time
  out[threadIdx.x] = kept[order[threadIdx.x] & 63];
}

__global__ void __launch_bounds__(256, 4) reads_narrowly(const float* __restrict__ in, float* __restrict__ out) {
  out[threadIdx.x] = in[2 * threadIdx.x] + in[2 * threadIdx.x + 1];
}

__global__ void __launch_bounds__(256, 4) passes(const float4* __restrict__ in, float* __restrict__ out) {
  const float4 v = in[threadIdx.x];
  out[threadIdx.x] = v.x + v.y + v.z + v.w;
}
