#include "file_blocks.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "codebooks.h"

namespace ultrafast {

namespace {

// Bytes of one file block, and where its parts lie. −1: it has no such part.
struct FileBlock {
  int size;
  int half[2];  // float16 scale, minimum
  int low;      // codes or places in a codebook
  int high;     // further bits of them
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
    case WeightType::kQ8_0Split:  // of which no file has any
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
    case WeightType::kNVFP4:
      return {36, {-1, -1}, 4, -1, 0};
    case WeightType::kIQ1_S:
      return {50, {0, -1}, 2, 34, 34};
    case WeightType::kIQ1_M:
      return {56, {48, -1}, 0, 32, 48};
    case WeightType::kIQ2_XXS:
      return {66, {0, -1}, 2, -1, -1};
    case WeightType::kIQ2_XS:
      return {74, {0, -1}, 2, -1, 66};
    case WeightType::kIQ2_S:
      return {82, {0, -1}, 2, 66, 74};
    case WeightType::kIQ3_XXS:
      return {98, {0, -1}, 2, -1, 66};
    case WeightType::kIQ3_S:
      return {110, {0, -1}, 2, 66, 106};
    case WeightType::kTQ1_0:
      return {54, {52, -1}, 0, -1, -1};
    case WeightType::kTQ2_0:
      return {66, {64, -1}, 0, -1, -1};
    case WeightType::kQ1_0:
    case WeightType::kQ2_0:
      return {18, {0, -1}, 2, -1, -1};
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

// Digit of column c (of 256) of TQ1_0. A byte holds five columns as a fraction in base 3, the last four bytes four:
// after multiplying by 3^k the next digit is what would carry out of it.
std::uint8_t take_ternary_digit(const std::uint8_t* packed, int c) {
  constexpr int kPowers[5] = {1, 3, 9, 27, 81};
  const int byte = c < 160 ? c % 32 : c < 240 ? 32 + c % 16 : 48 + c % 4;
  const int digit = c < 160 ? c / 32 : c < 240 ? (c - 160) / 16 : (c - 240) / 4;
  return static_cast<std::uint8_t>((packed[byte] * kPowers[digit] & 255) * 3 >> 8);
}

std::uint32_t word_at(const std::uint8_t* p) { return p[0] | p[1] << 8u; }
std::uint32_t long_word_at(const std::uint8_t* p) { return word_at(p) | word_at(p + 2) << 16; }

// Eight signs stored as seven: the last makes their number even.
std::uint32_t eight_signs(std::uint32_t seven) { return seven | (std::popcount(seven) & 1u) << 7; }

// 2 × scale + 1: scales of the codebook types stand for odd numbers of steps.
std::uint8_t odd(std::uint32_t scale) { return static_cast<std::uint8_t>(2 * scale + 1); }

// A codebook's vector as codes: each element's place among the values, and `sign_bit` where bit c of `signs` is set.
void write_vector(std::uint32_t vector, int count, std::uint32_t signs, std::uint32_t sign_bit, std::uint8_t* code) {
  const int width = 16 / count;
  for (int c = 0; c < count; ++c) {
    const std::uint32_t place = vector >> (width * c) & ((1u << width) - 1);
    code[c] = static_cast<std::uint8_t>(place | (signs >> c & 1) * sign_bit);
  }
}

// Block i of IQ1_S and IQ1_M: four vectors of eight of one book, shifted by an eighth up or down: IQ1_S all alike,
// IQ1_M each by its own bit, which goes into the codes as a sign does.
void take_book_1_block(WeightType type, const std::uint8_t* low, const std::uint8_t* high, int i, BlockCodes& out) {
  const bool alike = type == WeightType::kIQ1_S;
  const std::uint32_t tops = word_at(high + 2 * i);
  for (int v = 0; v < 4; ++v) {
    const std::uint32_t top = tops >> ((alike ? 3 : 4) * v);
    const std::uint32_t down = !alike && (top & 8) ? 255 : 0;
    write_vector(kIQ1_SBook[low[4 * i + v] | (top & 7) << 8], 8, down, 4, out.code + 8 * v);
  }
  if (alike) {
    const std::uint8_t scale = odd(tops >> 12 & 7);
    out.bytes[0] = tops >> 15 ? static_cast<std::uint8_t>(-scale) : scale;
  }
}

// Block i of IQ2: four vectors of eight.
void take_book_2_block(WeightType type, const std::uint8_t* low, const std::uint8_t* high, int i, BlockCodes& out) {
  const std::uint32_t packed = long_word_at(low + 8 * i + 4);  // IQ2_XXS: seven signs a vector, the block's scale
  for (int v = 0; v < 4; ++v) {
    std::uint32_t vector = 0;
    std::uint32_t signs = 0;
    if (type == WeightType::kIQ2_XXS) {
      vector = kIQ2_XXSBook[low[8 * i + v]];
      signs = eight_signs(packed >> (7 * v) & 127);
    } else if (type == WeightType::kIQ2_XS) {
      const std::uint32_t word = word_at(low + 8 * i + 2 * v);
      vector = kIQ2_XSBook[word & 511];
      signs = eight_signs(word >> 9);
    } else {
      vector = kIQ2_SBook[low[4 * i + v] | (high[i] >> (2 * v) & 3) << 8];
      signs = low[32 + 4 * i + v];
    }
    write_vector(vector, 8, signs, 4, out.code + 8 * v);
  }
  if (type == WeightType::kIQ2_XXS) out.bytes[0] = odd(packed >> 28);
}

// Block i of IQ3: eight vectors of four.
void take_book_3_block(WeightType type, const std::uint8_t* data, const FileBlock& file, int i, BlockCodes& out) {
  const std::uint8_t* low = data + file.low + 8 * i;
  const bool small = type == WeightType::kIQ3_XXS;
  const std::uint32_t packed = small ? long_word_at(data + file.scales + 4 * i) : 0;  // as in IQ2_XXS
  for (int v = 0; v < 8; ++v) {
    const std::uint32_t top = small ? 0 : data[file.high + i] >> v & 1;
    const std::uint32_t eight = small ? eight_signs(packed >> (v / 2 * 7) & 127) : data[file.high + 8 + 4 * i + v / 2];
    const std::uint32_t vector = small ? kIQ3_XXSBook[low[v]] : kIQ3_SBook[low[v] | top << 8];
    write_vector(vector, 4, eight >> (v % 2 * 4), 8, out.code + 4 * v);
  }
  out.bytes[0] = odd(small ? packed >> 28 : data[file.scales + i / 2] >> (4 * (i % 2)) & 15u);
}

// Block i (of 8) of the types with codebooks.
void take_book_block(WeightType type, const std::uint8_t* data, int i, BlockCodes& out) {
  const FileBlock file = file_block(type);
  const std::uint8_t* low = data + file.low;
  const std::uint8_t* scales = data + file.scales;
  switch (type) {
    case WeightType::kIQ1_S:
    case WeightType::kIQ1_M:
      take_book_1_block(type, low, data + file.high, i, out);
      if (type == WeightType::kIQ1_S) return;
      for (int h = 0; h < 2; ++h) out.bytes[h] = odd(word_at(scales + i / 2 * 2) >> (i % 2 * 6 + 3 * h) & 7);
      return;
    case WeightType::kIQ3_XXS:
    case WeightType::kIQ3_S:
      return take_book_3_block(type, data, file, i, out);
    default:
      take_book_2_block(type, low, data + file.high, i, out);
      if (type == WeightType::kIQ2_XXS) return;
      for (int h = 0; h < 2; ++h) out.bytes[h] = odd(scales[i] >> (4 * h) & 15u);
  }
}

// Block i of a file block of more than 32 columns.
void take_long_block(WeightType type, const std::uint8_t* data, int i, BlockCodes& out) {
  const FileBlock file = file_block(type);
  const std::uint8_t* scales = data + file.scales;
  const std::uint8_t* low = data + file.low;
  const std::uint8_t* high = data + file.high;
  switch (type) {
    case WeightType::kQ2_K:
    case WeightType::kQ3_K:
    case WeightType::kTQ2_0:
      for (int c = 0; c < kBlock; ++c) out.code[c] = low[i / 4 * 32 + c] >> (2 * (i % 4)) & 3;
      if (type == WeightType::kQ2_K) std::copy_n(scales + 2 * i, 2, out.bytes);
      if (type != WeightType::kQ3_K) return;
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
    case WeightType::kTQ1_0:
      for (int c = 0; c < kBlock; ++c) out.code[c] = take_ternary_digit(low, kBlock * i + c);
      return;
    case WeightType::kQ2_0:
      for (int c = 0; c < kBlock; ++c) out.code[c] = low[8 * i + c / 4] >> (2 * (c % 4)) & 3;
      return;
    case WeightType::kQ1_0:
      for (int c = 0; c < kBlock; ++c) out.code[c] = low[4 * i + c / 8] >> (c % 8) & 1;
      return;
    case WeightType::kNVFP4:
      for (int h = 0; h < 2; ++h) {
        const std::uint8_t* nibbles = low + 8 * (2 * i + h);
        for (int c = 0; c < 16; ++c) out.code[16 * h + c] = nibbles[c % 8] >> (c / 8 * 4) & 15;
        const std::uint8_t scale = scales[2 * i + h];
        out.bytes[h] = scale == 0x7f ? 0 : scale & 0x7f;  // the format's NaN counts as zero, its sign not at all
      }
      return;
    case WeightType::kIQ4_XS: {  // 16 high bits, then 4 bytes of nibbles
      take_nibbles(low + 16 * i, out.code);
      const int tops = scales[0] | scales[1] << 8;
      const int nibble = scales[2 + i / 2] >> (4 * (i % 2)) & 15;
      out.bytes[0] = static_cast<std::uint8_t>((nibble | (tops >> (2 * i) & 3) << 4) - 32);
      return;
    }
    default:
      return take_book_block(type, data, i, out);
  }
}

}  // namespace

int file_block_bytes(WeightType type) { return file_block(type).size; }

void take_half(WeightType type, const std::uint8_t* data, int half, std::uint8_t* out) {
  const std::uint8_t* at = data + file_block(type).half[half];
  if (type != WeightType::kIQ1_M) {
    std::memcpy(out, at, 2);
    return;
  }
  // Four bits of it on top of each word of scales, the lowest first.
  out[0] = static_cast<std::uint8_t>(at[1] >> 4 | (at[3] & 0xf0));
  out[1] = static_cast<std::uint8_t>(at[5] >> 4 | (at[7] & 0xf0));
}

void take_block(WeightType type, const std::uint8_t* data, int i, BlockCodes& out) {
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

}  // namespace ultrafast
