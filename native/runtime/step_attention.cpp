// The attention operation of a step: rotate, store keys and values, then every row attends to its own path.
#include <algorithm>

#include "checks.h"
#include "step.h"

namespace ultrafast {

namespace {

std::int32_t largest_divisor(std::int32_t n, std::int32_t limit) {
  std::int32_t divisor = std::min(n, limit);
  while (n % divisor != 0) --divisor;
  return divisor;
}

}  // namespace

void StepRun::attention(const Model::Operation& operation, int member) {
  const Shape& shape = model_.shape_;
  const auto rows = std::ssize(rows_);
  if (operation.attention.query_norm >= 0 || operation.attention.key_norm >= 0) {
    model_.team_.each(member, rows, [&](std::int64_t row) { norm_queries(operation, row); });
  }
  model_.team_.each(member, rows * shape.kv_head_count, [&](std::int64_t task) {
    store_keys(operation, static_cast<std::int32_t>(task / shape.kv_head_count),
               static_cast<std::int32_t>(task % shape.kv_head_count));
  });
  const std::int64_t shares = shape.head_count / tile_heads_;
  const Scratch scratch = scratch_of(member);
  model_.team_.each(member, std::ssize(tiles_) * shares, [&](std::int64_t task) {
    const Tile& tile = tiles_[static_cast<std::size_t>(task / shares)];
    attend(operation, tile, static_cast<std::int32_t>(task % shares) * tile_heads_, tile_heads_, scratch);
  });
}

// Cuts the rows into tiles as tall as they can be while every member still gets an equal share.
void StepRun::plan_tiles() {
  const Shape& shape = model_.shape_;
  const std::int32_t members = model_.team_.members();
  const std::int32_t group = shape.head_count / shape.kv_head_count;
  tile_heads_ = largest_divisor(group, kTileQueries);
  const auto rows = static_cast<std::int32_t>(rows_.size());
  const std::int32_t shares = shape.head_count / tile_heads_;
  std::int32_t height = std::min(rows, kTileQueries / tile_heads_);
  const auto level = [&](std::int32_t tall) {
    const std::int32_t tasks = (rows + tall - 1) / tall * shares;
    return tasks >= 8 * members || (rows % tall == 0 && tasks % members == 0);
  };
  while (height > 1 && !level(height)) --height;
  if (!level(height)) tile_heads_ = 1;
  for (std::int32_t i = 0; i < rows; ++i) {
    const Row& row = rows_[static_cast<std::size_t>(i)];
    const bool joins = !tiles_.empty() && tiles_.back().count < height && row.on_line && i > 0 &&
                       rows_[static_cast<std::size_t>(i - 1)].sequence == row.sequence &&
                       rows_[static_cast<std::size_t>(i - 1)].entry == row.entry - 1;
    if (joins) {
      ++tiles_.back().count;
    } else {
      tiles_.push_back({i, 1});
    }
  }
}

// Norms of queries and keys, before rotation: per head, or across all heads where the weight is as wide.
void StepRun::norm_queries(const Model::Operation& operation, std::int64_t row) {
  const Shape& shape = model_.shape_;
  float* query = model_.buffer(operation.input.source).row(row);
  float* key = query + padded(std::int64_t{shape.head_count} * shape.head_size);
  const auto apply = [&](std::int32_t norm, float* start, std::int64_t width) {
    if (norm < 0) return;
    const std::vector<float>& weight = model_.vector(norm);
    const auto size = static_cast<std::int64_t>(weight.size());
    for (std::int64_t at = 0; at < width; at += size) {
      if (!model_.kernels_.rms_norm(start + at, weight.data(), operation.input.epsilon, size, start + at)) fail(row);
    }
  };
  apply(operation.attention.query_norm, query, std::int64_t{shape.head_count} * shape.head_size);
  apply(operation.attention.key_norm, key, std::int64_t{shape.kv_head_count} * shape.head_size);
}

void StepRun::store_keys(const Model::Operation& operation, std::int32_t index, std::int32_t kv_head) {
  const Shape& shape = model_.shape_;
  const Row& row = rows_[static_cast<std::size_t>(index)];
  const std::int32_t size = shape.head_size;
  const std::int32_t group = shape.head_count / shape.kv_head_count;
  float* query = model_.buffer(operation.input.source).row(index);
  float* key = query + padded(std::int64_t{shape.head_count} * size) + kv_head * size;
  const float* value = key + padded(std::int64_t{shape.kv_head_count} * size);
  if (operation.attention.rotary >= 0) {
    const RotaryTable& table = model_.rotaries_[static_cast<std::size_t>(operation.attention.rotary)];
    const std::int64_t at = std::int64_t{row.position} * (table.size / 2);
    const float* cosines = table.cosines.data() + at;
    const float* sines = table.sines.data() + at;
    for (std::int32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      model_.kernels_.rotate(query + head * size, cosines, sines, table.size);
    }
    model_.kernels_.rotate(key, cosines, sines, table.size);
  }
  const std::int32_t block = row.sequence->blocks[static_cast<std::size_t>(row.entry / kCacheBlock)];
  model_.kernels_.store_key_value(key, value, size, model_.cache_.padded_head_size(), row.entry % kCacheBlock,
                                  model_.cache_.keys(block, operation.attention.layer, kv_head),
                                  model_.cache_.values(block, operation.attention.layer, kv_head));
}

void StepRun::attend(const Model::Operation& operation, const Tile& tile, std::int32_t first_head,
                     std::int32_t head_count, const Scratch& scratch) {
  const Shape& shape = model_.shape_;
  const Row& first = rows_[static_cast<std::size_t>(tile.first)];
  const std::int32_t size = shape.head_size;
  const std::int32_t padded_size = model_.cache_.padded_head_size();
  const std::int32_t kv_head = first_head / (shape.head_count / shape.kv_head_count);
  for (std::int32_t b = 0; b <= (first.position + tile.count - 1) / kCacheBlock; ++b) {
    const std::int32_t block = first.sequence->blocks[static_cast<std::size_t>(b)];
    scratch.key_blocks[b] = model_.cache_.keys(block, operation.attention.layer, kv_head);
    scratch.value_blocks[b] = model_.cache_.values(block, operation.attention.layer, kv_head);
  }
  if (!first.on_line) gather(first, operation.attention.layer, kv_head, scratch);
  for (std::int32_t q = 0; q < tile.count * head_count; ++q) {
    const float* query =
        model_.buffer(operation.input.source).row(tile.first + q / head_count) + (first_head + q % head_count) * size;
    float* to = scratch.query + q * padded_size;
    std::copy_n(query, size, to);
    std::fill(to + size, to + padded_size, 0.0f);
  }
  const Model::Buffer& out = model_.buffer(operation.destination);
  model_.kernels_.attention({.query = scratch.query,
                             .rows = tile.count,
                             .head_count = head_count,
                             .padded_head_size = padded_size,
                             .head_size = size,
                             .key_blocks = scratch.key_blocks,
                             .value_blocks = scratch.value_blocks,
                             .first_position = first.position,
                             .window = operation.attention.window,
                             .scale = shape.attention_scale,
                             .softcap = operation.attention.softcap,
                             .scratch = scratch.attention,
                             .output = out.row(tile.first) + first_head * size,
                             .output_stride = out.width});
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
