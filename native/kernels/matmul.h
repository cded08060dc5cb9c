// Matrix products: a vector lane is an output row.
//
// Quantised weights: each block of 32 is an exact integer dot; the float terms are added in ascending block order, one
// chain, multiply then add (exactness rule 1). Float weights: float32 activations, ascending column, one chain (rule
// 2). Nothing depends on how many activation rows share an unpacking, so tiles may take any height.
#pragma once

#include "formats.h"

namespace ultrafast::ULTRAFAST_ISA {

// The running sums of a group for kRows activation rows.
template <int kRows>
struct Tile {
  F32 at[kGroupVectors][kRows];

  __attribute__((always_inline)) Tile() {
    for (int v = 0; v < kGroupVectors; ++v)
      for (int r = 0; r < kRows; ++r) at[v][r] = zero();
  }

  __attribute__((always_inline)) void emit(const LinearArguments& a, int first_row, float* output) const {
    for (int v = 0; v < kGroupVectors; ++v) {
      for (int r = 0; r < kRows; ++r) {
        float* out = output + (first_row + r) * a.output_stride + v * kLanes;
        store(out, a.epilogue == Epilogue::kAdd ? add(load(out), at[v][r]) : at[v][r]);
      }
    }
  }
};

// The integer dots of one block for a tile: a quad of columns at a time, so that no more than the sums and one quad's
// codes are held in registers. A block's halves are kept apart only where each has a scale of its own.
template <WeightType kType, int kRows>
struct BlockDots {
  static constexpr int kHalves = has_half_scales(kType) ? 2 : 1;
  static constexpr int kPeriod = quads_between_widening(kType);
  ShortDot narrow[kGroupVectors][kRows];
  I32 wide[kGroupVectors][kRows][kHalves];

  // The whole block: a StoredBlock, or what gives its quads alike.
  template <class Block>
  ULTRAFAST_METHOD void take(const Block& block, const Activation* rows, std::int64_t column) {
    step<0>(block, rows, column);
    step<1>(block, rows, column);
    step<2>(block, rows, column);
    step<3>(block, rows, column);
    step<4>(block, rows, column);
    step<5>(block, rows, column);
    step<6>(block, rows, column);
    step<7>(block, rows, column);
  }

  // Columns 4 × kQuad.. of the block.
  template <int kQuad, class Block>
  ULTRAFAST_METHOD void step(const Block& block, const Activation* rows, std::int64_t column) {
    U8 codes[kGroupVectors];
    for (int v = 0; v < kGroupVectors; ++v) codes[v] = block.template quad<kQuad>(v);
    for (int r = 0; r < kRows; ++r) {
      const Quad activations = broadcast_quad(rows[r].bytes + column + 4 * kQuad);
      for (int v = 0; v < kGroupVectors; ++v) {
        I32& sum = wide[v][r][kHalves == 2 ? kQuad / 4 : 0];
        constexpr int kQuadOfSum = kQuad % (8 / kHalves);
        if constexpr (has_signed_codes(kType)) {
          put<kQuadOfSum == 0>(sum, byte_dot(codes[v], magnitude(codes[v]), activations));
        } else {
          put<kQuad % kPeriod == 0>(narrow[v][r], short_dot(codes[v], activations));
          if constexpr (kQuad % kPeriod == kPeriod - 1) put<kQuadOfSum == kPeriod - 1>(sum, widen(narrow[v][r]));
        }
      }
    }
  }

  template <bool kFirst, class Sum>
  ULTRAFAST_INLINE void put(Sum& sum, Sum x) {
    if constexpr (kFirst) {
      sum = x;
    } else {
      accumulate(sum, x);
    }
  }

