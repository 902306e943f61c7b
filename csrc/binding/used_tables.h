// SPDX-License-Identifier: Apache-2.0
// Converts tables of used ids to lists, on the CPU. Each table is scanned once per call. After that, the time of the
// penalties of each row is proportional to the number of used ids, not to H.
#pragma once

#include <algorithm>
#include <bit>
#include <memory>
#include <vector>

#include "../core/penalties.h"
#include "../threads.h"
#include "check.h"

namespace specdec {

#ifndef SPECDEC_IN_CUDA
// The memory of a list made from a table
struct ListOfTable {
  std::vector<int32_t> ids, counts;

  ListOfTable() = default;
  explicit ListOfTable(const UsedTable& table) {
    for (int64_t begin = 0; begin < table.H; begin += 32) {
      const int n = int(std::min<int64_t>(32, table.H - begin));
      const int32_t* const of = table.counts + begin;
      uint32_t any = table.prompt_bits[begin / 32];
      for (int k = 0; k < n; ++k) any |= uint32_t(of[k]);
      if (any == 0) continue;
      uint32_t used = table.prompt_bits[begin / 32] & (~0u >> (32 - n));
      for (int k = 0; k < n; ++k) used |= uint32_t(of[k] != 0) << k;
      for (; used != 0; used &= used - 1) {
        const int k = std::countr_zero(used);
        ids.push_back(int32_t(begin + k)), counts.push_back(of[k]);
      }
    }
  }
};
#endif

// Sets p.lists for the tables that the first `there` requests or rows use. Does nothing in CUDA.
inline void list_tables([[maybe_unused]] const Op& op, [[maybe_unused]] const char* side, [[maybe_unused]] Penalties& p,
                        [[maybe_unused]] int64_t there) {
#ifndef SPECDEC_IN_CUDA
  struct Lists {
    std::vector<ListOfTable> memory;
    std::vector<UsedList> of;
  };
  const auto lists = std::make_shared<Lists>(Lists{std::vector<ListOfTable>(p.S), std::vector<UsedList>(p.S)});
  std::vector<bool> listed(p.S);
  std::vector<int64_t> used;
  for (int64_t b = 0; b < there; ++b) {
    const int64_t s = p.history(b);
    if (!listed[s]) listed[s] = true, used.push_back(s);
  }
  parallel_for(0, int64_t(used.size()), 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) lists->memory[used[i]] = ListOfTable(UsedTable(p, used[i], INT32_MAX));
  });
  for (const int64_t s : used) {
    const ListOfTable& list = lists->memory[s];
    lists->of[s] = {list.ids.data(), list.counts.data(), int64_t(list.ids.size())};
    for (size_t j = 0; j < list.ids.size(); ++j)
      check(list.counts[j] >= 0, op, Name(side, "penalties.counts"), " must be >= 0, got ", list.counts[j],
            " for token ", list.ids[j], " in table ", s);
  }
  p.lists = {lists, lists->of.data()};
#endif
}

}  // namespace specdec
