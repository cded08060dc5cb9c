#include "layout.h"

#include <algorithm>
#include <cstring>

#include "bounds.h"
#include "file_blocks.h"
#include "quantise.h"

namespace ultrafast {

namespace {

std::int64_t source_row(const MatrixSource& source, std::int64_t row) {
  const std::int64_t size = source.interleaved_head_size;
  if (size == 0) return row;
  const std::int64_t within = row % size;
  return row - within + (within < size / 2 ? 2 * within : 2 * (within - size / 2) + 1);
}

void merge_quad(std::uint8_t* out, std::uint32_t bits) {
  std::uint32_t there;
  std::memcpy(&there, out, sizeof there);
  there |= bits;
  std::memcpy(out, &there, sizeof there);
}

// Splits codes into the planes of block_format, four at a time: every shift and mask stays inside its byte. `out` is
// zero before.
void write_planes(const BlockFormat& format, const std::uint8_t* code, int lane, std::uint8_t* out) {
  constexpr int kQuadBytes = 4 * kGroupRows;
  constexpr std::uint32_t kEach = 0x01010101;
  std::uint8_t* high = out + format.low_bytes() + 4 * lane;
  out += 4 * lane;
  for (int j = 0; j < 8; ++j) {
    std::uint32_t quad;
    std::memcpy(&quad, code + 4 * j, sizeof quad);
    if (format.low_bits == 8) {
      std::memcpy(out + j * kQuadBytes, &quad, sizeof quad);
    } else if (format.low_bits == 4) {
      merge_quad(out + j % 4 * kQuadBytes, (quad & 15 * kEach) << (j / 4 * 4));
    } else if (format.low_bits == 2) {
      merge_quad(out + j / 4 * kQuadBytes, (quad & 3 * kEach) << (j % 4 * 2));
    } else {
      merge_quad(out, (quad & kEach) << j);
    }
    const std::uint32_t rest = quad >> format.low_bits;
    if (format.high_bits == 1) merge_quad(high, (rest & kEach) << j);
    if (format.high_bits == 2) merge_quad(high + j / 4 * kQuadBytes, (rest & 3 * kEach) << (j % 4 * 2));
  }
}

// kSize: bytes of a value, known while compiling: a copy is then one move.
template <int kSize>
void write_values(std::int64_t columns, const std::uint8_t* row, int lane, std::uint8_t* group) {
  for (std::int64_t c = 0; c < columns; ++c) {
    std::memcpy(group + (c * kGroupRows + lane) * kSize, row + c * kSize, kSize);
  }
}

void write_float_row(const MatrixSource& source, const std::uint8_t* row, int lane, std::uint8_t* group) {
  if (source.type == WeightType::kF32) {
    write_values<4>(source.columns, row, lane, group);
  } else {
    write_values<2>(source.columns, row, lane, group);
  }
}

bool write_quantised_row(const MatrixSource& source, const std::uint8_t* row, int lane, std::uint8_t* group) {
  const BlockFormat format = block_format(source.type);
  const std::int64_t columns = block_columns(source.type);
  const std::int64_t stored_bytes = source_bytes(source.stored, 1, columns);
  BlockCodes codes;
  std::uint8_t quantised[kMostQuantisedBytes];
  for (std::int64_t b = 0; b < source.columns / columns; ++b, row += stored_bytes) {
    const std::uint8_t* block = row;
    if (source.stored != source.type) {
      if (!quantise_block(source.stored, row, source.type, quantised)) return false;
      block = quantised;
    }
    for (int h = 0; h < format.header_halves; ++h, group += 2 * kGroupRows) {
      take_half(source.type, block, h, group + 2 * lane);
    }
    for (int i = 0; i < format.blocks; ++i) {
      take_block(source.type, block, i, codes);
      write_planes(format, codes.code, lane, group);
      group += format.quant_bytes();
      for (int h = 0; h < format.halves; ++h, group += 2 * kGroupRows) {
        take_half(source.type, block, h, group + 2 * lane);
      }
      for (int k = 0; k < format.bytes; ++k, group += kGroupRows) group[lane] = codes.bytes[k];
    }
  }
  return true;
}

// Row `index` of a unit of kQ8_0Split.
bool write_split_row(const MatrixSource& source, const std::uint8_t* row, int index, const UnitOutput& out) {
  const int group = index / kGroupRows;
  const int lane = index % kGroupRows;
  std::uint8_t* upper = out.data + group * group_bytes(source.type, source.columns);
  std::uint8_t* lower = out.lower + group * lower_group_bytes(source.columns);
  const std::int64_t stored_bytes = source_bytes(source.stored, 1, kBlock);
  BlockCodes codes;
  UpperSlack sum;
  std::uint8_t quantised[kMostQuantisedBytes];
  for (std::int64_t b = 0; b < source.columns / kBlock; ++b, row += stored_bytes) {
    const std::uint8_t* block = row;
    if (source.stored != WeightType::kQ8_0) {
      if (!quantise_block(source.stored, row, WeightType::kQ8_0, quantised)) return false;
      block = quantised;
    }
    take_block(WeightType::kQ8_0, block, 0, codes);
    std::uint8_t* scale = upper + kSplitUpper.quant_bytes() + 2 * lane;
    take_half(WeightType::kQ8_0, block, 0, scale);
    sum.add(scale, codes.code);
    std::uint8_t high[kBlock];
    for (int c = 0; c < kBlock; ++c) {
      const int code = codes.code[c] ^ 0x80;
      high[c] = static_cast<std::uint8_t>(code >> kSplitBits);
      codes.code[c] = static_cast<std::uint8_t>(code & ((1 << kSplitBits) - 1));
    }
    write_planes(kSplitUpper, high, lane, upper);
    write_planes(kSplitLower, codes.code, lane, lower);
    upper += kSplitUpper.block_bytes();
    lower += kSplitLower.block_bytes();
  }
  out.slack[index] = sum.slack();
  return true;
}

}  // namespace

std::int64_t source_bytes(WeightType type, std::int64_t rows, std::int64_t columns) {
  return file_block_bytes(type) * (columns / block_columns(type)) * rows;
}

std::int64_t unit_bytes(WeightType type, std::int64_t columns) {
  const std::int64_t bytes = kUnitRows / kGroupRows * group_bytes(type, columns);
  return (bytes + 63) / 64 * 64;
}

std::int64_t lower_unit_bytes(WeightType type, std::int64_t columns) {
  if (type != WeightType::kQ8_0Split) return 0;
  return (kUnitRows / kGroupRows * lower_group_bytes(columns) + 63) / 64 * 64;
}

bool write_unit(const MatrixSource& source, std::int64_t unit, const UnitOutput& out) {
  const std::int64_t row_bytes = source_bytes(source.stored, 1, source.columns);
  std::memset(out.data, 0, static_cast<std::size_t>(unit_bytes(source.type, source.columns)));
  const std::int64_t lower_bytes = lower_unit_bytes(source.type, source.columns);
  if (lower_bytes > 0) std::memset(out.lower, 0, static_cast<std::size_t>(lower_bytes));
  for (int r = 0; r < kUnitRows; ++r) {
    const std::int64_t row = unit * kUnitRows + r;
    if (row >= source.rows) break;
    const std::uint8_t* data = source.data + source_row(source, row) * row_bytes;
    std::uint8_t* group = out.data + r / kGroupRows * group_bytes(source.type, source.columns);
    if (source.type == WeightType::kQ8_0Split) {
      if (!write_split_row(source, data, r, out)) return false;
    } else if (is_quantised(source.type)) {
      if (!write_quantised_row(source, data, r % kGroupRows, group)) return false;
    } else {
      write_float_row(source, data, r % kGroupRows, group);
    }
  }
  return true;
}

}  // namespace ultrafast
