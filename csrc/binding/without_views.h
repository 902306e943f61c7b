// SPDX-License-Identifier: Apache-2.0
// Makes an op without the arguments for views (penalties, bias and mask). torch passes every argument of a schema,
// given or not, which takes time. So plain calls use a schema without these arguments.
#pragma once

#include <tuple>
#include <type_traits>
#include <utility>

namespace specdec {

template <auto kOp, class Plain, class Views>
struct WithoutLast;

template <class Result, class... A, Result (*kOp)(A...), size_t... P, size_t... V>
struct WithoutLast<kOp, std::index_sequence<P...>, std::index_sequence<V...>> {
  template <size_t I>
  using Argument = std::tuple_element_t<I, std::tuple<A...>>;
  static Result call(Argument<P>... given) { return kOp(given..., std::decay_t<Argument<sizeof...(P) + V>>()...); }
};

template <class Result, class... A>
constexpr size_t arguments_of(Result (*)(A...)) {
  return sizeof...(A);
}

// kOp without its last kViews arguments. They are passed as not given.
template <auto kOp, size_t kViews>
using WithoutViews =
    WithoutLast<kOp, std::make_index_sequence<arguments_of(kOp) - kViews>, std::make_index_sequence<kViews>>;

}  // namespace specdec
