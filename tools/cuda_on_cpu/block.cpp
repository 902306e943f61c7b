// SPDX-License-Identifier: Apache-2.0
#include "block.h"

#include <sys/mman.h>

#include "async_copy.h"
#include "memory.h"

#if defined(__x86_64__) && !defined(SPECDEC_UCONTEXT)
asm(R"(
.text
.globl specdec_switch_fiber
.hidden specdec_switch_fiber
.type specdec_switch_fiber, @function
specdec_switch_fiber:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size specdec_switch_fiber, .-specdec_switch_fiber
)");
#endif

namespace cuda_on_cpu {

Block* block = nullptr;

std::string place(const char* op, const Site& site) {
  const std::string file = site.file_name();
  return std::string(op) + " (" + file.substr(file.rfind('/') + 1) + ":" + std::to_string(site.line()) + ")";
}

namespace {

bool same(const Site& a, const Site& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || !std::strcmp(a.file_name(), b.file_name()));
}

}  // namespace

Block::Block() : threads_(new Thread[kMaxThreads]) {
  void* p =
      mmap(nullptr, kStack * kMaxThreads, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::runtime_error("cuda_on_cpu: no memory for the stacks of a block");
  stacks_ = static_cast<char*>(p);
}

Block::~Block() { munmap(stacks_, kStack * kMaxThreads); }

void Block::begin(int64_t index, int threads, After after, void (*body)(void*), void* kernel) {
  index_ = index, count_ = threads;
  body_ = body, kernel_ = kernel;
  arrived_ = exited_ = cluster_arrived_ = met = 0, failed = false;
  for (Warp& w : warps_) w.arrived = w.exited = 0;
  for (int t = 0; t < threads; ++t) {
    threads_[t].state = State::ready;
    threads_[t].waited = after == After::the_end;
    threads_[t].depth = 0;
    start_fiber(threads_[t].fiber, stacks_ + t * kStack, kStack, &Block::entry);
  }
  order.round(count_);
  cursor_ = -1;
}

bool Block::resume() {
  here.block.x = unsigned(index_);
  const int first = next();
  here.thread.x = unsigned(first);
  switch_fiber(scheduler_, threads_[first].fiber);
  if (failed || exited_ == count_) return false;
  if (cluster_arrived_ == count_) return true;
  failed = true;
  error = deadlock();
  return false;
}

void Block::release() {
  cluster_arrived_ = 0, ++met;
  for (int i = 0; i < count_; ++i) threads_[i].state = State::ready;
}

void Block::entry() {
  std::string thrown;
  try {
    block->body_(block->kernel_);
  } catch (const std::exception& e) {
    thrown = std::string("threw ") + e.what();
  }
  if (!thrown.empty()) block->fail(thrown);
  block->exit();
}

int Block::next() {
  for (int tried = 0; tried < 2 * count_; ++tried) {
    if (++cursor_ == count_) order.round(count_), cursor_ = 0;
    const int t = int(order.current()[cursor_]);
    if (threads_[t].state == State::ready) return t;
  }
  return -1;
}

void Block::leave() {
  Thread& me = running();
  const int to = next();
  if (to == int(here.thread.x)) return;
  if (to >= 0) here.thread.x = unsigned(to);
  switch_fiber(me.fiber, to < 0 ? scheduler_ : threads_[to].fiber);
}

void Block::wait_at(const char* op, const Site& site) {
  Thread& me = running();
  me.op = op, me.site = site, me.state = State::waiting;
  leave();
}

void Block::exit() {
  Warp& w = warps_[here.thread.x / 32];
  if (cluster_arrived_)
    fail("exits while thread " + std::to_string(cluster_first_) + " waits at " +
         place(threads_[cluster_first_].op, threads_[cluster_first_].site));
  if (arrived_)
    fail("exits while thread " + std::to_string(first_) + " waits at " +
         place(threads_[first_].op, threads_[first_].site));
  if (w.arrived)
    fail("exits while thread " + std::to_string(w.first) + " waits at " +
         place(threads_[w.first].op, threads_[w.first].site));
  check_thread_left_no_copy();
  if (!running().waited) fail("exits and has not waited for the launch before");
  ++w.exited, ++exited_;
  running().state = State::exited;
  leave();
}

// All threads must meet where the first one arrived.
void Block::check_same(int first, const char* op, const Site& site) {
  const Thread& a = threads_[first];
  if (a.op == op && same(a.site, site) && a.way() == running().way()) return;
  fail("divergent: it is at " + place(op, site) + ", thread " + std::to_string(first) + " at " + place(a.op, a.site) +
       (same(a.site, site) ? ", called from elsewhere" : ""));
}

const uint64_t* Block::meet_warp(const char* op, unsigned mask, uint64_t value, const Site& site) {
  const int t = int(here.thread.x);
  Warp& w = warps_[t / 32];
  if (mask != ~0u) fail("divergent: " + place(op, site) + " with a mask that is not full: " + std::to_string(mask));
  if (w.exited) fail("divergent: it is at " + place(op, site) + " when a lane of its warp has exited");
  if (w.arrived) check_same(w.first, op, site);
  uint64_t* values = w.values[w.turn & 1];
  values[t % 32] = value;
  if (++w.arrived < 32) {
    if (w.arrived == 1) w.first = t;
    wait_at(op, site);
    return values;
  }
  w.arrived = 0;
  ++w.turn;
  memory_warp_met(t / 32);
  for (int i = t / 32 * 32, end = i + 32; i < end; ++i) threads_[i].state = State::ready;
  return values;
}

Votes Block::meet_block(const char* op, bool vote, const Site& site) {
  const int t = int(here.thread.x);
  if (exited_) fail("divergent: it is at " + place(op, site) + " when a thread of its block has exited");
  Votes& votes = votes_[turn_ & 1];
  if (arrived_)
    check_same(first_, op, site);
  else
    votes = {};
  votes.yes += vote, ++votes.all;
  if (++arrived_ < count_) {
    if (arrived_ == 1) first_ = t;
    wait_at(op, site);
    return votes;
  }
  arrived_ = 0;
  ++turn_;
  memory_block_met();
  for (int i = 0; i < count_; ++i) threads_[i].state = State::ready;
  return votes;
}

void Block::meet_cluster(const char* op, const Site& site) {
  if (exited_) fail("divergent: it is at " + place(op, site) + " when a thread of its block has exited");
  if (cluster_arrived_)
    check_same(cluster_first_, op, site);
  else
    cluster_first_ = int(here.thread.x);
  ++cluster_arrived_;
  wait_at(op, site);
}

void Block::fail(const std::string& what) {
  failed = true;
  error = "thread " + std::to_string(here.thread.x) + ": " + what;
  switch_fiber(running().fiber, scheduler_);
  __builtin_unreachable();
}

std::string Block::deadlock() const {
  std::string s;
  for (int t = 0, shown = 0; t < count_; ++t) {
    const Thread& a = threads_[t];
    const bool as_before =
        t && threads_[t - 1].op == a.op && threads_[t - 1].state == a.state && same(threads_[t - 1].site, a.site);
    if (as_before || ++shown > 4) continue;
    s += (s.empty() ? "deadlock: thread " : "; thread ") + std::to_string(t);
    s += a.state == State::exited ? " has exited" : " waits at " + place(a.op, a.site);
  }
  return s;
}

}  // namespace cuda_on_cpu
