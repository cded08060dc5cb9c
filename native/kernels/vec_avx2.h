// The thin vector header for AVX2 with FMA and F16C: 8 lanes of 32 bits, 32 lanes of 8.
// Every operation here has a twin of equal bits in vec_portable.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#define ULTRAFAST_INLINE __attribute__((always_inline)) static inline
#define ULTRAFAST_METHOD __attribute__((always_inline)) inline
#define ULTRAFAST_LAMBDA __attribute__((always_inline))

namespace ultrafast::ULTRAFAST_ISA {

constexpr int kLanes = 8;
// Several activation rows share one unpacking of a weight block.
constexpr bool kSharesUnpacking = true;

struct F32 {
  __m256 v;
};
struct I32 {
  __m256i v;
};
struct U8 {
  __m256i v;
};
struct Mask {
  __m256 v;
};
// Four int8 activations, as a dot product wants them.
struct Quad {
  __m256i v;
};

ULTRAFAST_INLINE F32 zero() { return {_mm256_setzero_ps()}; }
ULTRAFAST_INLINE F32 set1(float x) { return {_mm256_set1_ps(x)}; }
ULTRAFAST_INLINE F32 load(const float* p) { return {_mm256_loadu_ps(p)}; }
ULTRAFAST_INLINE void store(float* p, F32 a) { _mm256_storeu_ps(p, a.v); }
ULTRAFAST_INLINE F32 add(F32 a, F32 b) { return {_mm256_add_ps(a.v, b.v)}; }
ULTRAFAST_INLINE F32 sub(F32 a, F32 b) { return {_mm256_sub_ps(a.v, b.v)}; }
ULTRAFAST_INLINE F32 mul(F32 a, F32 b) { return {_mm256_mul_ps(a.v, b.v)}; }
ULTRAFAST_INLINE F32 div(F32 a, F32 b) { return {_mm256_div_ps(a.v, b.v)}; }
// a > b ? a : b, so that a NaN in either yields b.
ULTRAFAST_INLINE F32 max(F32 a, F32 b) { return {_mm256_max_ps(a.v, b.v)}; }
ULTRAFAST_INLINE F32 min(F32 a, F32 b) { return {_mm256_min_ps(a.v, b.v)}; }
// Attention only (exactness rule 6).
ULTRAFAST_INLINE F32 fused(F32 a, F32 b, F32 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
ULTRAFAST_INLINE F32 abs(F32 a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
ULTRAFAST_INLINE float square_root(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

ULTRAFAST_INLINE Mask less(F32 a, F32 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
ULTRAFAST_INLINE Mask less_equal(F32 a, F32 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LE_OQ)}; }
ULTRAFAST_INLINE F32 select(Mask m, F32 yes, F32 no) { return {_mm256_blendv_ps(no.v, yes.v, m.v)}; }
ULTRAFAST_INLINE bool all(Mask m) { return _mm256_movemask_ps(m.v) == 0xff; }

ULTRAFAST_INLINE F32 load_half(const std::uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
// Rounds to nearest even.
ULTRAFAST_INLINE void store_half(std::uint16_t* p, F32 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
ULTRAFAST_INLINE F32 load_bfloat(const std::uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}

ULTRAFAST_INLINE I32 set1_int(std::int32_t x) { return {_mm256_set1_epi32(x)}; }
ULTRAFAST_INLINE I32 load_int(const std::int32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
ULTRAFAST_INLINE void store_int(std::int32_t* p, I32 a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v); }
ULTRAFAST_INLINE I32 add(I32 a, I32 b) { return {_mm256_add_epi32(a.v, b.v)}; }
ULTRAFAST_INLINE I32 sub(I32 a, I32 b) { return {_mm256_sub_epi32(a.v, b.v)}; }
ULTRAFAST_INLINE I32 bit_and(I32 a, I32 b) { return {_mm256_and_si256(a.v, b.v)}; }
ULTRAFAST_INLINE I32 bit_or(I32 a, I32 b) { return {_mm256_or_si256(a.v, b.v)}; }
ULTRAFAST_INLINE I32 bit_xor(I32 a, I32 b) { return {_mm256_xor_si256(a.v, b.v)}; }
template <int kBits>
ULTRAFAST_INLINE I32 shift_left(I32 a) {
  return {_mm256_slli_epi32(a.v, kBits)};
}
template <int kBits>
ULTRAFAST_INLINE I32 shift_right(I32 a) {  // zeros enter from the left
  return {_mm256_srli_epi32(a.v, kBits)};
}
ULTRAFAST_INLINE F32 to_float(I32 a) { return {_mm256_cvtepi32_ps(a.v)}; }
// Nearest even; callers keep |a| below 2^22.
ULTRAFAST_INLINE I32 round_to_int(F32 a) { return {_mm256_cvtps_epi32(a.v)}; }
ULTRAFAST_INLINE I32 bits_of(F32 a) { return {_mm256_castps_si256(a.v)}; }
ULTRAFAST_INLINE F32 float_of(I32 a) { return {_mm256_castsi256_ps(a.v)}; }

// 32 × 32 → 64 bits, unsigned, per lane.
ULTRAFAST_INLINE void multiply_wide(I32 a, std::uint32_t factor, I32& high, I32& low) {
  const __m256i f = _mm256_set1_epi32(static_cast<int>(factor));
  const __m256i even = _mm256_mul_epu32(a.v, f);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a.v, 32), f);
  low.v = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
  high.v = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}

// Narrows 8 lanes, each within int8, to 8 bytes.
ULTRAFAST_INLINE void store_bytes(std::int8_t* p, I32 a) {
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}

// Asks for a line that is read once. Any address will do.
ULTRAFAST_INLINE void prefetch_once(const std::uint8_t* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_NTA);
}
ULTRAFAST_INLINE U8 load_bytes(const std::uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
ULTRAFAST_INLINE void store_bytes(std::uint8_t* p, U8 a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v); }
// kMask of every byte shifted right by kShift bits (left where negative). The mask keeps out what crosses bytes.
template <int kShift, int kMask>
ULTRAFAST_INLINE U8 bits(U8 a) {
  const __m256i mask = _mm256_set1_epi8(static_cast<char>(kMask));
  if constexpr (kShift > 0) return {_mm256_and_si256(_mm256_srli_epi16(a.v, kShift), mask)};
  if constexpr (kShift < 0) return {_mm256_and_si256(_mm256_slli_epi16(a.v, -kShift), mask)};
  return {_mm256_and_si256(a.v, mask)};
}
ULTRAFAST_INLINE U8 bit_or(U8 a, U8 b) { return {_mm256_or_si256(a.v, b.v)}; }
// Raised by 128 or lowered by it, which is the same.
ULTRAFAST_INLINE U8 flip_top(U8 a) { return {_mm256_xor_si256(a.v, _mm256_set1_epi8(static_cast<char>(0x80)))}; }
// table[code] for codes 0..15.
ULTRAFAST_INLINE U8 look_up(const std::int8_t* table, U8 codes) {
  const __m128i values = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
  return {_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), codes.v)};
}
// Eight bytes, each to a float.
ULTRAFAST_INLINE F32 float_of_unsigned(const std::uint8_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
}
ULTRAFAST_INLINE F32 float_of_signed(const std::uint8_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
}
// The four bytes at p, in every 32-bit lane.
ULTRAFAST_INLINE Quad broadcast_quad(const std::int8_t* p) {
  std::int32_t quad;
  __builtin_memcpy(&quad, p, sizeof quad);
  return {_mm256_set1_epi32(quad)};
}

