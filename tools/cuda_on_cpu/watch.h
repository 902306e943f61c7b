// SPDX-License-Identifier: Apache-2.0
// Counts the bytes that kernels read of each row of the arguments that a test registered.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "grid.h"

namespace cuda_on_cpu {

struct Watch {
  std::vector<uintptr_t> rows;  // the address of each, ascending
  size_t row_bytes = 0;
  std::vector<uint64_t> read;        // bytes, counted each time they are read
  std::vector<uint64_t> distinct;    // bytes read at least once
  std::vector<bool> seen;            // [rows, row_bytes]
  std::map<size_t, uint64_t> loads;  // number of loads of each width
  uint64_t written = 0;              // bytes
  uint64_t outside = 0;              // bytes read or written between the rows
};

class Watches {
 public:
  void add(const std::string& name, std::vector<uintptr_t> rows, size_t row_bytes);
  void note(const void* address, size_t bytes, Access access);
  void zero();
  void clear() { watches_.clear(); }
  const std::map<std::string, Watch>& all() const { return watches_; }

 private:
  std::map<std::string, Watch> watches_;
};

extern Watches watches;

}  // namespace cuda_on_cpu
