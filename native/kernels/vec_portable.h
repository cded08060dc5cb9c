// The thin vector header in plain C++: the same lanes and the same bits as every other one, slow.
#pragma once

#include <cstdint>

#define ULTRAFAST_INLINE __attribute__((always_inline)) static inline
#define ULTRAFAST_METHOD __attribute__((always_inline)) inline
#define ULTRAFAST_LAMBDA __attribute__((always_inline))

namespace ultrafast::ULTRAFAST_ISA {

constexpr int kLanes = 8;
// Rows go one by one: there is no speed to win here, and a third to compile.
constexpr bool kSharesUnpacking = false;

struct F32 {
  float v[kLanes];
};
struct I32 {
  std::int32_t v[kLanes];
};
struct U8 {
  std::uint8_t v[4 * kLanes];
};
struct Mask {
  std::uint32_t v[kLanes];
};
// Four int8 activations, as a dot product wants them.
struct Quad {
  std::int16_t v[4];
};

ULTRAFAST_INLINE std::uint32_t word_of(float x) { return __builtin_bit_cast(std::uint32_t, x); }
ULTRAFAST_INLINE float float_of_word(std::uint32_t x) { return __builtin_bit_cast(float, x); }

#define ULTRAFAST_EACH(Result, expression)              \
  Result r;                                             \
  for (int i = 0; i < kLanes; ++i) r.v[i] = expression; \
  return r

ULTRAFAST_INLINE F32 set1(float x) { ULTRAFAST_EACH(F32, x); }
ULTRAFAST_INLINE F32 zero() { return set1(0.0f); }
ULTRAFAST_INLINE F32 load(const float* p) { ULTRAFAST_EACH(F32, p[i]); }
ULTRAFAST_INLINE void store(float* p, F32 a) {
  for (int i = 0; i < kLanes; ++i) p[i] = a.v[i];
}
ULTRAFAST_INLINE F32 add(F32 a, F32 b) { ULTRAFAST_EACH(F32, a.v[i] + b.v[i]); }
ULTRAFAST_INLINE F32 sub(F32 a, F32 b) { ULTRAFAST_EACH(F32, a.v[i] - b.v[i]); }
ULTRAFAST_INLINE F32 mul(F32 a, F32 b) { ULTRAFAST_EACH(F32, a.v[i] * b.v[i]); }
ULTRAFAST_INLINE F32 div(F32 a, F32 b) { ULTRAFAST_EACH(F32, a.v[i] / b.v[i]); }
// a > b ? a : b, so that a NaN in either yields b.
ULTRAFAST_INLINE F32 max(F32 a, F32 b) { ULTRAFAST_EACH(F32, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
ULTRAFAST_INLINE F32 min(F32 a, F32 b) { ULTRAFAST_EACH(F32, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
// Attention only (exactness rule 6).
ULTRAFAST_INLINE F32 fused(F32 a, F32 b, F32 c) { ULTRAFAST_EACH(F32, __builtin_fmaf(a.v[i], b.v[i], c.v[i])); }
ULTRAFAST_INLINE F32 abs(F32 a) { ULTRAFAST_EACH(F32, float_of_word(word_of(a.v[i]) & 0x7fffffffu)); }
ULTRAFAST_INLINE float square_root(float x) { return __builtin_sqrtf(x); }

ULTRAFAST_INLINE Mask less(F32 a, F32 b) { ULTRAFAST_EACH(Mask, a.v[i] < b.v[i] ? ~0u : 0u); }
ULTRAFAST_INLINE Mask less_equal(F32 a, F32 b) { ULTRAFAST_EACH(Mask, a.v[i] <= b.v[i] ? ~0u : 0u); }
ULTRAFAST_INLINE F32 select(Mask m, F32 yes, F32 no) { ULTRAFAST_EACH(F32, m.v[i] ? yes.v[i] : no.v[i]); }
ULTRAFAST_INLINE bool all(Mask m) {
  std::uint32_t every = ~0u;
  for (int i = 0; i < kLanes; ++i) every &= m.v[i];
  return every != 0;
}

ULTRAFAST_INLINE float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // infinity; a NaN comes out quiet, as the hardware's does
    const std::uint32_t quiet = magnitude > 0x7c00u ? 0x00400000u : 0u;
    return float_of_word(sign | 0x7f800000u | quiet | ((magnitude & 0x3ffu) << 13));
  }
  if (magnitude >= 0x0400u) return float_of_word(sign | ((magnitude << 13) + 0x38000000u));
  const float subnormal = static_cast<float>(magnitude) * 5.9604644775390625e-8f;  // 2^-24, exact
  return float_of_word(sign | word_of(subnormal));
}
ULTRAFAST_INLINE std::uint16_t float_to_half(float x) {  // to nearest even
  const std::uint32_t word = word_of(x);
  const std::uint32_t sign = (word >> 16) & 0x8000u;
  const std::uint32_t magnitude = word & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x47800000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // 65536 and more
  if (magnitude >= 0x38800000u) {  // normal half; a carry out of the mantissa is the right next exponent
    const std::uint32_t rounded = magnitude + 0x0fffu + ((magnitude >> 13) & 1u);
    return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
  // Subnormal half: adding 0.5 aligns the last place to 2^-24 and rounds in hardware.
  const float aligned = float_of_word(magnitude) + 0.5f;
  return static_cast<std::uint16_t>(sign | (word_of(aligned) - 0x3f000000u));
}
ULTRAFAST_INLINE F32 load_half(const std::uint16_t* p) { ULTRAFAST_EACH(F32, half_to_float(p[i])); }
ULTRAFAST_INLINE void store_half(std::uint16_t* p, F32 a) {
  for (int i = 0; i < kLanes; ++i) p[i] = float_to_half(a.v[i]);
}
ULTRAFAST_INLINE F32 load_bfloat(const std::uint16_t* p) {
  ULTRAFAST_EACH(F32, float_of_word(static_cast<std::uint32_t>(p[i]) << 16));
}

ULTRAFAST_INLINE std::int32_t wrap(std::uint32_t x) { return static_cast<std::int32_t>(x); }
ULTRAFAST_INLINE std::uint32_t raw(std::int32_t x) { return static_cast<std::uint32_t>(x); }
ULTRAFAST_INLINE I32 set1_int(std::int32_t x) { ULTRAFAST_EACH(I32, x); }
ULTRAFAST_INLINE I32 load_int(const std::int32_t* p) { ULTRAFAST_EACH(I32, p[i]); }
ULTRAFAST_INLINE void store_int(std::int32_t* p, I32 a) {
  for (int i = 0; i < kLanes; ++i) p[i] = a.v[i];
}
ULTRAFAST_INLINE I32 add(I32 a, I32 b) { ULTRAFAST_EACH(I32, wrap(raw(a.v[i]) + raw(b.v[i]))); }
ULTRAFAST_INLINE I32 sub(I32 a, I32 b) { ULTRAFAST_EACH(I32, wrap(raw(a.v[i]) - raw(b.v[i]))); }
ULTRAFAST_INLINE I32 bit_and(I32 a, I32 b) { ULTRAFAST_EACH(I32, a.v[i] & b.v[i]); }
ULTRAFAST_INLINE I32 bit_or(I32 a, I32 b) { ULTRAFAST_EACH(I32, a.v[i] | b.v[i]); }
ULTRAFAST_INLINE I32 bit_xor(I32 a, I32 b) { ULTRAFAST_EACH(I32, a.v[i] ^ b.v[i]); }
template <int kBits>
ULTRAFAST_INLINE I32 shift_left(I32 a) {
  ULTRAFAST_EACH(I32, wrap(raw(a.v[i]) << kBits));
}
template <int kBits>
ULTRAFAST_INLINE I32 shift_right(I32 a) {  // zeros enter from the left
  ULTRAFAST_EACH(I32, wrap(raw(a.v[i]) >> kBits));
}
ULTRAFAST_INLINE F32 to_float(I32 a) { ULTRAFAST_EACH(F32, static_cast<float>(a.v[i])); }
// Nearest even; callers keep |a| below 2^22, where adding 1.5 × 2^23 leaves the integer in the low bits.
ULTRAFAST_INLINE I32 round_to_int(F32 a) { ULTRAFAST_EACH(I32, wrap(word_of(a.v[i] + 12582912.0f) - 0x4b400000u)); }
ULTRAFAST_INLINE I32 bits_of(F32 a) { ULTRAFAST_EACH(I32, wrap(word_of(a.v[i]))); }
ULTRAFAST_INLINE F32 float_of(I32 a) { ULTRAFAST_EACH(F32, float_of_word(raw(a.v[i]))); }

// 32 × 32 → 64 bits, unsigned, per lane.
ULTRAFAST_INLINE void multiply_wide(I32 a, std::uint32_t factor, I32& high, I32& low) {
  for (int i = 0; i < kLanes; ++i) {
    const std::uint64_t product = static_cast<std::uint64_t>(raw(a.v[i])) * factor;
    high.v[i] = wrap(static_cast<std::uint32_t>(product >> 32));
    low.v[i] = wrap(static_cast<std::uint32_t>(product));
  }
}

// Narrows 8 lanes, each within int8, to 8 bytes.
ULTRAFAST_INLINE void store_bytes(std::int8_t* p, I32 a) {
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<std::int8_t>(a.v[i]);
}

ULTRAFAST_INLINE void prefetch_once(const std::uint8_t*) {}
ULTRAFAST_INLINE U8 load_bytes(const std::uint8_t* p) {
  U8 r;
  for (int i = 0; i < 4 * kLanes; ++i) r.v[i] = p[i];
  return r;
}
ULTRAFAST_INLINE void store_bytes(std::uint8_t* p, U8 a) {
  for (int i = 0; i < 4 * kLanes; ++i) p[i] = a.v[i];
}
template <int kShift, int kMask>
ULTRAFAST_INLINE U8 bits(U8 a) {
  U8 r;
  for (int i = 0; i < 4 * kLanes; ++i) {
    const int shifted = kShift >= 0 ? a.v[i] >> (kShift >= 0 ? kShift : 0) : a.v[i] << (kShift < 0 ? -kShift : 0);
    r.v[i] = static_cast<std::uint8_t>(shifted & kMask);
  }
  return r;
}
ULTRAFAST_INLINE U8 bit_or(U8 a, U8 b) {
  U8 r;
  for (int i = 0; i < 4 * kLanes; ++i) r.v[i] = static_cast<std::uint8_t>(a.v[i] | b.v[i]);
  return r;
}
ULTRAFAST_INLINE U8 flip_top(U8 a) {
  U8 r;
  for (int i = 0; i < 4 * kLanes; ++i) r.v[i] = static_cast<std::uint8_t>(a.v[i] ^ 0x80);
  return r;
}
ULTRAFAST_INLINE U8 look_up(const std::int8_t* table, U8 codes) {
  U8 r;
  for (int i = 0; i < 4 * kLanes; ++i) r.v[i] = static_cast<std::uint8_t>(table[codes.v[i]]);
  return r;
}
ULTRAFAST_INLINE F32 float_of_unsigned(const std::uint8_t* p) { ULTRAFAST_EACH(F32, static_cast<float>(p[i])); }
ULTRAFAST_INLINE F32 float_of_signed(const std::uint8_t* p) {
  ULTRAFAST_EACH(F32, static_cast<float>(static_cast<std::int8_t>(p[i])));
}
ULTRAFAST_INLINE Quad broadcast_quad(const std::int8_t* p) { return {{p[0], p[1], p[2], p[3]}}; }

// An exact integer dot has no order: where other sets use 16-bit lanes, these add in 32 bits.
struct ShortDot {
  I32 sum;
};
ULTRAFAST_INLINE ShortDot short_dot(U8 codes, Quad activations) {
  ShortDot dot;
  for (int i = 0; i < kLanes; ++i) {
    dot.sum.v[i] = 0;
    for (int k = 0; k < 4; ++k) dot.sum.v[i] += codes.v[4 * i + k] * activations.v[k];
  }
  return dot;
}
ULTRAFAST_INLINE void accumulate(I32& sum, I32 x) { sum = add(sum, x); }
ULTRAFAST_INLINE void accumulate(ShortDot& sum, ShortDot x) { accumulate(sum.sum, x.sum); }
ULTRAFAST_INLINE I32 widen(ShortDot dot) { return dot.sum; }

ULTRAFAST_INLINE U8 magnitude(U8 weights) { return weights; }
ULTRAFAST_INLINE I32 byte_dot(U8 weights, U8 /*weight_magnitudes*/, Quad activations) {
  I32 dot;
  for (int i = 0; i < kLanes; ++i) {
    dot.v[i] = 0;
    for (int k = 0; k < 4; ++k) dot.v[i] += static_cast<std::int8_t>(weights.v[4 * i + k]) * activations.v[k];
  }
  return dot;
}

}  // namespace ultrafast::ULTRAFAST_ISA