// Sums of products of unsigned codes with int8 activations in 16-bit lanes: each step adds two products to a lane, so
// a caller widens after at most 32,767 / (2 × largest code × 127) steps.
struct ShortDot {
  __m256i v;
};
ULTRAFAST_INLINE ShortDot short_dot(U8 codes, Quad activations) {
  return {_mm256_maddubs_epi16(codes.v, activations.v)};
}
// sum += x, here and now. A compiler that sees integer sums forms all products first and stores what it has no
// registers for.
ULTRAFAST_INLINE void accumulate(ShortDot& sum, ShortDot x) {
  sum.v = _mm256_add_epi16(sum.v, x.v);
  asm("" : "+x"(sum.v));
}
ULTRAFAST_INLINE void accumulate(I32& sum, I32 x) {
  sum.v = _mm256_add_epi32(sum.v, x.v);
  asm("" : "+x"(sum.v));
}
ULTRAFAST_INLINE I32 widen(ShortDot dot) { return {_mm256_madd_epi16(dot.v, _mm256_set1_epi16(1))}; }

// Signed 8-bit weights (−128..127): |w| × sign(w)·a, two products of at most 128 × 127, widened at once.
static_assert(2 * 128 * 127 <= 32767);
ULTRAFAST_INLINE U8 magnitude(U8 weights) { return {_mm256_abs_epi8(weights.v)}; }
ULTRAFAST_INLINE I32 byte_dot(U8 weights, U8 weight_magnitudes, Quad activations) {
  const __m256i pairs = _mm256_maddubs_epi16(weight_magnitudes.v, _mm256_sign_epi8(activations.v, weights.v));
  return {_mm256_madd_epi16(pairs, _mm256_set1_epi16(1))};
}

}  // namespace ultrafast::ULTRAFAST_ISA
