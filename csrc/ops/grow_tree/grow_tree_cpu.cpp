// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <memory>

#include "../../binding/cpu_op.h"
#include "../../threads.h"
#include "grow_tree_op.h"

namespace specdec {
namespace {

// The frontier as a heap, with the smallest key first
struct Heap {
  GrownTree& s;
  int size = 0;

  uint64_t least() const { return size > 0 ? s.frontier[0] : NodeKey::kNone; }
  void add(int, uint64_t key) {
    if (key == NodeKey::kNone) return;
    s.frontier[size++] = key;
    std::push_heap(s.frontier, s.frontier + size, std::greater<>());
  }
  void replace(int, uint64_t key) {
    std::pop_heap(s.frontier, s.frontier + size--, std::greater<>());
    add(0, key);
  }
  void put_node(int n, uint64_t key) { s.node[n] = key; }
  void put_count(int n) { s.count = n; }
};

struct Alone {
  template <class F>
  void each(int n, const F& f) const {
    for (int i = 0; i < n; ++i) f(i);
  }
  void grow(const GrowTree& a, GrownTree& s) const {
    Heap heap{s};
    specdec::grow(a, s, heap);
  }
};

void run(const GrowTree& a, const Tensor&) {
  parallel_for(0, a.B, 1 + 4096 / (a.L * a.K * a.K + a.nodes), [&](int64_t begin, int64_t end) {
    const auto tree = std::make_unique<GrownTree>();
    for (int64_t b = begin; b < end; ++b) grow_tree(a, b, *tree, Alone());
  });
}

}  // namespace

SPECDEC_CPU_OP("grow_tree", grow_tree_op)

}  // namespace specdec
