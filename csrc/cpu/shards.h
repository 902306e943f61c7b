// SPDX-License-Identifier: Apache-2.0
// Rows spread over R ranks (processes). Each rank has a range of the chunks of every row, which may be empty. Only rows
// with ids are whole on every rank. The ranks exchange results of chunks and single entries, never a row.
//
// An op is called repeatedly with the same arguments. When a walk needs data of other ranks, its task posts this rank's
// share and the walk stops. Between two calls the posts of all tasks are exchanged. The next call walks again from the
// start, finds the answer and goes on. All ranks see the same answers, so their walks take the same path. The code that
// uses the answers is the code for chunks of a whole row, so the results are the same bits.
#pragma once

#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "../core/filters.h"
#include "../core/row.h"

namespace specdec {

// The chunks of each rank: rank r has those of [first[r], first[r + 1]).
struct Split {
  int64_t rank = 0;
  std::vector<int64_t> first;

  int64_t ranks() const { return int64_t(first.size()) - 1; }
  int64_t begin(int64_t r, int64_t chunks) const { return std::min(first[r], chunks); }
  int64_t begin(int64_t chunks) const { return begin(rank, chunks); }
  int64_t end(int64_t chunks) const { return begin(rank + 1, chunks); }
  int64_t owner(int64_t c) const { return std::upper_bound(first.begin(), first.end() - 1, c) - first.begin() - 1; }
  bool has(int64_t c) const { return owner(c) == rank; }
  // The most chunks that any rank has of a row of so many chunks
  int64_t most(int64_t chunks) const {
    int64_t n = 0;
    for (int64_t r = 0; r < ranks(); ++r) n = std::max(n, begin(r + 1, chunks) - begin(r, chunks));
    return n;
  }
};

// Thrown when a walk needs an answer of the other ranks that has not arrived
struct Unanswered {};

// The exchanges of one request's walk, in the order in which the walk needs them
class ShardTask {
 public:
  explicit ShardTask(const Split& split) : split(split) {}

  const Split& split;

  // The task whose walk runs on this thread; null if rows are not spread over ranks. `open` is read first because it is
  // cheaper.
  static ShardTask* here() { return open.load(std::memory_order_relaxed) ? here_ : nullptr; }
  static inline constinit std::atomic<int> open = 0;  // how many sharded calls this process has

  // Starts the walk again from the beginning.
  void restart() { own_.next = 0, stream_ = &own_; }

  // Returns the data of all ranks, [ranks, bytes]. fill(mine) writes this rank's `bytes` bytes; they start as zeros.
  template <class Fill>
  const char* exchange(size_t bytes, const Fill& fill) {
    Stream& stream = *stream_;
    if (stream.next < stream.answers.size()) return stream.answers[stream.next++].data();
    if (!stream.asked)
      fill(post(bytes, [&stream](const char* all, size_t n) { stream.answers.emplace_back(all, all + n); }));
    stream.asked = true;
    throw Unanswered{};
  }
  // The result of make() on each rank
  template <class T, class Make>
  std::vector<T> on_each_rank(const Make& make) {
    const char* all = exchange(sizeof(T), [&](char* mine) {
      const T x = make();
      std::memcpy(mine, &x, sizeof(T));
    });
    std::vector<T> of_ranks(split.ranks());
    std::memcpy(of_ranks.data(), all, of_ranks.size() * sizeof(T));
    return of_ranks;
  }
  // Returns counts[r] entries of a row from each rank r, in the order of the ranks. put_all(put) calls put(z) for each
  // entry of this rank. Entries are sent in the row's dtype, or in float32 if the row has a view, since 16 bits may not
  // hold a changed entry.
  template <class PutAll>
  std::vector<float> entries_of(const Row& row, const std::vector<uint32_t>& counts, const PutAll& put_all) {
    const DType dtype = row.view ? kFloat32 : row.dtype;
    const size_t width = dtype == kFloat32 ? 4 : 2, bytes = width * *std::max_element(counts.begin(), counts.end());
    const char* all =
        exchange(bytes, [&](char* mine) { put_all([&](float z) { put_number(z, dtype, mine), mine += width; }); });
    std::vector<float> entries;
    for (size_t r = 0; r < counts.size(); ++r)
      for (uint32_t i = 0; i < counts[r]; ++i) entries.push_back(number_at(all + r * bytes, dtype, i));
    return entries;
  }
  // Exchanges k values of each rank, and calls take(x) for every value of every rank. fill(mine) writes this rank's
  // values; those that it does not write stay T{}.
  template <class T, class Fill, class Take>
  void for_ranks(int64_t k, const Fill& fill, const Take& take) {
    const char* all = exchange(size_t(k) * sizeof(T), [&](char* mine) {
      std::vector<T> own(k);
      fill(own.data());
      std::memcpy(mine, own.data(), own.size() * sizeof(T));
    });
    for (int64_t i = 0; i < split.ranks() * k; ++i) {
      T x;
      std::memcpy(&x, all + i * sizeof(T), sizeof(T));
      take(x);
    }
  }
  // The result of make() on rank `owner`
  template <class T, class Make>
  T value_of(int64_t owner, const Make& make) {
    return on_each_rank<T>([&] { return owner == split.rank ? make() : T{}; })[owner];
  }
  // Calls take(c, f(c)) for all chunks. The first `width` bytes of each result are exchanged. `leaves`: f also stores
  // values that are needed later, so it is called even if the answer is known.
  template <class F, class Take>
  void for_chunks(int64_t chunks, const F& f, const Take& take, size_t width, bool leaves) {
    using T = decltype(f(0));
    const int64_t begin = split.begin(chunks), end = split.end(chunks);
    const size_t bytes = size_t(split.most(chunks)) * width;
    if (leaves && stream_->answered()) {
      for (int64_t c = begin; c < end; ++c) f(c);
    }
    const char* all = exchange(bytes, [&](char* mine) {
      for (int64_t c = begin; c < end; ++c) {
        const T x = f(c);
        std::memcpy(mine + (c - begin) * width, &x, width);
      }
    });
    for (int64_t r = 0; r < split.ranks(); ++r) {
      for (int64_t c = split.begin(r, chunks); c < split.begin(r + 1, chunks); ++c) {
        T x{};
        std::memcpy(&x, all + r * bytes + (c - split.begin(r, chunks)) * width, width);
        take(c, x);
      }
    }
  }

