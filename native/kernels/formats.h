// The quantised types as kernels see them: how codes unpack to bytes, and how an exact dot becomes a float term.
//
// A type is a choice of planes (which codes) and of scales (what a block's integer dot is worth). Both follow
// block_format; the float terms follow exactness rule 1: f32(weight scale × activation scale) × dot, then the minimum.
#pragma once

#include "elementwise.h"

namespace ultrafast::ULTRAFAST_ISA {

constexpr int kGroupVectors = kGroupRows / kLanes;

ULTRAFAST_INLINE const std::uint16_t* halves(const std::uint8_t* p) {
  return reinterpret_cast<const std::uint16_t*>(p);
}

// Bytes of one vector of a quad: 8 rows × 4 columns.
constexpr int kQuadVector = 4 * kLanes;
constexpr int kQuadBytes = 4 * kGroupRows;

// What codes stand for where they are indices, else null.
constexpr const std::int8_t* code_values(WeightType type) {
  switch (type) {
    case WeightType::kIQ4_NL:
    case WeightType::kIQ4_XS:
      return kIQ4Values;
    case WeightType::kMXFP4:
    case WeightType::kNVFP4:
      return kFP4Values;
    case WeightType::kIQ1_M:
      return kIQ1Values;
    case WeightType::kIQ2_XXS:
    case WeightType::kIQ2_XS:
    case WeightType::kIQ2_S:
      return kIQ2Values;
    case WeightType::kIQ3_XXS:
      return kIQ3XXSValues;
    case WeightType::kIQ3_S:
      return kIQ3SValues;
    default:
      return nullptr;
  }
}

// Codes of columns 4 × kQuad.. of a block, kQuad < 8, for one vector of rows: [row][4 columns].
template <BlockFormat kFormat, int kQuad>
ULTRAFAST_INLINE U8 load_planes(const std::uint8_t* block, int vector) {
  constexpr int kHalf = kQuad / 4;  // of the block
  constexpr int kPlace = kQuad % 4;
  const std::uint8_t* low_plane = block + vector * kQuadVector;
  const std::uint8_t* high_plane = low_plane + kFormat.low_bytes();
  U8 codes;
  if constexpr (kFormat.low_bits == 8) {
    codes = load_bytes(low_plane + kQuad * kQuadBytes);
  } else if constexpr (kFormat.low_bits == 4) {
    codes = bits<4 * kHalf, 15>(load_bytes(low_plane + kPlace * kQuadBytes));
  } else if constexpr (kFormat.low_bits == 2) {
    codes = bits<2 * kPlace, 3>(load_bytes(low_plane + kHalf * kQuadBytes));
  } else {  // a bit counts as two: values −1 and 1 are then one below the code
    codes = bits<kQuad - 1, 2>(load_bytes(low_plane));
  }
  constexpr int kTop = kFormat.low_bits;  // where further bits belong
  if constexpr (kFormat.high_bits == 1) {
    codes = bit_or(codes, bits<kQuad - kTop, 1 << kTop>(load_bytes(high_plane)));
  } else if constexpr (kFormat.high_bits == 2) {
    codes = bit_or(codes, bits<2 * kPlace - kTop, 3 << kTop>(load_bytes(high_plane + kHalf * kQuadBytes)));
  }
  return codes;
}

template <WeightType kType>
struct StoredBlock {
  const std::uint8_t* at;

  template <int kQuad>
  ULTRAFAST_METHOD U8 quad(int vector) const {
    const U8 codes = load_planes<block_format(kType), kQuad>(at, vector);
    constexpr const std::int8_t* kValues = code_values(kType);
    if constexpr (kValues != nullptr) return look_up(kValues, codes);
    return codes;
  }
};

// A block of kQ8_0Split as the signed bytes of kQ8_0.
struct SplitBlock {
  const std::uint8_t* upper;
  const std::uint8_t* lower;

