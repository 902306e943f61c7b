// SPDX-License-Identifier: Apache-2.0
// Traversal verification (Weng et al. 2025), from the leaves to the root. On a tree with a single path, it is block
// verification. The weights are w(root) = 1 and, for a child c of n, w(c) = min(1, w(n) p_n(c) / q_n(c)). Leaves are
// tested in depth-first order, siblings in the order in which they were drawn. A leaf c is accepted with probability
// w(c); the root is always accepted. If a leaf is rejected, it leaves the tree, and its parent n changes:
//   r = (w(n) p_n - q_n)+
//   s = sum r
//   p_n = r / s
//   w(n) = s / (s + 1 - w(n)), or 0 if that is 0/0
//   q_n = q_n without the token, renormalised
#pragma once

#include "greedy.h"

namespace specdec {

// A node on the path from the root to the leaf under test, or a child of the path's last node
struct Node {
  Tests tests;  // the children that are still to be tested
  double w = 1;
  Left left;         // the rest of q from which it was drawn; a rejection subtracts it
  bool open = true;  // there may be children left to test
};

// A node on the path, as it is kept in memory. q is set when the node joins the path.
struct Frame {
  Dist q;         // the distribution of the row that the node itself was drawn from
  Node node;      // this and the members below are set when a child of the node joins
  Residual rest;  // the residual at this node
  double total = 1;
  Dist p;  // the target's own distribution
};

template <class Executor>
class Traversal {
 public:
  SPECDEC_HD Traversal(Walk<Executor>& walk, Frame* frames) : walk_(walk), frames_(frames) {}

  SPECDEC_HD void run() {
    Next next = Next::kEnter;
    Node child;     // the root at first
    while (true) {  // each step is called in only one place, so that GPU code has one copy of it
      if (next == Next::kEnter) enter(child);
      if (next == Next::kRemove) remove(child);
      if (follows_argmax()) return walk_greedily(walk_);
      if (top_.open) {
        next = look(child);
      } else if (depth_ == 0 || walk_.test_uniform(top_.tests.node) < top_.w) {
        return accept_path();
      } else {
        next = leave(child);
      }
    }
  }

 private:
  enum class Next { kEnter, kRemove, kLook };

  // Whether the request is walked greedily: the target is greedy at the root, and no rule may accept another token.
  SPECDEC_HD bool follows_argmax() const {
    return depth_ == 0 && walk_.own().kind == Kind::kOneHot &&
           (!walk_.by_rule() || walk_.a.rule(walk_.b) == Rule::kLossy);
  }

  // Makes the child the top of the path.
  SPECDEC_HD void enter(const Node& child) {
    int64_t bottom = 0;
    if (child.tests.node > 0) {
      walk_.executor().sync();
      if (walk_.executor().keeps()) {
        Frame& frame = frames_[depth_];
        frame.node = top_, frame.rest = walk_.rest, frame.total = walk_.total, frame.p = walk_.own();
        frames_[depth_ + 1].q = walk_.known();
      }
      walk_.executor().sync();
      bottom = walk_.bottom() + walk_.rest.n;
      ++depth_;
    }
    top_ = child;
    top_.tests = tests_at(child.tests.node, depth_);
    walk_.arrive(child.tests.node, top_.tests, bottom);
    if (follows_argmax()) return;
    walk_.flag_outside(top_.tests);
    if (walk_.readable()) return;
    Tests any = top_.tests;
    if (walk_.next(any).child >= 0) walk_.status |= kInvalidRow;
    top_.open = false;
  }

  // Rejects the top: it leaves the path, and becomes the child that remove() then removes from its parent.
  SPECDEC_HD Next leave(Node& child) {
    child = top_;
    walk_.recall(walk_.draft_row(child.tests.node), walk_.parent(child.tests.node), frames_[depth_].q);
    const Frame& frame = frames_[--depth_];
    top_ = frame.node;
    walk_.come_back(top_.tests.node, frame.rest, frame.total);
    return Next::kRemove;
  }

  // Takes the next child of the top. It joins the path; with weight 0, it is removed at once.
  SPECDEC_HD Next look(Node& child) {
    const Test t = walk_.next(top_.tests);
    top_.open = t.child >= 0;
    if (!top_.open) return Next::kLook;
    const int64_t token = walk_.token(t.child);
    if (walk_.is_removed(token)) return Next::kLook;
    const double r = walk_.residual(token);
    if (r != r) {
      top_.open = false;
      return Next::kLook;
    }
    walk_.look_up(t.child);
    child.left = walk_.left_of(t.child);
    const double q_t = walk_.draft_of(t.child, child.left);
    const auto weigh = [&](double x) { return q_t > 0 && x > 0 ? top_.w * x / q_t : 0; };
    double w = weigh(r);
    if (w < 1 && walk_.complete_pi()) w = weigh(walk_.residual(token));
    child.tests.node = t.child, child.w = w < 1 ? w : 1, child.open = true;
    return w > 0 ? Next::kEnter : Next::kRemove;
  }

  // Removes a rejected child from the tree: changes p, w and q of the top, its parent.
  SPECDEC_HD void remove(const Node& child) {
    const int64_t token = walk_.token(child.tests.node);
    if (!child.left.any) {
      Subtraction subtraction;
      subtraction.removed = token;
      return walk_.push(subtraction);
    }
    const double kept = walk_.reduce(walk_.dist_of(child.tests.node, child.left), top_.w, 1 / child.left.share, token);
    if (kept != kept) {
      top_.open = false;
      return;
    }
    if (kept == 0 && depth_ == 0)
      walk_.status |= kEmptyResidual;  // only rounding leads here: the root's last residual stays
    const double below = kept + 1 - top_.w;
    top_.w = below > 0 ? kept / below : 0;
  }

  SPECDEC_HD void accept_path() {
    for (int32_t i = 1; i <= depth_; ++i)
      walk_.emit(i < depth_ ? frames_[i].node.tests.node : top_.tests.node, frames_[i - 1].p);
  }

  Walk<Executor>& walk_;
  Frame* frames_;  // [frames()]
  Node top_;
  int32_t depth_ = 0;  // of the top
};

}  // namespace specdec