  // Entry v of a row, from the rank that has it. know() stores an entry that arrived with other data.
  float entry(const Row& row, int64_t v);
  void know(const Row& row, int64_t v, float z) { entry_of(row, v) = {true, true, z}; }

  // A row's stats are requested from other ranks once per call and cached by row and filters. While a RowAsked exists,
  // exchange() uses that row's answers.
  struct RowAsked;
  RowAsked asked_of(const Row& row, const Filters& filters, bool entropy);

  // write() writes this rank's posts, size() bytes. answer() reads the posts of all ranks: those of rank r start at all
  // + r * stride.
  size_t size() const;
  void write(char* mine) const;
  void answer(const char* all, size_t stride);
  bool waits() const { return !posts_.empty(); }

 private:
  // A sequence of exchanges with its answers so far; `next` is the first that the current walk has not used.
  struct Stream {
    std::vector<std::vector<char>> answers;  // [ranks, bytes] each
    size_t next = 0;
    bool asked = false;
    bool answered() const { return next < answers.size(); }
  };
  struct Entry {
    bool asked = false, known = false;
    float z = 0;
  };
  struct Post {
    std::vector<char> mine;
    std::function<void(const char* all, size_t n)> take;
  };
  using ViewKey = std::array<int64_t, 10>;
  using RowKey = std::pair<ViewKey, std::array<int64_t, 8>>;

  static ViewKey key_of(const View& view);
  static void put_number(float z, DType dtype, char* to);  // the inverse of number_at()
  char* post(size_t bytes, std::function<void(const char*, size_t)> take);
  Entry& entry_of(const Row& row, int64_t v) {
    const RowId id = row.id();
    return entries_[{id.data, id.form, key_of(id.view), v}];
  }

  static inline constinit thread_local ShardTask* here_ = nullptr;

  Stream own_, *stream_ = &own_;
  std::map<RowKey, Stream> rows_;
  std::map<std::tuple<const void*, int64_t, ViewKey, int64_t>, Entry> entries_;
  std::vector<Post> posts_;

  friend struct RowAsked;
  template <class Walk>
  friend void walk_sharded(ShardTask& task, const Walk& walk);
};

struct ShardTask::RowAsked {
  ShardTask& task;
  Stream* before;
  RowAsked(const RowAsked&) = delete;
  RowAsked(ShardTask& task, Stream& of) : task(task), before(task.stream_) { task.stream_ = &of, of.next = 0; }
  ~RowAsked() { task.stream_ = before; }
};

// The repeated calls of one public function with the same arguments
class ShardedCall {
 public:
  explicit ShardedCall(Split split) : split_(std::move(split)) {}

  // The call that this thread's ops belong to; null if rows are not spread over ranks
  static ShardedCall*& current() {
    static thread_local ShardedCall* call = nullptr;
    return call;
  }

  // Begins the next call of the function, which may call several ops.
  void restart() { op_ = 0; }
  // The tasks of the next op, at least B. Null if an earlier op still waits for answers: its results are not there yet.
  std::deque<ShardTask>* tasks(int64_t B);
  size_t size() const;
  void write(char* mine) const;
  void answer(const char* all);  // [ranks, size()]

 private:
  template <class F>
  void for_tasks(const F& f) const {
    for (const auto& tasks : ops_)
      for (const ShardTask& task : tasks) f(task);
  }

  Split split_;
  std::deque<std::deque<ShardTask>> ops_;  // in the order of their calls, the same on all ranks
  size_t op_ = 0;
};

// Runs walk() until it ends or needs an answer that has not arrived.
template <class Walk>
void walk_sharded(ShardTask& task, const Walk& walk) {
  struct Here {
    explicit Here(ShardTask* task) { ShardTask::here_ = task; }
    ~Here() { ShardTask::here_ = nullptr; }
  } here(&task);
  task.restart();
  try {
    walk();
  } catch (const Unanswered&) {}
}

}  // namespace specdec
