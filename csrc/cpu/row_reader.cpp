// SPDX-License-Identifier: Apache-2.0
#include "row_reader.h"

#include "shards.h"

namespace specdec {

float Row::entry(int64_t v) const {
  ShardTask* const task = ShardTask::here();
  return task ? task->entry(*this, v) : RowReader().entry(*this, v);
}

double Dist::listed_prob(int64_t v) const {
  double sum = 0;
  for (const EntryIds::Place& place : row.ids->between(v, v + 1)) {
    const float z = ListedReader::entry(row, place.at, v);
    sum += kind == Kind::kProbs ? double(clean_prob(z)) : exp(stats.log_prob(z));
  }
  return sum;
}

double Dist::log_listed_prob(int64_t v) const {
  const auto places = row.ids->between(v, v + 1);
  if (kind == Kind::kLogits && places.size() == 1)  // exp() would underflow if it is small
    return stats.log_prob(ListedReader::entry(row, places.first->at, v));
  return log(listed_prob(v));
}

int64_t RowReader::first(const Row& row) const { return split_->begin(chunk_count(row.V)) * kChunk; }

}  // namespace specdec