  ULTRAFAST_METHOD HalfDots finish(int v, int r) {
    return {wide[v][r][0], kHalves == 2 ? wide[v][r][kHalves - 1] : set1_int(0)};
  }
};

// Weights come from memory once a step and go: fetched ahead, and marked as not worth keeping, they leave the caches to
// activations, keys and the program. The distance is the best of those tried on one machine. With more rows than a few
// a unit is read several times, so it is worth keeping.
constexpr int kStreamedRows = 8;
constexpr std::int64_t kStreamBytes = 1536;

ULTRAFAST_INLINE bool is_streamed(const LinearArguments& a, int first_row) {
  return a.rows <= kStreamedRows && first_row == 0;
}

ULTRAFAST_INLINE void stream_ahead(const void* weights, std::int64_t byte_count) {
  const auto* ahead = static_cast<const std::uint8_t*>(weights) + kStreamBytes;
  for (std::int64_t at = 0; at < byte_count; at += 64) prefetch_once(ahead + at);
}

template <int kRows, WeightType kType>
ULTRAFAST_INLINE void quantised_rows(const LinearArguments& a, const std::uint8_t* group, int first_row,
                                     float* output) {
  constexpr BlockFormat kFormat = block_format(kType);
  Tile<kRows> sums;
  const bool streamed = is_streamed(a, first_row);
  const Activation* rows = a.activations + first_row;
  const std::int64_t blocks = a.columns / kBlock;
  const std::uint8_t* block = group;
  for (std::int64_t b = 0; b < blocks;) {
    const std::uint8_t* header = block;
    block += kFormat.header_bytes();
    for (int i = 0; i < kFormat.blocks; ++i, ++b, block += kFormat.block_bytes()) {
      if (streamed) stream_ahead(block, kFormat.block_bytes());
      BlockDots<kType, kRows> dots;
      dots.take(StoredBlock<kType>{block}, rows, b * kBlock);
      for (int v = 0; v < kGroupVectors; ++v) {
        const BlockScale scale = load_scale<kType>(header, block, v);
        for (int r = 0; r < kRows; ++r) {
          sums.at[v][r] = add_block<kType>(sums.at[v][r], scale, dots.finish(v, r), rows[r], b);
        }
      }
    }
  }
  sums.emit(a, first_row, output);
}

// Float groups are [column][16 rows] of the stored type.
struct Float32 {
  using Element = float;
  ULTRAFAST_INLINE F32 at(const Element* p) { return load(p); }
};
struct Float16 {
  using Element = std::uint16_t;
  ULTRAFAST_INLINE F32 at(const Element* p) { return load_half(p); }
};
struct Bfloat16 {
  using Element = std::uint16_t;
  ULTRAFAST_INLINE F32 at(const Element* p) { return load_bfloat(p); }
};

template <int kRows, class Format>
ULTRAFAST_INLINE void float_rows(const LinearArguments& a, const std::uint8_t* group, int first_row, float* output) {
  Tile<kRows> sums;
  const bool streamed = is_streamed(a, first_row);
  const Activation* rows = a.activations + first_row;
  const auto* weights = reinterpret_cast<const typename Format::Element*>(group);
  for (std::int64_t c = 0; c < a.columns; ++c, weights += kGroupRows) {
    if (streamed) stream_ahead(weights, kGroupRows * sizeof *weights);
    for (int v = 0; v < kGroupVectors; ++v) {
      const F32 weight = Format::at(weights + v * kLanes);
      for (int r = 0; r < kRows; ++r) sums.at[v][r] = add(sums.at[v][r], mul(weight, set1(rows[r].values[c])));
    }
  }
  sums.emit(a, first_row, output);
}

// Calls rows<kRows>(first row) until a group is done for all activation rows. A tile takes all vectors of the group, so
// that each activation is fetched once for them.
template <class Rows>
ULTRAFAST_INLINE void each_tile(std::int32_t count, const Rows& rows) {
  int row = 0;
  if constexpr (kSharesUnpacking) {
    for (; row + 4 <= count; row += 4) rows.template operator()<4>(row);
    for (; row + 2 <= count; row += 2) rows.template operator()<2>(row);
  }
  for (; row < count; ++row) rows.template operator()<1>(row);
}

template <WeightType kType>
static void quantised_linear(const LinearArguments& a, const std::uint8_t* group, float* output) {
  each_tile(a.rows, [&]<int kRows>(int row) ULTRAFAST_LAMBDA { quantised_rows<kRows, kType>(a, group, row, output); });
}

static void linear_group(const LinearArguments& a, int group);  // split.h

template <class Format>
static void float_linear(const LinearArguments& a, const std::uint8_t* group, float* output) {
  each_tile(a.rows, [&]<int kRows>(int row) ULTRAFAST_LAMBDA { float_rows<kRows, Format>(a, group, row, output); });
}

static void group_linear(const LinearArguments& a, int index) {
  const std::uint8_t* group = a.unit + index * group_bytes(a.type, a.columns);
  float* output = a.output + index * kGroupRows;
  switch (a.type) {
    case WeightType::kF32:
      return float_linear<Float32>(a, group, output);
    case WeightType::kF16:
      return float_linear<Float16>(a, group, output);
    case WeightType::kBF16:
      return float_linear<Bfloat16>(a, group, output);
    case WeightType::kQ8_0:
      return quantised_linear<WeightType::kQ8_0>(a, group, output);
    case WeightType::kQ4_0:
      return quantised_linear<WeightType::kQ4_0>(a, group, output);
    case WeightType::kQ4_1:
      return quantised_linear<WeightType::kQ4_1>(a, group, output);
    case WeightType::kQ5_0:
      return quantised_linear<WeightType::kQ5_0>(a, group, output);
    case WeightType::kQ5_1:
      return quantised_linear<WeightType::kQ5_1>(a, group, output);
    case WeightType::kQ2_K:
      return quantised_linear<WeightType::kQ2_K>(a, group, output);
    case WeightType::kQ3_K:
      return quantised_linear<WeightType::kQ3_K>(a, group, output);
    case WeightType::kQ4_K:
      return quantised_linear<WeightType::kQ4_K>(a, group, output);
    case WeightType::kQ5_K:
      return quantised_linear<WeightType::kQ5_K>(a, group, output);
    case WeightType::kQ6_K:
      return quantised_linear<WeightType::kQ6_K>(a, group, output);
    case WeightType::kIQ4_NL:
      return quantised_linear<WeightType::kIQ4_NL>(a, group, output);
    case WeightType::kIQ4_XS:
      return quantised_linear<WeightType::kIQ4_XS>(a, group, output);
    case WeightType::kMXFP4:
      return quantised_linear<WeightType::kMXFP4>(a, group, output);
    case WeightType::kNVFP4:
      return quantised_linear<WeightType::kNVFP4>(a, group, output);
    case WeightType::kIQ1_S:
      return quantised_linear<WeightType::kIQ1_S>(a, group, output);
    case WeightType::kIQ1_M:
      return quantised_linear<WeightType::kIQ1_M>(a, group, output);
    case WeightType::kIQ2_XXS:
      return quantised_linear<WeightType::kIQ2_XXS>(a, group, output);
    case WeightType::kIQ2_XS:  // laid out alike
    case WeightType::kIQ2_S:
      return quantised_linear<WeightType::kIQ2_S>(a, group, output);
    case WeightType::kIQ3_XXS:
      return quantised_linear<WeightType::kIQ3_XXS>(a, group, output);
    case WeightType::kIQ3_S:
      return quantised_linear<WeightType::kIQ3_S>(a, group, output);
    case WeightType::kTQ1_0:  // laid out alike
    case WeightType::kTQ2_0:
      return quantised_linear<WeightType::kTQ2_0>(a, group, output);
    case WeightType::kQ2_0:
      return quantised_linear<WeightType::kQ2_0>(a, group, output);
    case WeightType::kQ1_0:
      return quantised_linear<WeightType::kQ1_0>(a, group, output);
    case WeightType::kQ8_0Split:
      return linear_group(a, index);
  }
}

static void linear(const LinearArguments& a) {
  for (int g = 0; g < kUnitRows / kGroupRows; ++g) group_linear(a, g);
}

}  // namespace ultrafast::ULTRAFAST_ISA
