// SPDX-License-Identifier: Apache-2.0
// Turns torch tensors into plain pointers and int64 strides, with the checks that keep a kernel inside its arguments.
// All checks are in this folder or in <op>_op.h. The public functions, Triton and the fakes use them too, through
// torch.ops.specdec_check. Errors name arguments as the public functions do.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cstring>
#include <initializer_list>
#include <type_traits>
#include <vector>

#include "../core/arguments.h"
#include "messages.h"

namespace specdec {

// Checks that the required tensors were given. None arrives as an undefined tensor.
inline void check_given(const Op&) {}

template <class... More>
void check_given(const Op& op, const char* name, const Tensor& t, const More&... more) {
  check(t.defined(), op, name, " must be a tensor, got None");
  check_given(op, more...);
}

inline void check_device(const Op& op, Name name, const Tensor& t) {
  if (&t == &op.first || (t.is_cpu() && op.first.is_cpu())) return;
  const bool same = t.is_cpu() == op.first.is_cpu() && t.is_cuda() == op.first.is_cuda() &&
                    t.get_device_index() == op.first.get_device_index();
  check(same, op, name, " must be on ", DeviceOfTensor{op.first}, ", got ", DeviceOfTensor{t});
}

template <class Sizes>
void check_shape(const Op& op, Name name, const Tensor& t, const Sizes& want) {
  bool same = t.dim() == int64_t(want.size());
  for (int64_t i = 0; same && i < t.dim(); ++i) same = t.size(i) == want.begin()[i].n;
  check(same, op, name, " must have shape ", bracketed(want), ", got ", bracketed(t.sizes()));
}

inline void check_shape(const Op& op, Name name, const Tensor& t, std::initializer_list<Size> want) {
  check_shape<std::initializer_list<Size>>(op, name, t, want);
}

// Checks the number of dimensions of t. `want` names them, such as "N, V".
inline void check_dims(const Op& op, Name name, const Tensor& t, const char* want) {
  const int64_t dims = 1 + std::count(want, want + std::strlen(want), ',');
  check(t.dim() == dims, op, name, " must have shape [", want, "], got ", bracketed(t.sizes()));
}

inline void check_dtype(const Op& op, Name name, const Tensor& t, ScalarType want, const char* wanted) {
  check(t.scalar_type() == want, op, name, " must be ", wanted, ", got ", DtypeOfTensor{t});
}
inline void check_float32(const Op& op, Name name, const Tensor& t) {
  check_dtype(op, name, t, ScalarType::Float, "float32");
}

inline void check_contiguous(const Op& op, Name name, const Tensor& t) {
  check(t.is_contiguous(), op, name, " must be contiguous, got strides ", bracketed(t.strides()));
}

// Checks that the last dimension has stride `apart`. With 1, its entries are adjacent in memory.
inline void check_adjacent(const Op& op, Name name, const Tensor& t, int64_t apart = 1) {
  const int64_t last = t.dim() - 1;
  check(t.size(last) <= 1 || t.stride(last) == apart || t.numel() == 0, op, name,
        " must be contiguous in its last dimension, got strides ", bracketed(t.strides()));
}

// Whether t has memory. Tensors on the meta device have none.
inline bool has_memory(const Tensor& t) { return t.is_cpu() || t.is_cuda(); }

// The address of t's entries. Null means that a tensor is not given, so a meta tensor gets an address too.
inline const void* data_of(const Tensor& t) { return has_memory(t) ? t.const_data_ptr() : ""; }

// Checks rows. They are read in place, so the entries of a row must be adjacent in memory. Rows that are spread over
// ranks are an exception, with stride 0 (rows_over_ranks in core/arguments.h); a draft's rows with ids are not spread.
inline DType check_rows(const Op& op, Name name, const Tensor& t) {
  check_device(op, name, t);
  const int64_t V = t.size(t.dim() - 1);
  check_adjacent(op, name, t, rows_over_ranks && t.stride(t.dim() - 1) == 0 ? 0 : 1);
  check(V >= 1 && V <= kIdsEnd, op, name, " must have a vocabulary of 1 to 2^24, got ", V);
  switch (t.scalar_type()) {
    case ScalarType::Float: return kFloat32;
    case ScalarType::BFloat16: return kBFloat16;
    case ScalarType::Half: return kFloat16;
    default: check(false, op, name, " must be float32, bfloat16 or float16, got ", DtypeOfTensor{t});
  }
  return kFloat32;
}

// The memory of rows. `dims` names the dimensions; the last one is V.
inline RowMemory row_memory(const Op& op, Name name, const Tensor& t, const char* dims = "N, V") {
  check_dims(op, name, t, dims);
  const int64_t dim = t.dim();
  return {data_of(t), t.size(dim - 1), dim == 3 ? t.stride(0) : 0, t.stride(dim - 2), check_rows(op, name, t)};
}

// One value for each of N rows, or [1]: one value for all
inline void check_per_row(const Op& op, Name name, const Tensor& t, int64_t N) {
  check(t.dim() == 1 && (t.size(0) == N || t.size(0) == 1), op, name, " must have shape [", N,
        N == 1 ? "]" : "] or [1]", ", got ", bracketed(t.sizes()));
}

inline int64_t per_row_stride(const Tensor& t) { return t.size(0) == 1 ? 0 : t.stride(0); }

// int32 or int64, on the op's device
inline Ints ints(const Op& op, Name name, const Tensor& t, int64_t stride) {
  check_device(op, name, t);
  const bool wide = t.scalar_type() == ScalarType::Long;
  check(wide || t.scalar_type() == ScalarType::Int, op, name, " must be int32 or int64, got ", DtypeOfTensor{t});
  return {data_of(t), stride, wide};
}

inline Ints ints_per_row(const Op& op, Name name, const OptTensor& t, int64_t N) {
  if (!t) return {};
  check_per_row(op, name, *t, N);
  return ints(op, name, *t, per_row_stride(*t));
}

// For seeds and offsets, which must be int64: a narrower integer may be a truncated one.
inline Ints int64s(const Op& op, Name name, const Tensor& t, int64_t stride) {
  check_dtype(op, name, t, ScalarType::Long, "int64");
  return ints(op, name, t, stride);
}

inline Ints int64s_per_row(const Op& op, Name name, const OptTensor& t, int64_t N) {
  if (!t) return {};
  check_per_row(op, name, *t, N);
  return int64s(op, name, *t, per_row_stride(*t));
}

inline Floats floats_per_row(const Op& op, Name name, const OptTensor& t, int64_t N) {
  if (!t) return {};
  check_device(op, name, *t);
  check_per_row(op, name, *t, N);
  check_float32(op, name, *t);
  return {static_cast<const float*>(data_of(*t)), per_row_stride(*t)};
}

// num_rows or num_requests [1]
inline Present present(const Op& op, Name name, const OptTensor& t) {
  if (!t) return {};
  check(t->dim() == 1 && t->size(0) == 1, op, name, " must have shape [1], got ", bracketed(t->sizes()));
  return {ints(op, name, *t, 0)};
}

// Whether the host can read values of tensors without waiting for a GPU. If it cannot, values are not checked here; the
// kernels then clamp invalid values or report them in the status.
inline bool values_at_hand(const Op& op) {
#if defined(SPECDEC_CUDA_ON_CPU)
  return false;
#else
  return op.first.is_cpu();
#endif
}

// Prints the index of a value in its tensor, for an error. kNumber, for a number instead of a tensor, prints nothing.
struct At {
  int64_t index;
  friend std::ostream& operator<<(std::ostream& text, At at) {
    return at.index < 0 ? text : text << " at index " << at.index;
  }
};
constexpr At kNumber{-1};

inline void check_filters(const Op& op, const char* side, const Filters& f, At at) {
  const auto named = [&](const char* field) { return Name(side, field); };
  check(f.temperature_in_range(), op, named("temperature"), " must be finite and >= 0, got ", f.temperature, at);
  check(f.top_k >= -1, op, named("top_k"), " must be >= 1, or 0 or -1 for off, got ", f.top_k, at);
  check(f.top_p_in_range(), op, named("top_p"), " must be in (0, 1], got ", f.top_p, at);
  check(f.min_p_in_range(), op, named("min_p"), " must be in [0, 1], got ", f.min_p, at);
  check(f.top_n_sigma_in_range(), op, named("top_n_sigma"), " must be finite and >= 0, got ", f.top_n_sigma, at);
}

inline void check_values(const Op& op, const char* side, const Sampling& s, int64_t N, const Present& present) {
  if (s.has_numbers) check_filters(op, side, s.numbers, kNumber);
  if (!s.has_tensors() || !values_at_hand(op)) return;
  for (int64_t i = 0; i < present.of(N); ++i) check_filters(op, side, s[i], {i});
}

constexpr double kNotGiven = -DBL_MAX;  // finite, since an AOTInductor package cannot hold NaN

// Optional, since most calls pass no numbers, and passing an empty list would take a tenth of a small call's time.
using OptNumbers = std::optional<std::vector<double>>;

// Numbers that apply to every row: none, or `count` of them. A number that is kNotGiven or NaN counts as not given.
struct Numbers {
  const double* data = nullptr;
  Numbers(const Op& op, Name name, const OptNumbers& given, size_t count) {
    if (!given || given->empty()) return;
    check(given->size() == count, op, name, " must hold ", count, " numbers or none, got ", given->size());
    data = given->data();
  }
  bool has(size_t i) const { return data && data[i] > kNotGiven; }
  double operator[](size_t i) const { return data[i]; }
};

// The address of a contiguous float32 tensor: stats [..., 4], or one number per row
inline const float* stats_pointer(const Op& op, Name name, const Tensor& t) {
  check_device(op, name, t);
  check_float32(op, name, t);
  check_contiguous(op, name, t);
  return static_cast<const float*>(data_of(t));
}

inline const double* uniforms_pointer(const Op& op, const Tensor& t, int64_t n, int64_t columns) {
  check_device(op, "uniforms", t);
  check_shape(op, "uniforms", t, {n, columns});
  check_dtype(op, "uniforms", t, ScalarType::Double, "float64");
  check_contiguous(op, "uniforms", t);
  return static_cast<const double*>(data_of(t));
}

// A new contiguous tensor on the op's device, uninitialised. This call takes a third of the time of a dispatched
// aten::empty.
template <class Sizes>
Tensor empty(const Op& op, const Sizes& sizes, ScalarType dtype) {
  const int64_t dim = int64_t(sizes.size());
  std::vector<int64_t> strides(sizes.size());
  int64_t n = 1;
  bool fits = true;
  for (int64_t i = dim - 1; i >= 0; --i) {
    strides[i] = n;
    fits &= !__builtin_mul_overflow(n, std::max<int64_t>(sizes.begin()[i], 1), &n);
  }
  int32_t device_type;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(op.first.get(), &device_type));
  AtenTensorHandle out = nullptr;
  fits = fits && aoti_torch_empty_strided(dim, sizes.begin(), strides.data(),
                                          torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype)),
                                          device_type, op.first.get_device_index(), &out) == AOTI_TORCH_SUCCESS;
  check(fits, op, "a result of shape ", bracketed(sizes), " must fit into memory, got no room for it");
  return Tensor(out);
}

inline Tensor empty(const Op& op, std::initializer_list<int64_t> sizes, ScalarType dtype) {
  return empty<std::initializer_list<int64_t>>(op, sizes, dtype);
}

template <class T>
T* out_pointer(const Tensor& t) {
  return has_memory(t) ? static_cast<T*>(t.mutable_data_ptr()) : nullptr;
}

template <class T>
constexpr ScalarType scalar_type() {
  if (std::is_same_v<T, bool>) return ScalarType::Bool;
  if (std::is_same_v<T, int64_t>) return ScalarType::Long;
  if (std::is_integral_v<T>) return ScalarType::Int;                          // 32 bits, signed or a mask's words
  return std::is_same_v<T, double> ? ScalarType::Double : ScalarType::Float;  // also RowStats: four floats
}

// A new result of the op; `out` becomes its address.
template <class Sizes, class T>
Tensor result(const Op& op, const Sizes& sizes, T*& out) {
  Tensor t = empty(op, sizes, scalar_type<T>());
  out = out_pointer<T>(t);
  return t;
}
template <class T>
Tensor result(const Op& op, std::initializer_list<int64_t> sizes, T*& out) {
  return result<std::initializer_list<int64_t>, T>(op, sizes, out);
}

}  // namespace specdec
