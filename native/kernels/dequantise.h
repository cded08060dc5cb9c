// One stored row as float32, for the embedding: the same values as the file's, one product and at most one sum each.
#pragma once

#include "formats.h"
#include "matmul.h"

namespace ultrafast::ULTRAFAST_ISA {

// Codes of one row's block, looked up where they are indices, without their offset.
template <WeightType kType, class Block>
ULTRAFAST_INLINE void row_codes(const Block& block, int lane, float* codes) {
  const int vector = lane / kLanes;
  const U8 quads[8] = {block.template quad<0>(vector), block.template quad<1>(vector), block.template quad<2>(vector),
                       block.template quad<3>(vector), block.template quad<4>(vector), block.template quad<5>(vector),
                       block.template quad<6>(vector), block.template quad<7>(vector)};
  for (int quad = 0; quad < 8; ++quad) {
    alignas(32) std::uint8_t bytes[kQuadVector];
    store_bytes(bytes, quads[quad]);
    for (int c = 0; c < 4; ++c) {
      const std::uint8_t byte = bytes[4 * (lane % kLanes) + c];
      codes[4 * quad + c] = has_signed_codes(kType) ? static_cast<float>(static_cast<std::int8_t>(byte))
                                                    : static_cast<float>(byte - code_offset(kType));
    }
  }
}

ULTRAFAST_INLINE float lane_of(F32 x, int lane) {
  alignas(32) float lanes[kLanes];
  store(lanes, x);
  return lanes[lane % kLanes];
}

template <WeightType kType>
static void dequantise_blocks(const std::uint8_t* group, int lane, std::int64_t columns, float* out) {
  constexpr BlockFormat kFormat = block_format(kType);
  const std::uint8_t* block = group;
  for (std::int64_t b = 0; b < columns / kBlock;) {
    const std::uint8_t* header = block;
    block += kFormat.header_bytes();
    for (int i = 0; i < kFormat.blocks; ++i, ++b, block += kFormat.block_bytes(), out += kBlock) {
      row_codes<kType>(StoredBlock<kType>{block}, lane, out);
      const BlockScale s = load_scale<kType>(header, block, lane / kLanes);
      const float scale = lane_of(s.scale, lane);
      for (int c = 0; c < kBlock; ++c) {
        if constexpr (has_half_scales(kType)) {
          out[c] = scale * lane_of(s.halves[c / 16], lane) * out[c];
          if constexpr (kType == WeightType::kQ2_K) {
            out[c] = out[c] + lane_of(s.minimum, lane) * lane_of(s.half_minima[c / 16], lane);
          }
        } else {
          out[c] = scale * out[c];
          if constexpr (has_minimum(kType)) out[c] = out[c] + lane_of(s.minimum, lane);
        }
      }
    }
  }
}

static void dequantise_split(const std::uint8_t* upper, const std::uint8_t* lower, int lane, std::int64_t columns,
                             float* out) {
  SplitBlock block{upper, lower};
  for (std::int64_t b = 0; b < columns / kBlock; ++b, out += kBlock) {
    row_codes<WeightType::kQ8_0>(block, lane, out);
    const BlockScale s = load_scale<WeightType::kQ5_0>(block.upper, block.upper, lane / kLanes);
    const float scale = lane_of(s.scale, lane);
    for (int c = 0; c < kBlock; ++c) out[c] = scale * out[c];
    block.upper += kSplitUpper.block_bytes();
    block.lower += kSplitLower.block_bytes();
  }
}

template <class Format>
static void widen_row(const std::uint8_t* group, int lane, std::int64_t columns, float* out) {
  const auto* weights = reinterpret_cast<const typename Format::Element*>(group) + lane / kLanes * kLanes;
  for (std::int64_t c = 0; c < columns; ++c) out[c] = lane_of(Format::at(weights + c * kGroupRows), lane);
}

static void dequantise_row(WeightType type, const std::uint8_t* unit, const std::uint8_t* lower, std::int32_t row,
                           std::int64_t columns, float* out) {
  const std::uint8_t* group = unit + row / kGroupRows * group_bytes(type, columns);
  const int lane = row % kGroupRows;
  switch (type) {
    case WeightType::kF32:
      return widen_row<Float32>(group, lane, columns, out);
    case WeightType::kF16:
      return widen_row<Float16>(group, lane, columns, out);
    case WeightType::kBF16:
      return widen_row<Bfloat16>(group, lane, columns, out);
    case WeightType::kQ8_0:
      return dequantise_blocks<WeightType::kQ8_0>(group, lane, columns, out);
    case WeightType::kQ4_0:
      return dequantise_blocks<WeightType::kQ4_0>(group, lane, columns, out);
    case WeightType::kQ4_1:
      return dequantise_blocks<WeightType::kQ4_1>(group, lane, columns, out);
    case WeightType::kQ5_0:
      return dequantise_blocks<WeightType::kQ5_0>(group, lane, columns, out);
    case WeightType::kQ5_1:
      return dequantise_blocks<WeightType::kQ5_1>(group, lane, columns, out);
    case WeightType::kQ2_K:
      return dequantise_blocks<WeightType::kQ2_K>(group, lane, columns, out);
    case WeightType::kQ3_K:
      return dequantise_blocks<WeightType::kQ3_K>(group, lane, columns, out);
    case WeightType::kQ4_K:
      return dequantise_blocks<WeightType::kQ4_K>(group, lane, columns, out);
    case WeightType::kQ5_K:
      return dequantise_blocks<WeightType::kQ5_K>(group, lane, columns, out);
    case WeightType::kQ6_K:
      return dequantise_blocks<WeightType::kQ6_K>(group, lane, columns, out);
    case WeightType::kIQ4_NL:
      return dequantise_blocks<WeightType::kIQ4_NL>(group, lane, columns, out);
    case WeightType::kIQ4_XS:
      return dequantise_blocks<WeightType::kIQ4_XS>(group, lane, columns, out);
    case WeightType::kMXFP4:
      return dequantise_blocks<WeightType::kMXFP4>(group, lane, columns, out);
    case WeightType::kNVFP4:
      return dequantise_blocks<WeightType::kNVFP4>(group, lane, columns, out);
    case WeightType::kIQ1_S:
      return dequantise_blocks<WeightType::kIQ1_S>(group, lane, columns, out);
    case WeightType::kIQ1_M:
      return dequantise_blocks<WeightType::kIQ1_M>(group, lane, columns, out);
    case WeightType::kIQ2_XXS:
      return dequantise_blocks<WeightType::kIQ2_XXS>(group, lane, columns, out);
    case WeightType::kIQ2_XS:  // laid out alike
    case WeightType::kIQ2_S:
      return dequantise_blocks<WeightType::kIQ2_S>(group, lane, columns, out);
    case WeightType::kIQ3_XXS:
      return dequantise_blocks<WeightType::kIQ3_XXS>(group, lane, columns, out);
    case WeightType::kIQ3_S:
      return dequantise_blocks<WeightType::kIQ3_S>(group, lane, columns, out);
    case WeightType::kTQ1_0:  // laid out alike
    case WeightType::kTQ2_0:
      return dequantise_blocks<WeightType::kTQ2_0>(group, lane, columns, out);
    case WeightType::kQ2_0:
      return dequantise_blocks<WeightType::kQ2_0>(group, lane, columns, out);
    case WeightType::kQ1_0:
      return dequantise_blocks<WeightType::kQ1_0>(group, lane, columns, out);
    case WeightType::kQ8_0Split:
      return dequantise_split(group, lower + row / kGroupRows * lower_group_bytes(columns), lane, columns, out);
  }
}

}  // namespace ultrafast::ULTRAFAST_ISA
