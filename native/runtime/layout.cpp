#include "layout.h"

#include <algorithm>
#include <cstring>

#include "quantise.h"

namespace ultrafast {

namespace {

std::int64_t source_row(const MatrixSource& source, std::int64_t row) {
  const std::int64_t size = source.interleaved_head_size;
  if (size == 0) return row;
  const std::int64_t within = row % size;
  return row - within + (within < size / 2 ? 2 * within : 2 * (within - size / 2) + 1);
}

// One row's block of 32 columns, taken out of the file's own form.
struct Codes {
  std::uint8_t code[kBlock];
  std::uint8_t bytes[2];  // as block_format's `bytes`
};

// Bytes of one file block (32 or 256 columns), and where its parts lie. −1: it has no such part.
struct FileBlock {
  int size;
  int half[2];  // float16 scale, minimum
  int low;      // codes: bytes of nibbles or of two-bit fields
  int high;     // further bits
  int scales;   // packed block scales
};

FileBlock file_block(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return {4, {-1, -1}, 0, -1, -1};
    case WeightType::kF16:
    case WeightType::kBF16:
      return {2, {-1, -1}, 0, -1, -1};
    case WeightType::kQ8_0:
      return {34, {0, -1}, 2, -1, -1};
    case WeightType::kQ4_0:
    case WeightType::kIQ4_NL:
      return {18, {0, -1}, 2, -1, -1};
    case WeightType::kQ4_1:
      return {20, {0, 2}, 4, -1, -1};
    case WeightType::kQ5_0:
      return {22, {0, -1}, 6, 2, -1};
    case WeightType::kQ5_1:
      return {24, {0, 2}, 8, 4, -1};
    case WeightType::kQ2_K:
      return {84, {80, 82}, 16, -1, 0};
    case WeightType::kQ3_K:
      return {110, {108, -1}, 32, 0, 96};
    case WeightType::kQ4_K:
      return {144, {0, 2}, 16, -1, 4};
    case WeightType::kQ5_K:
      return {176, {0, 2}, 48, 16, 4};
    case WeightType::kQ6_K:
      return {210, {208, -1}, 0, 128, 192};
    case WeightType::kIQ4_XS:
      return {136, {0, -1}, 8, -1, 2};
    case WeightType::kMXFP4:
      return {17, {-1, -1}, 1, -1, 0};
  }
  return {};
}

// 32 codes of four bits: column c in the low nibble of byte c, column c + 16 in the high one.
void take_nibbles(const std::uint8_t* low, std::uint8_t* code) {
  for (int c = 0; c < 16; ++c) {
    code[c] = low[c] & 15;
    code[c + 16] = low[c] >> 4;
  }
}

// Six-bit scale and minimum of block i of Q4_K and Q5_K, packed in 12 bytes.
void take_six_bit_pair(const std::uint8_t* packed, int i, std::uint8_t* out) {
  if (i < 4) {
    out[0] = packed[i] & 63;
    out[1] = packed[i + 4] & 63;
  } else {
    out[0] = static_cast<std::uint8_t>((packed[i + 4] & 15) | (packed[i - 4] >> 6 << 4));
    out[1] = static_cast<std::uint8_t>((packed[i + 4] >> 4) | (packed[i] >> 6 << 4));
  }
}

// Signed six-bit scale of half block i of Q3_K: low nibbles in 8 bytes, two high bits in the 4 after them.
std::uint8_t take_signed_six_bits(const std::uint8_t* packed, int i) {
  const int low = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4;
  const int high = packed[8 + i % 4] >> (2 * (i / 4)) & 3;
  return static_cast<std::uint8_t>((low | high << 4) - 32);
}

// Block i (of 8) of a file block of 256 columns.
void take_long_block(WeightType type, const std::uint8_t* data, int i, Codes& out) {
  const FileBlock file = file_block(type);
  const std::uint8_t* scales = data + file.scales;
  const std::uint8_t* low = data + file.low;
  const std::uint8_t* high = data + file.high;
  switch (type) {
    case WeightType::kQ2_K:
    case WeightType::kQ3_K:
      for (int c = 0; c < kBlock; ++c) out.code[c] = low[i / 4 * 32 + c] >> (2 * (i % 4)) & 3;
      if (type == WeightType::kQ2_K) {
        std::copy_n(scales + 2 * i, 2, out.bytes);
        return;
      }
      for (int c = 0; c < kBlock; ++c) out.code[c] |= static_cast<std::uint8_t>((high[c] >> i & 1) << 2);
      for (int h = 0; h < 2; ++h) out.bytes[h] = take_signed_six_bits(scales, 2 * i + h);
      return;
    case WeightType::kQ4_K:
    case WeightType::kQ5_K:
      for (int c = 0; c < kBlock; ++c) out.code[c] = low[i / 2 * 32 + c] >> (4 * (i % 2)) & 15;
      if (type == WeightType::kQ5_K) {
        for (int c = 0; c < kBlock; ++c) out.code[c] |= static_cast<std::uint8_t>((high[c] >> i & 1) << 4);
      }
      take_six_bit_pair(scales, i, out.bytes);
      return;
    case WeightType::kQ6_K:
      for (int c = 0; c < kBlock; ++c) {
        const int nibble = low[i / 4 * 64 + i % 2 * 32 + c] >> (i % 4 / 2 * 4) & 15;
        out.code[c] = static_cast<std::uint8_t>(nibble | (high[i / 4 * 32 + c] >> (2 * (i % 4)) & 3) << 4);
      }
      std::copy_n(scales + 2 * i, 2, out.bytes);
      return;
    default: {  // IQ4_XS: 16 high bits, then 4 bytes of nibbles
      take_nibbles(low + 16 * i, out.code);
      const int tops = scales[0] | scales[1] << 8;
      const int nibble = scales[2 + i / 2] >> (4 * (i % 2)) & 15;
      out.bytes[0] = static_cast<std::uint8_t>((nibble | (tops >> (2 * i) & 3) << 4) - 32);
      return;
    }
  }
}

void take_block(WeightType type, const std::uint8_t* data, int i, Codes& out) {
  const FileBlock file = file_block(type);
  if (block_format(type).blocks > 1) return take_long_block(type, data, i, out);
  if (type == WeightType::kQ8_0) {
    std::copy_n(data + file.low, kBlock, out.code);
    return;
  }
  take_nibbles(data + file.low, out.code);
  if (type == WeightType::kMXFP4) out.bytes[0] = data[file.scales];
  if (file.high < 0) return;
  for (int c = 0; c < kBlock; ++c) {
    out.code[c] |= static_cast<std::uint8_t>((data[file.high + c / 8] >> (c % 8) & 1) << 4);
  }
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
    } else {
      merge_quad(out + j / 4 * kQuadBytes, (quad & 3 * kEach) << (j % 4 * 2));
    }
    const std::uint32_t rest = quad >> format.low_bits;
    if (format.high_bits == 1) merge_quad(high, (rest & kEach) << j);
    if (format.high_bits == 2) merge_quad(high + j / 4 * kQuadBytes, (rest & 3 * kEach) << (j % 4 * 2));
  }
}

