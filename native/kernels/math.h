// exp, log and silu as fixed polynomials: multiply and add only, so that every instruction set gives the same bits.
// Coefficients: least-squares fits made minimax by reweighting, in float32.
#pragma once

namespace ultrafast::ULTRAFAST_ISA {

// Relative error below 2e-7 on [−87, 88]; below −87 zero.
ULTRAFAST_INLINE F32 exponential(F32 x) {
  const F32 clamped = min(max(x, set1(-87.0f)), set1(88.0f));
  const I32 n = round_to_int(mul(clamped, set1(1.44269504f)));
  const F32 whole = to_float(n);
  F32 r = sub(clamped, mul(whole, set1(0.693359375f)));
  r = sub(r, mul(whole, set1(-2.12194440e-4f)));
  F32 p = set1(0.00139421306f);
  p = add(mul(p, r), set1(0.00836376939f));
  p = add(mul(p, r), set1(0.0416663624f));
  p = add(mul(p, r), set1(0.166665733f));
  p = add(mul(p, r), set1(0.5f));
  p = add(add(mul(p, mul(r, r)), r), set1(1.0f));
  const F32 scaled = float_of(add(bits_of(p), shift_left<23>(n)));
  return select(less(x, set1(-87.0f)), zero(), scaled);
}

// log(2^exponent × (1 + f)), f in [sqrt(½) − 1, sqrt(2) − 1].
ULTRAFAST_INLINE F32 log_reduced(F32 f, F32 exponent) {
  F32 p = set1(0.0733010471f);
  p = add(mul(p, f), set1(-0.116592437f));
  p = add(mul(p, f), set1(0.116351575f));
  p = add(mul(p, f), set1(-0.123968102f));
  p = add(mul(p, f), set1(0.142511219f));
  p = add(mul(p, f), set1(-0.166691467f));
  p = add(mul(p, f), set1(0.200006887f));
  p = add(mul(p, f), set1(-0.249999806f));
  p = add(mul(p, f), set1(0.333333313f));
  const F32 square = mul(f, f);
  F32 y = mul(mul(p, f), square);
  y = add(y, mul(exponent, set1(-2.12194440e-4f)));
  y = sub(y, mul(square, set1(0.5f)));
  y = add(y, f);
  return add(y, mul(exponent, set1(0.693359375f)));
}

struct Reduced {
  F32 f;
  F32 exponent;
};

// Splits a positive normal x into exponent and f.
ULTRAFAST_INLINE Reduced reduce_log(F32 x) {
  const I32 bits = bits_of(x);
  const F32 mantissa = float_of(bit_or(bit_and(bits, set1_int(0x007fffff)), set1_int(0x3f800000)));  // [1, 2)
  const F32 exponent = to_float(sub(shift_right<23>(bits), set1_int(127)));
  const Mask large = less(set1(1.41421356f), mantissa);
  const F32 f = sub(select(large, mul(mantissa, set1(0.5f)), mantissa), set1(1.0f));
  return {f, select(large, add(exponent, set1(1.0f)), exponent)};
}

// x positive and normal.
ULTRAFAST_INLINE F32 logarithm(F32 x) {
  const Reduced reduced = reduce_log(x);
  return log_reduced(reduced.f, reduced.exponent);
}

ULTRAFAST_INLINE F32 silu(F32 x) { return div(x, add(set1(1.0f), exponential(sub(zero(), x)))); }

// x × sigmoid(2u), which is x × (1 + tanh(u)) / 2; u = sqrt(2 / π) (x + 0.044715 x³).
ULTRAFAST_INLINE F32 gelu(F32 x) {
  const F32 cube = mul(mul(x, x), x);
  const F32 u = mul(add(x, mul(cube, set1(0.044715f))), set1(1.59576912f));
  return div(x, add(set1(1.0f), exponential(sub(zero(), u))));
}

// cap × tanh(x / cap), as 1 − 2 / (e^2y + 1): its absolute error is below 2e-7 × cap.
ULTRAFAST_INLINE F32 soft_capped(F32 x, float cap) {
  const F32 twice = mul(div(x, set1(cap)), set1(2.0f));
  const F32 part = div(set1(2.0f), add(exponential(twice), set1(1.0f)));
  // What is not finite stays so: the exponential would clamp it.
  return add(mul(sub(set1(1.0f), part), set1(cap)), mul(x, zero()));
}

ULTRAFAST_INLINE float scalar_exponential(float x) {
  alignas(32) float lanes[kLanes];
  store(lanes, exponential(set1(x)));
  return lanes[0];
}

// The one fold of 16 virtual lanes: halves are added until one is left.
ULTRAFAST_INLINE float fold_sum(const float* lanes) {
  float t[8];
  for (int i = 0; i < 8; ++i) t[i] = lanes[i] + lanes[i + 8];
  for (int i = 0; i < 4; ++i) t[i] = t[i] + t[i + 4];
  return (t[0] + t[2]) + (t[1] + t[3]);
}

}  // namespace ultrafast::ULTRAFAST_ISA
