// Norms, quantisation of activations, gates and rotations. Reductions run in 16 virtual lanes by index mod 16
// (exactness rule 5): two vectors of 8 here, one of 16 elsewhere.
#pragma once

#include "math.h"

namespace ultrafast::ULTRAFAST_ISA {

constexpr int kVirtualLanes = 16;
constexpr int kVirtualVectors = kVirtualLanes / kLanes;
constexpr float kLargestFloat = 3.4028234663852886e38f;
// Below this, 127 / amax would overflow; such a block is zero.
constexpr float kTinyAmax = 1e-30f;

static bool finite(const float* x, std::int64_t n) {
  const F32 largest = set1(kLargestFloat);
  std::int64_t i = 0;
  bool good = true;
  for (; i + kLanes <= n; i += kLanes) good &= all(less_equal(abs(load(x + i)), largest));
  for (; i < n; ++i) good &= x[i] >= -kLargestFloat && x[i] <= kLargestFloat;
  return good;
}

static float sum_of_squares(const float* x, std::int64_t n) {
  F32 sums[kVirtualVectors];
  for (F32& sum : sums) sum = zero();
  std::int64_t i = 0;
  for (; i + kVirtualLanes <= n; i += kVirtualLanes) {
    for (int v = 0; v < kVirtualVectors; ++v) {
      const F32 value = load(x + i + v * kLanes);
      sums[v] = add(sums[v], mul(value, value));
    }
  }
  alignas(64) float lanes[kVirtualLanes];
  for (int v = 0; v < kVirtualVectors; ++v) store(lanes + v * kLanes, sums[v]);
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] = lanes[lane] + x[i] * x[i];
  return fold_sum(lanes);
}

static bool rms_norm(const float* x, const float* weight, float epsilon, std::int64_t n, float* values) {
  const float mean = sum_of_squares(x, n) / static_cast<float>(n);
  const float factor = 1.0f / square_root(mean + epsilon);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    store(values + i, mul(mul(load(x + i), set1(factor)), load(weight + i)));
  }
  for (; i < n; ++i) values[i] = x[i] * factor * weight[i];
  return mean <= kLargestFloat && finite(values, n);
}

static void quantise(const float* x, std::int64_t n, const Activation& out) {
  for (std::int64_t b = 0; b < n / kBlock; ++b) {
    const float* block = x + b * kBlock;
    F32 largest = zero();
    for (int i = 0; i < kBlock; i += kLanes) largest = max(largest, abs(load(block + i)));
    alignas(32) float lanes[kLanes];
    store(lanes, largest);
    float amax = 0.0f;
    for (float lane : lanes) amax = lane > amax ? lane : amax;
    const bool usable = amax > kTinyAmax && amax <= kLargestFloat;
    const F32 inverse = set1(usable ? 127.0f / amax : 0.0f);
    const F32 keep = set1(usable ? 1.0f : 0.0f);
    I32 half_sums[2] = {set1_int(0), set1_int(0)};
    for (int i = 0; i < kBlock; i += kLanes) {
      // max(NaN, −127) is −127: whatever comes in, an int8 goes out.
      const F32 bounded = min(max(mul(load(block + i), inverse), set1(-127.0f)), set1(127.0f));
      const I32 rounded = round_to_int(mul(bounded, keep));
      store_bytes(out.bytes + b * kBlock + i, rounded);
      half_sums[i / (kBlock / 2)] = add(half_sums[i / (kBlock / 2)], rounded);
    }
    std::int32_t halves[2] = {};
    for (int h = 0; h < 2; ++h) {
      alignas(32) std::int32_t sum_lanes[kLanes];
      store_int(sum_lanes, half_sums[h]);
      for (std::int32_t lane : sum_lanes) halves[h] += lane;
    }
    const std::int32_t sum = halves[0] + halves[1];
    const float scale = usable ? amax / 127.0f : 0.0f;
    out.scales[b] = scale;
    out.sums[b] = sum;
    out.half_sums[2 * b] = halves[0];
    out.half_sums[2 * b + 1] = halves[1];
    out.scaled_sums[b] = scale * static_cast<float>(sum);
  }
}

static void activate_multiply(ActivationKind kind, float* gate, const float* up, std::int64_t n) {
  if (kind == ActivationKind::kGelu) {
    for (std::int64_t i = 0; i < n; i += kLanes) store(gate + i, mul(gelu(load(gate + i)), load(up + i)));
    return;
  }
  for (std::int64_t i = 0; i < n; i += kLanes) store(gate + i, mul(silu(load(gate + i)), load(up + i)));
}

static void soft_cap(float* x, float cap, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += kLanes) store(x + i, soft_capped(load(x + i), cap));
}

static void rotate(float* head, const float* cosines, const float* sines, std::int32_t rotary) {
  const int half = rotary / 2;
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const F32 x = load(head + i);
    const F32 y = load(head + half + i);
    const F32 c = load(cosines + i);
    const F32 s = load(sines + i);
    store(head + i, sub(mul(x, c), mul(y, s)));
    store(head + half + i, add(mul(y, c), mul(x, s)));
  }
  for (; i < half; ++i) {
    const float x = head[i];
    const float y = head[half + i];
    head[i] = x * cosines[i] - y * sines[i];
    head[half + i] = y * cosines[i] + x * sines[i];
  }
}

static void half_to_float_array(const std::uint16_t* x, std::int64_t n, float* out) {
  alignas(32) float lanes[kLanes];
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, load_half(x + i));
  if (i == n) return;
  std::uint16_t rest[kLanes] = {};
  for (std::int64_t k = i; k < n; ++k) rest[k - i] = x[k];
  store(lanes, load_half(rest));
  for (std::int64_t k = i; k < n; ++k) out[k] = lanes[k - i];
}

}  // namespace ultrafast::ULTRAFAST_ISA
