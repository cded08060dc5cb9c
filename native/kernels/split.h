// Products with kQ8_0Split: exact ones, of the bits that kQ8_0 gives, and those of its upper parts, which bound them.
#pragma once

#include "matmul.h"

namespace ultrafast::ULTRAFAST_ISA {

// An upper code stands for the middle of the values that share it: 8 × code + 3.5 − 128, of which this is twice the
// constant part.
constexpr int kTwiceUpperOffset = 2 * 128 - ((1 << kSplitBits) - 1);
// Both terms of a block's dot stay below 2^24, so that it is exact in float32.
static_assert((31 << (kSplitBits + 1)) * 127 * kBlock < 1 << 24 && kTwiceUpperOffset * 127 * kBlock < 1 << 24);

template <int kRows>
ULTRAFAST_INLINE void exact_split_rows(const LinearArguments& a, const std::uint8_t* upper, const std::uint8_t* lower,
                                       int first_row, float* output) {
  Tile<kRows> sums;
  const bool streamed = is_streamed(a, first_row);
  const Activation* rows = a.activations + first_row;
  for (std::int64_t b = 0; b < a.columns / kBlock; ++b) {
    if (streamed) {
      stream_ahead(upper, kSplitUpper.block_bytes());
      stream_ahead(lower, kSplitLower.block_bytes());
    }
    BlockDots<WeightType::kQ8_0, kRows> dots;
    dots.take(SplitBlock{upper, lower}, rows, b * kBlock);
    for (int v = 0; v < kGroupVectors; ++v) {
      const BlockScale scale = load_scale<WeightType::kQ5_0>(upper, upper, v);
      for (int r = 0; r < kRows; ++r) {
        sums.at[v][r] = add_block<WeightType::kQ8_0>(sums.at[v][r], scale, dots.finish(v, r), rows[r], b);
      }
    }
    upper += kSplitUpper.block_bytes();
    lower += kSplitLower.block_bytes();
  }
  sums.emit(a, first_row, output);
}

template <int kRows>
ULTRAFAST_INLINE void upper_rows(const LinearArguments& a, const std::uint8_t* upper, int first_row, float* output) {
  Tile<kRows> sums;
  const bool streamed = is_streamed(a, first_row);
  const Activation* rows = a.activations + first_row;
  for (std::int64_t b = 0; b < a.columns / kBlock; ++b) {
    if (streamed) stream_ahead(upper, kSplitUpper.block_bytes());
    BlockDots<WeightType::kQ5_0, kRows> dots;
    dots.take(StoredBlock<WeightType::kQ5_0>{upper}, rows, b * kBlock);
    for (int v = 0; v < kGroupVectors; ++v) {
      const BlockScale scale = load_scale<WeightType::kQ5_0>(upper, upper, v);
      for (int r = 0; r < kRows; ++r) {
        const HalfDots codes = dots.finish(v, r);
        const I32 twice =
            sub(shift_left<kSplitBits + 1>(add(codes.low, codes.high)), set1_int(kTwiceUpperOffset * rows[r].sums[b]));
        sums.at[v][r] = add(sums.at[v][r], mul(mul(scale.scale, set1(0.5f * rows[r].scales[b])), to_float(twice)));
      }
    }
    upper += kSplitUpper.block_bytes();
  }
  sums.emit(a, first_row, output);
}

static void linear_group(const LinearArguments& a, int group) {
  const std::uint8_t* upper = a.unit + group * group_bytes(WeightType::kQ8_0Split, a.columns);
  const std::uint8_t* lower = a.lower + group * lower_group_bytes(a.columns);
  each_tile(a.rows, [&]<int kRows>(int row) ULTRAFAST_LAMBDA {
    exact_split_rows<kRows>(a, upper, lower, row, a.output + group * kGroupRows);
  });
}

static void linear_upper(const LinearArguments& a) {
  for (int g = 0; g < kUnitRows / kGroupRows; ++g) {
    const std::uint8_t* upper = a.unit + g * group_bytes(WeightType::kQ8_0Split, a.columns);
    each_tile(a.rows, [&]<int kRows>(int row)
                          ULTRAFAST_LAMBDA { upper_rows<kRows>(a, upper, row, a.output + g * kGroupRows); });
  }
}

}  // namespace ultrafast::ULTRAFAST_ISA
