// SPDX-License-Identifier: Apache-2.0
#include "race.h"

#include "block.h"
#include "memory.h"

namespace cuda_on_cpu {

Races races;

namespace {

bool is_write(Access access) { return access == Access::write || access == Access::atomic; }

const char* verb(Access access) {
  return access == Access::write ? "writes" : access == Access::atomic ? "updates" : "reads";
}

}  // namespace

bool Release::covers_write(const Mark& m) const {
  return (m.thread == thread && m.time < fence) || m.time < fence_epoch ||
         (m.thread / 32 == thread / 32 && m.time < fence_warp) || (fences && m.time < (*fences)[m.thread]);
}

void Races::begin_launch(const char* shared_begin, const char* shared_end, After after) {
  shared_begin_ = reinterpret_cast<uintptr_t>(shared_begin), shared_end_ = reinterpret_cast<uintptr_t>(shared_end);
  older_.begin_launch();
  if ((pages_.size() > 4096 && after == After::the_end) || last_ >= (1u << 23) || older_.full()) {
    pages_.clear();
    last_cells_ = nullptr;
    last_ = 0, overlaps_ = 1;
    older_.begin_again();
  }
  launch_ = last_ + 1;
  if (after == After::the_end) overlaps_ = launch_;
  released_.clear();
  dynamic_.clear(), met_.clear(), rank_ = 0;
}

void Races::begin_block() {
  block_ = ++last_;
  time_ = epoch_ = 0;
  std::fill(std::begin(warp_epoch_), std::end(warp_epoch_), 0u);
  for (auto* times : {&fence_, &fence_epoch_, &fence_warp_}) times->assign(kThreads, 0u);
  fences_.reset();
  fenced_ = false;
  known_.clear();
}

void Races::begin_cluster(int size) {
  dynamic_.clear(), met_.clear();
  clocks_.assign(size_t(size), BlockClock{});
  for (BlockClock& clock : clocks_) clock.block_ = ++last_;
}

void Races::add_dynamic(const char* begin, size_t bytes) {
  const uintptr_t first = reinterpret_cast<uintptr_t>(begin);
  dynamic_.push_back({first, bytes, false});
  for (uintptr_t page = first / kPage; page <= (first + bytes) / kPage; ++page)
    pages_.erase(page);  // marks of earlier clusters
  last_cells_ = nullptr;
}

void Races::enter(int rank) {
  rank_ = rank;
  static_cast<BlockClock&>(*this) = std::move(clocks_[size_t(rank)]);
}

void Races::leave(int rank, bool for_good) {
  if (for_good && size_t(rank) < dynamic_.size()) dynamic_[size_t(rank)].left = true;
  clocks_[size_t(rank)] = std::move(static_cast<BlockClock&>(*this));
}

// A barrier of all threads of all blocks of the cluster, which orders all memory.
void Races::cluster_met() {
  for (BlockClock& clock : clocks_) {
    clock.epoch_ = ++clock.time_;
    if (clock.fenced_) clock.fences_ = std::make_shared<const std::vector<unsigned>>(clock.fence_);
    clock.fenced_ = false;
    met_[clock.block_] = clock.epoch_;
  }
}

// Checks an access to dynamic shared memory, of another block of the cluster or of the running one.
void Races::check_dynamic(uintptr_t address, size_t bytes, Access access) {
  for (size_t r = 0; r < dynamic_.size(); ++r) {
    const Dynamic& d = dynamic_[r];
    if (address - d.begin >= d.bytes) continue;
    if (d.left) fail(std::string("it ") + verb(access) + " shared memory of a block of its cluster that has exited");
    if (access == Access::write) return;
    for (size_t i = 0; i < bytes; ++i) {
      if (cell(address + i)->write.block < launch_)
        fail(std::string("uninitialised: it ") + verb(access) + " shared memory that no thread of the cluster wrote");
    }
    return;
  }
}

void Races::block_met() {
  epoch_ = ++time_;
  if (fenced_) fences_ = std::make_shared<const std::vector<unsigned>>(fence_);
  fenced_ = false;
}

void Races::fence(unsigned thread) {
  fence_[thread] = ++time_;
  fence_epoch_[thread] = epoch_;
  fence_warp_[thread] = warp_epoch_[thread / 32];
  fenced_ = true;
}

Cell* Races::cell(uintptr_t address) {
  const uintptr_t page = address / kPage;
  if (!last_cells_ || page != last_page_) {
    auto& cells = pages_[page];
    if (!cells) cells.reset(new Cell[kPage]);
    last_page_ = page, last_cells_ = cells.get();
  }
  return last_cells_ + address % kPage;
}

bool Races::ordered_within(const Mark& old, unsigned thread) const {
  return old.thread == thread || old.time < epoch_ ||
         (old.thread / 32 == thread / 32 && old.time < warp_epoch_[thread / 32]);
}

bool Races::knows(const Acquired& a, unsigned thread) const {
  return a.thread == thread || a.time < epoch_ || (a.thread / 32 == thread / 32 && a.time < warp_epoch_[thread / 32]);
}

const char* Races::disorder_between(const Mark& old, bool old_reads, Access access) const {
  const unsigned thread = here.thread.x;
  const char* why = "and no atomic orders the two blocks";
  const auto met = met_.find(old.block);
  if (met != met_.end() && old.time < met->second) return nullptr;
  const auto found = known_.find(old.block);
  if (found == known_.end()) return why;
  for (const Acquired& a : found->second) {
    if (!knows(a, thread)) continue;
    if (old_reads ? !a.release->covers_read(old) : !a.release->covers_write(old)) {
      why = "with no __threadfence between its write and its atomic";
      continue;
    }
    const bool fenced = fence_[thread] > a.time || (fence_[a.thread] > a.time && fence_[a.thread] <= epoch_);
    if (access != Access::read || fenced) return nullptr;
    why = "and L1 may hold what was there before: read it by __ldcg, or after a __threadfence";
  }
  return why;
}

void Races::check_recent(const Mark& old, bool old_reads, uintptr_t address, Access access) {
  const unsigned thread = here.thread.x;
  const bool shared = address >= shared_begin_ && address < shared_end_;
  if (old.block < launch_) {
    if (shared) return;
    fail(std::string("race: it ") + verb(access) + " memory that the launch before wrote, and has not waited for it");
  }
  const char* why = nullptr;
  if (old.block == block_) {
    if (ordered_within(old, thread)) return;
    why = "with no barrier between";
  } else {
    if (shared || (old.atomic && access == Access::read_past_l1)) return;
    if (!(why = disorder_between(old, old_reads, access))) return;
  }
  const std::string other = old.block == block_ ? "thread " + std::to_string(old.thread)
                                                : "block number " + std::to_string(old.block - launch_) + " to run";
  char where[32];
  std::snprintf(where, sizeof where, "%#lx", static_cast<unsigned long>(address));
  fail(std::string("race: it ") + verb(access) + (shared ? " shared" : "") + " memory at " + where + " that " + other +
       (old_reads    ? " read, "
        : old.atomic ? " updated, "
                     : " wrote, ") +
       why);
}

// Checks a load through L1 by a thread that has waited for the launch before, which ran at the same time. If that
// launch loaded a line and then wrote to it, L1 may still hold the old line, since nothing invalidates it.
void Races::check_stale(const Cell& cell) const {
  const auto before = [&](unsigned b) { return b >= overlaps_ && b < launch_; };
  if (before(cell.write.block) && before(cell.l1))
    fail(
        "race: it reads memory that the launch before loaded and wrote, and L1 may hold what was there before: "
        "read it by __ldcg");
}

void Races::acquire_and_release(uintptr_t address) {
  const unsigned thread = here.thread.x;
  auto& releases = released_[address];
  for (const auto& r : releases)
    if (r->block != block_) known_[r->block].push_back({r, thread, time_});
  const bool fenced = fence_[thread] > 0;
  const unsigned epoch = fenced ? fence_epoch_[thread] : 0, warp = fenced ? fence_warp_[thread] : 0;
  releases.push_back(
      std::make_shared<const Release>(Release{block_, thread, time_, epoch_, fence_[thread], epoch, warp, fences_}));
  ++time_;
}

// Whether all of these reads by another block are ordered before what the thread does now.
bool Races::seen(const Marks& reads) const {
  for (const Mark& m : {reads.last, reads.of_warp, reads.of_others})
    if (m.block >= launch_ && disorder_between(m, true, Access::write)) return false;
  return true;
}

void Races::note_write(Cell& c, const Mark& now, uintptr_t address, Access access) {
  check(c.reads, true, address, access);
  const uint32_t first = older_.of(c);
  for (uint32_t i = first ? older_[first].next : 0; i; i = older_[i].next)
    check(older_[i].marks, true, address, access);
  const Mark old = c.write;
  c.write = now;
  if (access == Access::write) {  // ordered after all accesses before it
    for (uint32_t i = first; i;) i = older_.remove(i);
    c.reads = {}, c.older = 0;
    return;
  }
  if (old.block < launch_ || (old.atomic && old.block == block_ && ordered_within(old, now.thread))) return;
  if (!first) c.older = older_.add({}, 0);
  Marks& writes = older_[c.older].marks;
  if (!old.atomic)
    writes.last = old;
  else if (old.block != block_)
    writes.of_warp = writes.of_others = {};  // this atomic saw those of other blocks
  else
    (old.thread / 32 == now.thread / 32 ? writes.of_warp : writes.of_others) = old;
}

void Races::note_read(Cell& c, const Mark& now, Access access) {
  Marks& reads = c.reads;
  const Mark old = reads.last;
  if (old.block == block_) {
    if (!ordered_within(old, now.thread)) (old.thread / 32 == now.thread / 32 ? reads.of_warp : reads.of_others) = old;
  } else {
    const bool keep = old.block >= launch_ && !seen(reads);
    if (keep && !older_.of(c)) c.older = older_.add({}, 0);
    if (older_.of(c)) {
      uint32_t next = older_[c.older].next;
      while (next && seen(older_[next].marks)) next = older_.remove(next);  // else each meeting of a cluster adds some
      if (keep) next = older_.add(reads, next);
      older_[c.older].next = next;
    }
    reads = {};
  }
  reads.last = now;
  if (access == Access::read || access == Access::read_only) c.l1 = block_;
}

void Races::note(const void* pointer, size_t bytes, Access access) {
  if (!on) return;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(pointer);
  const bool shared = begin >= shared_begin_ && begin < shared_end_;
  const unsigned thread = here.thread.x;
  Mark now;
  now.block = block_, now.thread = thread, now.time = time_, now.atomic = access == Access::atomic;
  Cell* c = nullptr;
  if (!dynamic_.empty()) check_dynamic(begin, bytes, access);
  const bool waited = block->running().waited;
  oldest_ = waited ? launch_ : overlaps_;
  if (!waited && is_write(access) && !memory_is_shared(pointer))
    fail(std::string("race: it ") + verb(access) + " memory and has not waited for the launch before");
  const uintptr_t of_rank = shared ? uintptr_t(rank_) << 48 : 0;  // each block of a cluster has its own variables
  for (uintptr_t address = begin; address < begin + bytes; ++address, ++c) {
    if (!c || address % kPage == 0) c = cell(address + of_rank);
    if (access == Access::read_only && c->write.block >= overlaps_)
      fail(std::string("race: __ldg reads memory that this launch wrote") +
           (c->write.block < launch_ ? ", or the one that it runs beside" : ""));
    check(c->write, false, address, access);
    if (older_.of(*c)) check(older_[c->older].marks, false, address, access);
    if (access == Access::read && waited && !shared) check_stale(*c);
    if (shared && access != Access::write && c->write.block != block_)
      fail(std::string("uninitialised: it ") + verb(access) + " shared memory that no thread of the block wrote");
    if (is_write(access))
      note_write(*c, now, address, access);
    else
      note_read(*c, now, access);
  }
  if (access == Access::atomic && !shared) acquire_and_release(begin);
}

}  // namespace cuda_on_cpu
