// Matrix products: a vector lane is an output row.
//
// Quantised weights: each block of 32 is an exact integer dot; the float terms are added in ascending block order, one
// chain, multiply then add (exactness rule 1). Float weights: float32 activations, ascending column, one chain (rule
// 2). Nothing depends on how many activation rows share an unpacking, so tiles may take any height.
#pragma once

namespace ultrafast::ULTRAFAST_ISA {

constexpr int kGroupVectors = kGroupRows / kLanes;
constexpr int kQuads = kBlock / 4;

// The running sums of kVectors vectors of output rows for kRows activation rows.
template <int kRows, int kVectors>
struct Tile {
  F32 at[kVectors][kRows];

  __attribute__((always_inline)) Tile() {
    for (int v = 0; v < kVectors; ++v)
      for (int r = 0; r < kRows; ++r) at[v][r] = zero();
  }

  __attribute__((always_inline)) void emit(const LinearArguments& a, int first_vector, int first_row,
                                           float* output) const {
    for (int v = 0; v < kVectors; ++v) {
      for (int r = 0; r < kRows; ++r) {
        float* out = output + (first_row + r) * a.output_stride + (first_vector + v) * kLanes;
        store(out, a.epilogue == Epilogue::kAdd ? add(load(out), at[v][r]) : at[v][r]);
      }
    }
  }
};

ULTRAFAST_INLINE const std::uint16_t* halves(const std::uint8_t* p) {
  return reinterpret_cast<const std::uint16_t*>(p);
}

template <int kRows, int kVectors, WeightType kType>
ULTRAFAST_INLINE void nibble_rows(const LinearArguments& a, const std::uint8_t* group, int first_vector, int first_row,
                                  float* output) {
  Tile<kRows, kVectors> sums;
  const Activation* rows = a.activations + first_row;
  const std::int64_t blocks = a.columns / kBlock;
  for (std::int64_t b = 0; b < blocks; ++b, group += group_block_bytes(kType)) {
    NibbleDot dots[kVectors][kRows];
    for (int v = 0; v < kVectors; ++v)
      for (int r = 0; r < kRows; ++r) dots[v][r] = nibble_dot_zero();
    for (int j = 0; j < kQuads / 2; ++j) {
      for (int v = 0; v < kVectors; ++v) {
        const U8 packed = load_bytes(group + j * 4 * kGroupRows + (first_vector + v) * 4 * kLanes);
        const U8 low = low_nibbles(packed);
        const U8 high = high_nibbles(packed);
        for (int r = 0; r < kRows; ++r) {
          const std::int8_t* bytes = rows[r].bytes + b * kBlock + 4 * j;
          nibble_dot_step(dots[v][r], low, broadcast_quad(bytes));
          nibble_dot_step(dots[v][r], high, broadcast_quad(bytes + 16));
        }
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      const std::uint16_t* scales = halves(group + kNibbleQuantBytes) + (first_vector + v) * kLanes;
      const F32 scale = load_half(scales);
      for (int r = 0; r < kRows; ++r) {
        I32 dot = nibble_dot_finish(dots[v][r]);
        if constexpr (kType == WeightType::kQ4_0) dot = sub(dot, set1_int(8 * rows[r].sums[b]));
        sums.at[v][r] = add(sums.at[v][r], mul(mul(scale, set1(rows[r].scales[b])), to_float(dot)));
        if constexpr (kType == WeightType::kQ4_1) {
          const F32 minimum = load_half(scales + kGroupRows);
          sums.at[v][r] = add(sums.at[v][r], mul(minimum, set1(rows[r].scaled_sums[b])));
        }
      }
    }
  }
  sums.emit(a, first_vector, first_row, output);
}

template <int kRows, int kVectors>
ULTRAFAST_INLINE void byte_rows(const LinearArguments& a, const std::uint8_t* group, int first_vector, int first_row,
                                float* output) {
  Tile<kRows, kVectors> sums;
  const Activation* rows = a.activations + first_row;
  const std::int64_t blocks = a.columns / kBlock;
  for (std::int64_t b = 0; b < blocks; ++b, group += group_block_bytes(WeightType::kQ8_0)) {
    I32 dots[kVectors][kRows];
    for (int v = 0; v < kVectors; ++v)
      for (int r = 0; r < kRows; ++r) dots[v][r] = set1_int(0);
    for (int j = 0; j < kQuads; ++j) {
      for (int v = 0; v < kVectors; ++v) {
        const U8 weights = load_bytes(group + j * 4 * kGroupRows + (first_vector + v) * 4 * kLanes);
        const U8 magnitudes = magnitude(weights);
        for (int r = 0; r < kRows; ++r) {
          byte_dot_step(dots[v][r], weights, magnitudes, broadcast_quad(rows[r].bytes + b * kBlock + 4 * j));
        }
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      const F32 scale = load_half(halves(group + kByteQuantBytes) + (first_vector + v) * kLanes);
      for (int r = 0; r < kRows; ++r) {
        sums.at[v][r] = add(sums.at[v][r], mul(mul(scale, set1(rows[r].scales[b])), to_float(dots[v][r])));
      }
    }
  }
  sums.emit(a, first_vector, first_row, output);
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

template <int kRows, int kVectors, class Format>
ULTRAFAST_INLINE void float_rows(const LinearArguments& a, const std::uint8_t* group, int first_vector, int first_row,
                                 float* output) {
  Tile<kRows, kVectors> sums;
  const Activation* rows = a.activations + first_row;
  const auto* weights = reinterpret_cast<const typename Format::Element*>(group) + first_vector * kLanes;
  for (std::int64_t c = 0; c < a.columns; ++c, weights += kGroupRows) {
    for (int v = 0; v < kVectors; ++v) {
      const F32 weight = Format::at(weights + v * kLanes);
      for (int r = 0; r < kRows; ++r) sums.at[v][r] = add(sums.at[v][r], mul(weight, set1(rows[r].values[c])));
    }
  }
  sums.emit(a, first_vector, first_row, output);
}

// One group for kRows activation rows. Few rows take all its vectors at once; four take one vector at a time, so that
// the running sums stay in registers.
template <int kRows, WeightType kType>
ULTRAFAST_INLINE void nibble_group(const LinearArguments& a, const std::uint8_t* group, int row, float* output) {
  constexpr int kVectors = kRows > 2 ? 1 : kGroupVectors;
  for (int v = 0; v < kGroupVectors; v += kVectors) nibble_rows<kRows, kVectors, kType>(a, group, v, row, output);
}
template <int kRows>
ULTRAFAST_INLINE void byte_group(const LinearArguments& a, const std::uint8_t* group, int row, float* output) {
  constexpr int kVectors = kRows > 2 ? 1 : kGroupVectors;
  for (int v = 0; v < kGroupVectors; v += kVectors) byte_rows<kRows, kVectors>(a, group, v, row, output);
}
template <int kRows, class Format>
ULTRAFAST_INLINE void float_group(const LinearArguments& a, const std::uint8_t* group, int row, float* output) {
  float_rows<kRows, kGroupVectors, Format>(a, group, 0, row, output);
}

template <int kRows>
static void group_rows(const LinearArguments& a, const std::uint8_t* group, int row, float* output) {
  switch (a.type) {
    case WeightType::kF32:
      return float_group<kRows, Float32>(a, group, row, output);
    case WeightType::kF16:
      return float_group<kRows, Float16>(a, group, row, output);
    case WeightType::kBF16:
      return float_group<kRows, Bfloat16>(a, group, row, output);
    case WeightType::kQ8_0:
      return byte_group<kRows>(a, group, row, output);
    case WeightType::kQ4_0:
      return nibble_group<kRows, WeightType::kQ4_0>(a, group, row, output);
    case WeightType::kQ4_1:
      return nibble_group<kRows, WeightType::kQ4_1>(a, group, row, output);
  }
}

static void linear(const LinearArguments& a) {
  const std::int64_t bytes = group_bytes(a.type, a.columns);
  for (int g = 0; g < kUnitRows / kGroupRows; ++g) {
    const std::uint8_t* group = a.unit + g * bytes;
    float* output = a.output + g * kGroupRows;
    int row = 0;
    for (; row + 4 <= a.rows; row += 4) group_rows<4>(a, group, row, output);
    for (; row + 2 <= a.rows; row += 2) group_rows<2>(a, group, row, output);
    for (; row < a.rows; ++row) group_rows<1>(a, group, row, output);
  }
}

static void dequantise_row(WeightType type, const std::uint8_t* unit, std::int32_t row, std::int64_t columns,
                           float* out) {
  const std::uint8_t* group = unit + row / kGroupRows * group_bytes(type, columns);
  const int r = row % kGroupRows;
  alignas(32) float scales[kLanes];
  alignas(32) float minima[kLanes];
  if (type == WeightType::kF32 || type == WeightType::kF16 || type == WeightType::kBF16) {
    for (std::int64_t c = 0; c < columns; ++c) {
      const std::int64_t index = c * kGroupRows + r / kLanes * kLanes;
      if (type == WeightType::kF32) store(scales, Float32::at(reinterpret_cast<const float*>(group) + index));
      if (type == WeightType::kF16) store(scales, Float16::at(halves(group) + index));
      if (type == WeightType::kBF16) store(scales, Bfloat16::at(halves(group) + index));
      out[c] = scales[r % kLanes];
    }
    return;
  }
  const bool bytes = type == WeightType::kQ8_0;
  const int quants = bytes ? kByteQuantBytes : kNibbleQuantBytes;
  const std::int64_t stride = group_block_bytes(type);
  for (std::int64_t b = 0; b < columns / kBlock; ++b, group += stride) {
    const std::uint16_t* block_scales = halves(group + quants) + r / kLanes * kLanes;
    store(scales, load_half(block_scales));
    store(minima, type == WeightType::kQ4_1 ? load_half(block_scales + kGroupRows) : zero());
    const float scale = scales[r % kLanes];
    const float minimum = minima[r % kLanes];
    for (int c = 0; c < kBlock; ++c) {
      const int quad = bytes ? c / 4 : c % 16 / 4;
      const std::uint8_t byte = group[quad * 4 * kGroupRows + 4 * r + c % 4];
      const int nibble = c < 16 ? byte & 15 : byte >> 4;
      float value = 0.0f;
      if (bytes) value = scale * static_cast<float>(static_cast<std::int8_t>(byte));
      if (type == WeightType::kQ4_0) value = scale * static_cast<float>(nibble - 8);
      if (type == WeightType::kQ4_1) value = scale * static_cast<float>(nibble) + minimum;
      out[b * kBlock + c] = value;
    }
  }
}

}  // namespace ultrafast::ULTRAFAST_ISA