void write_float_row(const MatrixSource& source, const std::uint8_t* row, int lane, std::uint8_t* group) {
  const std::int64_t size = file_block(source.type).size;
  for (std::int64_t c = 0; c < source.columns; ++c) {
    std::memcpy(group + (c * kGroupRows + lane) * size, row + c * size, static_cast<std::size_t>(size));
  }
}

bool write_quantised_row(const MatrixSource& source, const std::uint8_t* row, int lane, std::uint8_t* group) {
  const BlockFormat format = block_format(source.type);
  const FileBlock file = file_block(source.type);
  const std::int64_t columns = block_columns(source.type);
  const std::int64_t stored_bytes = source_bytes(source.stored, 1, columns);
  Codes codes;
  std::uint8_t quantised[kMostQuantisedBytes];
  for (std::int64_t b = 0; b < source.columns / columns; ++b, row += stored_bytes) {
    const std::uint8_t* block = row;
    if (source.stored != source.type) {
      if (!quantise_block(source.stored, row, source.type, quantised)) return false;
      block = quantised;
    }
    for (int h = 0; h < format.header_halves; ++h, group += 2 * kGroupRows) {
      std::memcpy(group + 2 * lane, block + file.half[h], 2);
    }
    for (int i = 0; i < format.blocks; ++i) {
      take_block(source.type, block, i, codes);
      write_planes(format, codes.code, lane, group);
      group += format.quant_bytes();
      for (int h = 0; h < format.halves; ++h, group += 2 * kGroupRows) {
        std::memcpy(group + 2 * lane, block + file.half[h], 2);
      }
      for (int k = 0; k < format.bytes; ++k, group += kGroupRows) group[lane] = codes.bytes[k];
    }
  }
  return true;
}

}  // namespace

std::int64_t source_bytes(WeightType type, std::int64_t rows, std::int64_t columns) {
  return file_block(type).size * (columns / block_columns(type)) * rows;
}

std::int64_t unit_bytes(WeightType type, std::int64_t columns) {
  const std::int64_t bytes = kUnitRows / kGroupRows * group_bytes(type, columns);
  return (bytes + 63) / 64 * 64;
}

bool write_unit(const MatrixSource& source, std::int64_t unit, std::uint8_t* out) {
  const std::int64_t row_bytes = source_bytes(source.stored, 1, source.columns);
  std::memset(out, 0, static_cast<std::size_t>(unit_bytes(source.type, source.columns)));
  for (int r = 0; r < kUnitRows; ++r) {
    const std::int64_t row = unit * kUnitRows + r;
    if (row >= source.rows) break;
    const std::uint8_t* data = source.data + source_row(source, row) * row_bytes;
    std::uint8_t* group = out + r / kGroupRows * group_bytes(source.type, source.columns);
    if (is_quantised(source.type)) {
      if (!write_quantised_row(source, data, r % kGroupRows, group)) return false;
    } else {
      write_float_row(source, data, r % kGroupRows, group);
    }
  }
  return true;
}

}  // namespace ultrafast
