// SPDX-License-Identifier: Apache-2.0
// What a launch needs of torch: the device, its stream and scratch memory.
#include "launch.h"

#include <torch/csrc/stable/tensor.h>

namespace specdec {

#if defined(SPECDEC_CUDA_ON_CPU)
OnDeviceOf::OnDeviceOf(const Tensor&) { cuda_on_cpu::begin_call(); }
OnDeviceOf::~OnDeviceOf() = default;
#else
OnDeviceOf::OnDeviceOf(const Tensor& like) {
  const int32_t index = like.get_device_index();
  CUDAGuardHandle guard = nullptr;
  void* current = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_create_cuda_guard(index, &guard));
  guard_ = guard;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(index, &current));
  stream = static_cast<cudaStream_t>(current);
}
OnDeviceOf::~OnDeviceOf() { aoti_torch_delete_cuda_guard(static_cast<CUDAGuardHandle>(guard_)); }
#endif

void Scratch::allocate(const Tensor& like) {
#if defined(SPECDEC_CUDA_ON_CPU)
  cuda_on_cpu::before_launches("memory is taken");
#endif
  const int64_t size = int64_t(bytes_), stride = 1;
  int32_t device_type;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device_type));
  AtenTensorHandle out;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, &size, &stride, aoti_torch_dtype_uint8(), device_type,
                                                  like.get_device_index(), &out));
  memory_ = std::make_shared<Tensor>(out);
  begin_ = static_cast<char*>(memory_->mutable_data_ptr());
#if defined(SPECDEC_CUDA_ON_CPU)
  cuda_on_cpu::fill_scratch(begin_, bytes_);
#endif
}

}  // namespace specdec
