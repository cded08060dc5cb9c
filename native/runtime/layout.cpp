#include "layout.h"

#include <cstring>

namespace ultrafast {

namespace {

// File blocks of 32 columns: (float16 scale)(32 int8) for Q8_0, (scale)(16 bytes of nibbles) for Q4_0,
// (scale)(minimum)(16 bytes) for Q4_1; byte i of the nibbles has column i low and column i + 16 high.
std::int64_t file_block_bytes(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return 4 * kBlock;
    case WeightType::kF16:
    case WeightType::kBF16:
      return 2 * kBlock;
    case WeightType::kQ8_0:
      return 2 + kBlock;
    case WeightType::kQ4_0:
      return 2 + kBlock / 2;
    case WeightType::kQ4_1:
      return 4 + kBlock / 2;
  }
  return 0;
}

std::int64_t source_row(const MatrixSource& source, std::int64_t row) {
  const std::int64_t size = source.interleaved_head_size;
  if (size == 0) return row;
  const std::int64_t within = row % size;
  return row - within + (within < size / 2 ? 2 * within : 2 * (within - size / 2) + 1);
}

void write_float_row(const MatrixSource& source, const std::uint8_t* row, int lane, std::uint8_t* group) {
  const std::int64_t size = source.type == WeightType::kF32 ? 4 : 2;
  for (std::int64_t c = 0; c < source.columns; ++c) {
    std::memcpy(group + (c * kGroupRows + lane) * size, row + c * size, static_cast<std::size_t>(size));
  }
}

void write_quantised_row(const MatrixSource& source, const std::uint8_t* row, int lane, std::uint8_t* group) {
  const std::int64_t file_stride = file_block_bytes(source.type);
  const std::int64_t stride = group_block_bytes(source.type);
  const bool has_minimum = source.type == WeightType::kQ4_1;
  const int quant_bytes = source.type == WeightType::kQ8_0 ? kBlock : kBlock / 2;
  const int header = has_minimum ? 4 : 2;
  for (std::int64_t b = 0; b < source.columns / kBlock; ++b) {
    const std::uint8_t* block = row + b * file_stride;
    std::uint8_t* out = group + b * stride;
    for (int quad = 0; quad < quant_bytes / 4; ++quad) {
      std::memcpy(out + quad * 4 * kGroupRows + 4 * lane, block + header + 4 * quad, 4);
    }
    std::uint8_t* scales = out + quant_bytes * kGroupRows;
    std::memcpy(scales + 2 * lane, block, 2);
    if (has_minimum) std::memcpy(scales + kHalvesBytes + 2 * lane, block + 2, 2);
  }
}

}  // namespace

std::int64_t source_bytes(WeightType type, std::int64_t rows, std::int64_t columns) {
  return file_block_bytes(type) * columns / kBlock * rows;
}

std::int64_t unit_bytes(WeightType type, std::int64_t columns) {
  const std::int64_t bytes = kUnitRows / kGroupRows * group_bytes(type, columns);
  return (bytes + 63) / 64 * 64;
}

void write_unit(const MatrixSource& source, std::int64_t unit, std::uint8_t* out) {
  const std::int64_t row_bytes = source_bytes(source.type, 1, source.columns);
  std::memset(out, 0, static_cast<std::size_t>(unit_bytes(source.type, source.columns)));
  for (int r = 0; r < kUnitRows; ++r) {
    const std::int64_t row = unit * kUnitRows + r;
    if (row >= source.rows) return;
    const std::uint8_t* data = source.data + source_row(source, row) * row_bytes;
    std::uint8_t* group = out + r / kGroupRows * group_bytes(source.type, source.columns);
    if (is_quantised(source.type)) {
      write_quantised_row(source, data, r % kGroupRows, group);
    } else {
      write_float_row(source, data, r % kGroupRows, group);
    }
  }
}

}  // namespace ultrafast
