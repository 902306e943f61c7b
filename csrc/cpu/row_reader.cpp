// SPDX-License-Identifier: Apache-2.0
#include "row_reader.h"

#include "shards.h"

namespace specdec {

float Row::entry(int64_t v) const {
  ShardTask* const task = ShardTask::here();
  return task ? task->entry(*this, v) : RowReader().entry(*this, v);
}

int64_t RowReader::first(const Row& row) const { return split_->begin(chunk_count(row.V)) * kChunk; }

}  // namespace specdec
