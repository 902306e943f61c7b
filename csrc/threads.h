// SPDX-License-Identifier: Apache-2.0
// Loops on torch's threads. If a thread throws, parallel_for() rethrows its exception in the calling thread; torch's
// own parallel_for would drop the text.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <exception>
#include <mutex>

namespace specdec {

// Calls f(first, last) for parts of [begin, end). Up to `grain` indices are one part.
template <class F>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const F& f) {
  std::exception_ptr thrown;
  std::mutex mutex;
  torch::stable::parallel_for(begin, end, grain, [&](int64_t first, int64_t last) {
    try {
      f(first, last);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex);
      thrown = std::current_exception();
    }
  });
  if (thrown) std::rethrow_exception(thrown);
}

// Calls f(c) for every chunk, on all threads if `wide`, else on this thread.
template <class F>
void for_chunks(bool wide, int64_t chunks, const F& f) {
  if (!wide) {
    for (int64_t c = 0; c < chunks; ++c) f(c);
    return;
  }
  parallel_for(0, chunks, 8, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) f(c);
  });
}

}  // namespace specdec
