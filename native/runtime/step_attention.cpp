// The attention operation of a step: rotate, store keys and values, then every row attends to its own path.
#include <algorithm>
#include <cstring>

#include "checks.h"
#include "step.h"

namespace ultrafast {

void StepRun::attention(const Model::Operation& operation, int member) {
  const Shape& shape = model_.shape_;
  const auto rows = static_cast<std::int32_t>(rows_.size());
  const int members = model_.team_.members();
  const std::int64_t pairs = std::int64_t{rows} * shape.kv_head_count;
  for (std::int64_t task = pairs * member / members; task < pairs * (member + 1) / members; ++task) {
    store_keys(operation, static_cast<std::int32_t>(task / shape.kv_head_count),
               static_cast<std::int32_t>(task % shape.kv_head_count));
  }
  model_.team_.barrier();
  // Heads that share keys go together where there is enough to share out, else one by one. Later rows see more keys:
  // dealing them out in turn keeps the members level.
  const std::int32_t group = shape.head_count / shape.kv_head_count;
  const std::int32_t together = pairs >= 4 * members ? group : 1;
  const std::int64_t tasks_per_row = shape.head_count / together;
  const Scratch scratch = scratch_of(member);
  for (std::int64_t task = member; task < rows * tasks_per_row; task += members) {
    attend(operation, static_cast<std::int32_t>(task / tasks_per_row),
           static_cast<std::int32_t>(task % tasks_per_row) * together, together, scratch);
  }
  model_.team_.barrier();
}

void StepRun::store_keys(const Model::Operation& operation, std::int32_t index, std::int32_t kv_head) {
  const Shape& shape = model_.shape_;
  const Row& row = rows_[static_cast<std::size_t>(index)];
  const std::int32_t size = shape.head_size;
  const std::int32_t group = shape.head_count / shape.kv_head_count;
  float* query = model_.buffer(operation.source).row(index);
  float* key = query + padded(std::int64_t{shape.head_count} * size) + kv_head * size;
  const float* value = key + padded(std::int64_t{shape.kv_head_count} * size);
  const std::int64_t table_row = std::int64_t{row.position} * (shape.rotary_size / 2);
  const float* cosines = model_.rotary_.cosines.data() + table_row;
  const float* sines = model_.rotary_.sines.data() + table_row;
  for (std::int32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    model_.kernels_.rotate(query + head * size, cosines, sines, shape.rotary_size);
  }
  model_.kernels_.rotate(key, cosines, sines, shape.rotary_size);
  const std::int32_t block = row.sequence->blocks[static_cast<std::size_t>(row.entry / kCacheBlock)];
  model_.kernels_.store_key_value(key, value, size, model_.cache_.padded_head_size(), row.entry % kCacheBlock,
                                  model_.cache_.keys(block, operation.layer, kv_head),
                                  model_.cache_.values(block, operation.layer, kv_head));
}

void StepRun::attend(const Model::Operation& operation, std::int32_t index, std::int32_t first_head,
                     std::int32_t head_count, const Scratch& scratch) {
  const Shape& shape = model_.shape_;
  const Row& row = rows_[static_cast<std::size_t>(index)];
  const std::int32_t size = shape.head_size;
  const std::int32_t padded_size = model_.cache_.padded_head_size();
  const std::int32_t kv_head = first_head / (shape.head_count / shape.kv_head_count);
  const std::int32_t blocks = row.position / kCacheBlock + 1;
  for (std::int32_t b = 0; b < blocks; ++b) {
    const std::int32_t block = row.sequence->blocks[static_cast<std::size_t>(b)];
    scratch.key_blocks[b] = model_.cache_.keys(block, operation.layer, kv_head);
    scratch.value_blocks[b] = model_.cache_.values(block, operation.layer, kv_head);
  }
  if (!row.on_line) gather(row, operation.layer, kv_head, scratch);
  const float* query = model_.buffer(operation.source).row(index) + first_head * size;
  if (padded_size != size) {
    std::memset(scratch.query, 0, static_cast<std::size_t>(head_count * padded_size) * sizeof(float));
    for (std::int32_t h = 0; h < head_count; ++h) std::copy_n(query + h * size, size, scratch.query + h * padded_size);
    query = scratch.query;
  }
  model_.kernels_.attention({.query = query,
                             .head_count = head_count,
                             .padded_head_size = padded_size,
                             .head_size = size,
                             .key_blocks = scratch.key_blocks,
                             .value_blocks = scratch.value_blocks,
                             .positions = row.position + 1,
                             .scale = shape.attention_scale,
                             .scratch = scratch.attention,
                             .output = model_.buffer(operation.destination).row(index) + first_head * size});
}

// A row off the line: its last blocks are copied into order of position, so that one kernel serves lines and trees.
void StepRun::gather(const Row& row, std::int32_t layer, std::int32_t kv_head, const Scratch& scratch) {
  const std::int32_t padded_size = model_.cache_.padded_head_size();
  const std::int64_t half = std::int64_t{kCacheBlock} * padded_size;
  const std::int32_t first_block = row.base / kCacheBlock;
  for (std::int32_t position = first_block * kCacheBlock; position <= row.position; ++position) {
    const std::int32_t b = position / kCacheBlock;
    std::uint16_t* keys = scratch.gathered + (b - first_block) * 2 * half;
    std::uint16_t* values = keys + half;
    const std::int32_t entry = position < row.base ? position : row.path[static_cast<std::size_t>(position - row.base)];
    const std::int32_t block = row.sequence->blocks[static_cast<std::size_t>(entry / kCacheBlock)];
    const std::uint16_t* from = model_.cache_.keys(block, layer, kv_head) + entry % kCacheBlock;
    for (std::int32_t d = 0; d < padded_size; ++d) {
      keys[d * kCacheBlock + position % kCacheBlock] = from[d * kCacheBlock];
    }
    std::copy_n(model_.cache_.values(block, layer, kv_head) + entry % kCacheBlock * padded_size, padded_size,
                values + position % kCacheBlock * padded_size);
    scratch.key_blocks[b] = keys;
    scratch.value_blocks[b] = values;
  }
}

}  // namespace ultrafast