  template <int kQuad>
  ULTRAFAST_METHOD U8 quad(int vector) const {
    const U8 up = load_planes<kSplitUpper, kQuad>(upper, vector);
    const U8 low = load_planes<kSplitLower, kQuad>(lower, vector);
    return flip_top(bit_or(bits<-kSplitBits, 0xff << kSplitBits & 0xff>(up), low));
  }
};

// Signed bytes: dots take the magnitude and give its sign to the activations.
constexpr bool has_signed_codes(WeightType type) {
  return type == WeightType::kQ8_0 || type == WeightType::kIQ4_NL || type == WeightType::kIQ4_XS;
}

// Halves of a block with scales of their own.
constexpr bool has_half_scales(WeightType type) {
  return type == WeightType::kQ2_K || type == WeightType::kQ3_K || type == WeightType::kQ6_K ||
         type == WeightType::kIQ2_XS || type == WeightType::kIQ2_S || type == WeightType::kIQ1_M ||
         type == WeightType::kNVFP4;
}

// Unsigned codes stand this far above the value.
constexpr int code_offset(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0:
      return 8;
    case WeightType::kQ5_0:
      return 16;
    case WeightType::kQ3_K:
      return 4;
    case WeightType::kQ6_K:
      return 32;
    case WeightType::kMXFP4:
    case WeightType::kNVFP4:
      return 12;
    case WeightType::kIQ1_M:
      return 9;
    case WeightType::kIQ2_XXS:
    case WeightType::kIQ2_XS:
    case WeightType::kIQ2_S:
      return 43;
    case WeightType::kIQ3_XXS:
      return 62;
    case WeightType::kIQ3_S:
      return 15;
    case WeightType::kTQ1_0:
    case WeightType::kTQ2_0:
    case WeightType::kQ1_0:
    case WeightType::kQ2_0:
      return 1;
    default:
      return 0;
  }
}

// The largest unsigned code, looked up where it is an index.
constexpr int largest_code(WeightType type) {
  const int code_bits = block_format(type).low_bits + block_format(type).high_bits;
  if (code_bits == 1) return 2;
  const std::int8_t* values = code_values(type);
  if (values == nullptr) return (1 << code_bits) - 1;
  int largest = 0;
  for (int code = 0; code < 16; ++code) largest = values[code] > largest ? values[code] : largest;
  return largest;
}

// Quads a 16-bit lane takes before it is widened (exactness rule 4): 8, 4, 2 or 1, and never more than share a scale.
constexpr int quads_between_widening(WeightType type) {
  int quads = has_half_scales(type) ? 4 : 8;
  while (quads > 1 && quads * 2 * largest_code(type) * 127 > 32767) quads /= 2;
  return quads;
}
static_assert(2 * 128 * 127 <= 32767);  // one quad of any unsigned code used here
static_assert(quads_between_widening(WeightType::kQ4_K) == 8 && quads_between_widening(WeightType::kQ5_K) == 4 &&
              quads_between_widening(WeightType::kQ6_K) == 2 && quads_between_widening(WeightType::kQ3_K) == 4);

// What a step of the block scales is worth, in units of the header's scale: a power of two, so products are exact.
constexpr float scale_unit(WeightType type) {
  switch (type) {
    case WeightType::kIQ1_M:
    case WeightType::kIQ2_XXS:
    case WeightType::kIQ2_XS:
    case WeightType::kIQ2_S:
      return 0.125f;
    case WeightType::kIQ3_XXS:
      return 0.25f;
    default:
      return 1.0f;
  }
}

// The exact dots of a block's halves.
struct HalfDots {
  I32 low;
  I32 high;
};

// What a block's dot is worth, for one vector of rows. Minima are as they are added.
struct BlockScale {
  F32 scale;      // of the dot
  F32 minimum;    // of the sum of activations; unused without minima
  F32 halves[2];  // scales of the halves' dots, of few bits
  F32 half_minima[2];
};

// 2^(e − 128): a float32 with exponent e − 1, or the subnormals for e of 0 and 1.
ULTRAFAST_INLINE F32 exponent_scale(const std::uint8_t* exponents) {
  const F32 e = float_of_unsigned(exponents);
  const I32 whole = round_to_int(e);
  const I32 subnormal = shift_left<21>(add(whole, set1_int(1)));
  return select(less(e, set1(2.0f)), float_of(subnormal), float_of(shift_left<23>(sub(whole, set1_int(1)))));
}

// Half an UE4M3: float16 has its bits further up and exponents 2^8 times as small, subnormals among them.
ULTRAFAST_INLINE F32 half_of_ue4m3(const std::uint8_t* scales) {
  alignas(16) std::uint16_t smaller[kLanes];
  for (int i = 0; i < kLanes; ++i) smaller[i] = static_cast<std::uint16_t>(scales[i] << 7);
  return mul(load_half(smaller), set1(128.0f));
}

