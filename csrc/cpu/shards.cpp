// SPDX-License-Identifier: Apache-2.0
// The exchange between ranks of a sharded vocabulary, and the ops that specdec_kernels.distributed calls for it
#include "shards.h"

#include "../core/arguments.h"
#include "row_reader.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <bit>
#include <memory>
#include <mutex>

namespace specdec {

char* ShardTask::post(size_t bytes, std::function<void(const char*, size_t)> take) {
  posts_.push_back({std::vector<char>(bytes), std::move(take)});
  return posts_.back().mine.data();
}

void ShardTask::put_number(float z, DType dtype, char* to) {
  const uint32_t word = std::bit_cast<uint32_t>(z);
  const uint16_t half = uint16_t((std::bit_cast<uint32_t>(z * 0x1p-112f) >> 13 & 0x7fff) | (word >> 16 & 0x8000));
  const uint16_t short_word = dtype == kFloat16 ? half : uint16_t(word >> 16);
  dtype == kFloat32 ? std::memcpy(to, &word, sizeof(word)) : std::memcpy(to, &short_word, sizeof(short_word));
}

static int64_t bits(float x) { return std::bit_cast<uint32_t>(x); }

// A key that differs between the views of a row. It has the addresses of the lists, the amounts and the position. The
// address of Views is not part of it, because it changes from call to call. Nor is the window, which is the same for
// all views of a task.
ShardTask::ViewKey ShardTask::key_of(const View& view) {
  if (!view) return {};
  const Views& of = *view.of;
  const bool penalised = of.penalises(view.request);
  const Amounts x = penalised ? of.penalties.amounts(view.request) : Amounts{1, 0, 0};
  const int64_t s = penalised ? of.penalties.history(view.request) : 0;
  const int64_t bias = of.bias_list(view.request, view.position), masked = of.mask_list(view.request, view.position);
  return {int64_t(of.penalties.ids + s * of.penalties.ids_stride),
          int64_t(of.penalties.counts + s * of.penalties.counts_stride),
          bits(x.repetition),
          bits(x.frequency),
          bits(x.presence),
          bias < 0 ? 0 : int64_t(of.bias.ids.data),
          bias < 0 ? 0 : int64_t(of.bias.values),
          bias,
          masked < 0 ? 0 : int64_t(of.mask.of(masked)),
          view.position};
}

ShardTask::RowAsked ShardTask::asked_of(const Row& row, const Filters& filters, bool entropy) {
  const RowId id = row.id();
  return {*this, rows_[{key_of(id.view),
                        {int64_t(id.data), id.form, entropy, bits(filters.temperature), filters.top_k,
                         bits(filters.top_p), bits(filters.min_p), bits(filters.top_n_sigma)}}]};
}

float ShardTask::entry(const Row& row, int64_t v) {
  Entry& entry = entry_of(row, v);
  if (entry.known) return entry.z;
  if (!entry.asked) {
    const int64_t owner = split.owner(v / kChunk);
    char* mine = post(sizeof(float), [&entry, owner](const char* all, size_t) {
      entry.known = true;
      std::memcpy(&entry.z, all + owner * sizeof(float), sizeof(float));
    });
    if (owner == split.rank) {
      const float z = RowReader(&split).entry(row, v);
      std::memcpy(mine, &z, sizeof(float));
    }
  }
  entry.asked = true;
  throw Unanswered{};
}

size_t ShardTask::size() const {
  size_t n = 0;
  for (const Post& post : posts_) n += post.mine.size();
  return n;
}

void ShardTask::write(char* mine) const {
  for (const Post& post : posts_) mine = std::copy(post.mine.begin(), post.mine.end(), mine);
}

void ShardTask::answer(const char* all, size_t stride) {
  for (const Post& post : posts_) {
    const size_t n = post.mine.size();
    std::vector<char> of_ranks(split.ranks() * n);
    for (int64_t r = 0; r < split.ranks(); ++r) std::copy_n(all + r * stride, n, of_ranks.data() + r * n);
    post.take(of_ranks.data(), of_ranks.size());
    all += n;
  }
  posts_.clear();
  own_.asked = false;
  for (auto& [_, stream] : rows_) stream.asked = false;
}

std::deque<ShardTask>* ShardedCall::tasks(int64_t B) {
  bool waits = false;
  for_tasks([&](const ShardTask& task) { waits |= task.waits(); });
  if (waits) return nullptr;
  if (op_ == ops_.size()) ops_.emplace_back();
  std::deque<ShardTask>& tasks = ops_[op_++];
  while (int64_t(tasks.size()) < B) tasks.emplace_back(split_);
  return &tasks;
}

size_t ShardedCall::size() const {
  size_t n = 0;
  for_tasks([&](const ShardTask& task) { n += task.size(); });
  return n;
}

void ShardedCall::write(char* mine) const {
  for_tasks([&](const ShardTask& task) { task.write(mine), mine += task.size(); });
}

void ShardedCall::answer(const char* all) {
  const size_t stride = size();
  for (auto& tasks : ops_) {
    for (ShardTask& task : tasks) {
      const size_t n = task.size();
      task.answer(all, stride);
      all += n;
    }
  }
}

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

std::mutex calls_mutex;
std::map<int64_t, std::unique_ptr<ShardedCall>> calls;

ShardedCall& call_of(int64_t handle) {
  const std::lock_guard lock(calls_mutex);
  const auto found = calls.find(handle);
  if (found == calls.end()) throw std::runtime_error("specdec_shards: no such call");
  return *found->second;
}

int64_t open(const std::vector<int64_t>& first, int64_t rank) {
  static int64_t last = 0;
  const std::lock_guard lock(calls_mutex);
  calls[++last] = std::make_unique<ShardedCall>(Split{rank, first});
  ShardTask::open.fetch_add(1);
  return last;
}

void close(int64_t handle) {
  const std::lock_guard lock(calls_mutex);
  if (calls.erase(handle)) ShardTask::open.fetch_sub(1);
}

void enter(int64_t handle) {
  rows_over_ranks = true;
  ShardedCall::current() = &call_of(handle);
  ShardedCall::current()->restart();
}

Tensor leave(int64_t handle) {
  rows_over_ranks = false;
  ShardedCall::current() = nullptr;
  const ShardedCall& call = call_of(handle);
  const int64_t size[] = {int64_t(call.size())};
  Tensor mine = torch::stable::empty({size, 1}, ScalarType::Byte);
  call.write(static_cast<char*>(mine.mutable_data_ptr()));
  return mine;
}

void answer(int64_t handle, const Tensor& all) {
  call_of(handle).answer(static_cast<const char*>(all.const_data_ptr()));
}

}  // namespace

STABLE_TORCH_LIBRARY(specdec_shards, m) {
  m.def("open(int[] first, int rank) -> int");
  m.def("close(int call) -> ()");
  m.def("enter(int call) -> ()");
  m.def("leave(int call) -> Tensor");
  m.def("answer(int call, Tensor all) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(specdec_shards, CompositeExplicitAutograd, m) {
  m.impl("open", TORCH_BOX(&open));
  m.impl("close", TORCH_BOX(&close));
  m.impl("enter", TORCH_BOX(&enter));
  m.impl("leave", TORCH_BOX(&leave));
  m.impl("answer", TORCH_BOX(&answer));
}

}  // namespace specdec
