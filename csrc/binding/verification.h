// SPDX-License-Identifier: Apache-2.0
// The two forms of verify_chain and verify_tree that torch's dispatcher calls: one returns new tensors, the other
// writes to the caller's (out=).
#pragma once

#include <tuple>

#include "memory.h"

namespace specdec {

// The checked arguments of an op. `like` is a tensor on its device. The op writes at most `width` tokens for each of B
// requests.
template <class Arguments>
struct Prepared {
  Arguments a;
  const Tensor& like;
  int64_t width;
};

inline void check_out(const Op& op, const char* name, const Tensor& t, ScalarType dtype, int64_t B, Size width) {
  check_given(op, name, t);
  check_device(op, name, t);
  if (dtype == ScalarType::Long)
    ints(op, name, t, 1);
  else
    check_dtype(op, name, t, dtype, dtype == ScalarType::Int ? "int32" : "float32");
  width.n < 0 ? check_shape(op, name, t, {{"B", B}}) : check_shape(op, name, t, {{"B", B}, width});
  check_contiguous(op, name, t);
}

// Calls each(index, name, dtype, columns, take) for every result, in order. A result has shape [B, columns], or [B] if
// columns is -1. take(tensor) stores its address. Only trees have a path.
template <class Arguments, class Each>
void each_result(Arguments& a, int64_t width, const Each& each) {
  each(0, "out.tokens", ScalarType::Long, width,
       [&](const Tensor& t) { a.tokens = {out_pointer<void>(t), t.scalar_type() == ScalarType::Long}; });
  each(1, "out.num_accepted", ScalarType::Int, -1, [&](const Tensor& t) { a.num_accepted = out_pointer<int32_t>(t); });
  each(2, "out.logprobs", ScalarType::Float, width, [&](const Tensor& t) { a.logprobs = out_pointer<float>(t); });
  each(3, "out.status", ScalarType::Int, -1, [&](const Tensor& t) { a.status = out_pointer<int32_t>(t); });
  if constexpr (Arguments::kHasPath)
    each(4, "out.path", ScalarType::Int, width, [&](const Tensor& t) { a.path = out_pointer<int32_t>(t); });
}

// An op in two parts: kPrepare makes Prepared<A> from the dispatcher's arguments, and kRun(a, like) does the work.
template <auto kPrepare, auto kRun, class Results>
struct Verification;

template <class A, class... Arguments, Prepared<A> (*kPrepare)(Arguments...), auto kRun, class... Result>
struct Verification<kPrepare, kRun, std::tuple<Result...>> {
  static std::tuple<Result...> call(Arguments... arguments) {
    auto [a, like, width] = kPrepare(arguments...);
    const Op op(A::kName, like);
    std::vector<Tensor> room;
    room.reserve(sizeof...(Result));
    each_result(a, width, [&, B = a.B](int, const char*, ScalarType dtype, int64_t columns, auto take) {
      room.push_back(columns < 0 ? empty(op, {B}, dtype) : empty(op, {B, columns}, dtype));
      take(room.back());
    });
    if (a.B > 0) kRun(a, like);
    return as_tuple(room, std::index_sequence_for<Result...>());
  }

  static void out(Arguments... arguments, const Result&... result) {
    auto [a, like, width] = kPrepare(arguments...);
    const Op op(A::kName, like);
    const Tensor* const given[] = {&result...};
    each_result(a, width, [&, B = a.B](int i, const char* name, ScalarType dtype, int64_t columns, auto take) {
      check_out(op, name, *given[i], dtype, B, {A::kHasPath ? "D+1" : "G+1", columns});
      const Extent memory(*given[i]);
      bool shared = (share_memory(memory, arguments) || ...);
      for (int j = 0; j < i; ++j) shared |= share_memory(memory, *given[j]);
      check(!shared, op, name, " must have memory of its own, got some of another argument's");
      take(*given[i]);
    });
    if (a.B > 0) kRun(a, like);
  }

 private:
  template <size_t... I>
  static std::tuple<Result...> as_tuple(const std::vector<Tensor>& room, std::index_sequence<I...>) {
    return {room[I]...};
  }
};

}  // namespace specdec