template <WeightType kType>
ULTRAFAST_INLINE BlockScale load_scale(const std::uint8_t* header, const std::uint8_t* block, int vector) {
  constexpr BlockFormat kFormat = block_format(kType);
  const std::uint8_t* at = block + kFormat.quant_bytes() + vector * kLanes * (kFormat.halves > 0 ? 2 : 1);
  BlockScale s;
  if constexpr (kFormat.header_halves > 0) {
    F32 d = load_half(halves(header) + vector * kLanes);
    if constexpr (scale_unit(kType) != 1.0f) d = mul(d, set1(scale_unit(kType)));
    if constexpr (kType == WeightType::kIQ1_S) {
      // Codes stand 1 above the codebook's value, which is shifted by an eighth of the scale, up or down by its sign.
      const F32 shift = float_of_signed(at);
      s.scale = mul(d, abs(shift));
      s.minimum = mul(d, sub(mul(shift, set1(0.125f)), abs(shift)));
    } else if constexpr (kFormat.bytes == 0) {
      s.scale = d;
    } else if constexpr (kFormat.bytes == 1) {
      s.scale = mul(d, float_of_signed(at));
    } else if constexpr (kType == WeightType::kQ4_K || kType == WeightType::kQ5_K) {
      s.scale = mul(d, float_of_unsigned(at));
      const F32 smallest = load_half(halves(header) + kGroupRows + vector * kLanes);
      s.minimum = sub(zero(), mul(smallest, float_of_unsigned(at + kGroupRows)));
    } else if constexpr (kType == WeightType::kQ2_K) {
      s.scale = d;
      s.minimum = sub(zero(), load_half(halves(header) + kGroupRows + vector * kLanes));
      for (int h = 0; h < 2; ++h) {
        alignas(32) std::uint8_t low[kLanes];
        alignas(32) std::uint8_t high[kLanes];
        for (int i = 0; i < kLanes; ++i) {
          low[i] = at[h * kGroupRows + i] & 15;
          high[i] = static_cast<std::uint8_t>(at[h * kGroupRows + i] >> 4);
        }
        s.halves[h] = float_of_unsigned(low);
        s.half_minima[h] = float_of_unsigned(high);
      }
    } else {
      s.scale = d;
      for (int h = 0; h < 2; ++h) s.halves[h] = float_of_signed(at + h * kGroupRows);
    }
  } else if constexpr (kType == WeightType::kMXFP4) {
    s.scale = exponent_scale(at);
  } else if constexpr (kType == WeightType::kNVFP4) {
    s.scale = set1(1.0f);
    for (int h = 0; h < 2; ++h) s.halves[h] = half_of_ue4m3(at + h * kGroupRows);
  } else {
    s.scale = load_half(halves(at));
    if constexpr (kFormat.halves == 2) s.minimum = load_half(halves(at) + kGroupRows);
  }
  return s;
}

constexpr bool has_minimum(WeightType type) {
  return type == WeightType::kQ4_1 || type == WeightType::kQ5_1 || type == WeightType::kQ4_K ||
         type == WeightType::kQ5_K || type == WeightType::kIQ1_S;
}

// sum + the term of block b for one activation row.
template <WeightType kType>
ULTRAFAST_INLINE F32 add_block(F32 sum, const BlockScale& s, const HalfDots& dots, const Activation& row,
                               std::int64_t b) {
  const F32 scale = mul(s.scale, set1(row.scales[b]));
  if constexpr (has_half_scales(kType)) {
    // Scales are integers, |scale| <= 128, and |dot| < 2^17 without its offset (2^18 with it), so every product and sum
    // here is exact in float32. Those of NVFP4 have four bits at any exponent: only its sum of both halves is rounded.
    F32 parts[2] = {to_float(dots.low), to_float(dots.high)};
    for (int h = 0; h < 2; ++h) {
      const float offset = static_cast<float>(code_offset(kType) * row.half_sums[2 * b + h]);
      parts[h] = mul(s.halves[h], sub(parts[h], set1(offset)));
    }
    sum = add(sum, mul(scale, add(parts[0], parts[1])));
    if constexpr (kType == WeightType::kQ2_K) {
      const F32 low = mul(s.half_minima[0], set1(static_cast<float>(row.half_sums[2 * b])));
      const F32 high = mul(s.half_minima[1], set1(static_cast<float>(row.half_sums[2 * b + 1])));
      sum = add(sum, mul(mul(s.minimum, set1(row.scales[b])), add(low, high)));
    }
    return sum;
  }
  I32 dot = add(dots.low, dots.high);
  if constexpr (code_offset(kType) != 0) dot = sub(dot, set1_int(code_offset(kType) * row.sums[b]));
  sum = add(sum, mul(scale, to_float(dot)));
  if constexpr (has_minimum(kType)) sum = add(sum, mul(s.minimum, set1(row.scaled_sums[b])));
  return sum;
}

}  // namespace ultrafast::ULTRAFAST_ISA
