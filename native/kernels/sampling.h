// Vector parts of sampling: arg-max, sums of exponentials and counter-based Gumbel noise.
#pragma once

#include "elementwise.h"
#include "math.h"

namespace ultrafast::ULTRAFAST_ISA {

static std::int32_t arg_max(const float* x, std::int32_t begin, std::int32_t end) {
  float best = x[begin];
  std::int32_t best_index = begin;
  std::int32_t i = begin;
  constexpr int kStride = 4 * kLanes;
  for (; i + kStride <= end; i += kStride) {
    const F32 a = max(load(x + i), load(x + i + kLanes));
    const F32 b = max(load(x + i + 2 * kLanes), load(x + i + 3 * kLanes));
    if (all(less_equal(max(a, b), set1(best)))) continue;
    for (int k = 0; k < kStride; ++k) {
      if (x[i + k] > best) {
        best = x[i + k];
        best_index = i + k;
      }
    }
  }
  for (; i < end; ++i) {
    if (x[i] > best) {
      best = x[i];
      best_index = i;
    }
  }
  return best_index;
}

static std::int32_t next_reaching(const float* x, const float* slack, float norm, float threshold, std::int32_t begin,
                                  std::int32_t end) {
  std::int32_t i = begin;
  constexpr int kStride = 4 * kLanes;
  const F32 factor = set1(norm);
  const F32 wanted = set1(threshold);
  for (; i + kStride <= end; i += kStride) {
    F32 best = add(load(x + i), mul(load(slack + i), factor));
    for (int v = 1; v < 4; ++v) {
      best = max(best, add(load(x + i + v * kLanes), mul(load(slack + i + v * kLanes), factor)));
    }
    if (!all(less(best, wanted))) break;
  }
  for (; i < end; ++i) {
    if (x[i] + slack[i] * norm >= threshold) break;
  }
  return i;
}

static float exp_sum(const float* x, float shift, std::int32_t n, float* out) {
  F32 sums[kVirtualVectors];
  for (F32& sum : sums) sum = zero();
  std::int32_t i = 0;
  for (; i + kVirtualLanes <= n; i += kVirtualLanes) {
    for (int v = 0; v < kVirtualVectors; ++v) {
      const F32 e = exponential(sub(load(x + i + v * kLanes), set1(shift)));
      store(out + i + v * kLanes, e);
      sums[v] = add(sums[v], e);
    }
  }
  alignas(64) float lanes[kVirtualLanes];
  for (int v = 0; v < kVirtualVectors; ++v) store(lanes + v * kLanes, sums[v]);
  for (int lane = 0; i < n; ++i, ++lane) {
    out[i] = scalar_exponential(x[i] - shift);
    lanes[lane] = lanes[lane] + out[i];
  }
  return fold_sum(lanes);
}

static float scalar_log(float x) {
  alignas(32) float lanes[kLanes];
  store(lanes, logarithm(set1(x)));
  return lanes[0];
}

struct Philox {
  I32 word[4];
};

// Philox4x32-10 (Salmon et al., SC11), eight counters at once.
ULTRAFAST_INLINE Philox philox(const NoiseKey& key, I32 counter) {
  Philox x = {{counter, set1_int(static_cast<std::int32_t>(key.output_index)),
               set1_int(static_cast<std::int32_t>(key.choice)), set1_int(0)}};
  std::uint32_t k0 = static_cast<std::uint32_t>(key.seed);
  std::uint32_t k1 = static_cast<std::uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    I32 high0, low0, high1, low1;
    multiply_wide(x.word[0], 0xD2511F53u, high0, low0);
    multiply_wide(x.word[2], 0xCD9E8D57u, high1, low1);
    x.word[0] = bit_xor(bit_xor(high1, x.word[1]), set1_int(static_cast<std::int32_t>(k0)));
    x.word[1] = low1;
    x.word[2] = bit_xor(bit_xor(high0, x.word[3]), set1_int(static_cast<std::int32_t>(k1)));
    x.word[3] = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return x;
}

// g = −log(−log(u)), u = (n + ½) · 2⁻²⁴ with n the upper 24 bits. Near one u itself does not fit float32, but
// 1 − u = (2²⁴ − 1 − n + ½) · 2⁻²⁴ does: there log(u) is taken as log(1 + f) with f = −(1 − u).
ULTRAFAST_INLINE F32 gumbel_of(I32 word) {
  const I32 n = shift_right<8>(word);
  const I32 complement = sub(set1_int(0xffffff), n);
  const F32 step = set1(5.9604644775390625e-8f);
  const F32 u = mul(add(to_float(n), set1(0.5f)), step);
  const F32 v = mul(add(to_float(complement), set1(0.5f)), step);
  const Reduced reduced = reduce_log(u);
  const Mask near_one = less(v, set1(0.25f));
  const F32 f = select(near_one, sub(zero(), v), reduced.f);
  const F32 exponent = select(near_one, zero(), reduced.exponent);
  const F32 surprise = sub(zero(), log_reduced(f, exponent));
  return sub(zero(), logarithm(surprise));
}

// Token t takes word (t / 8) mod 4 of counter t / 32 × 8 + t mod 8: thirty-two neighbours share eight counters. These
// are the words of the neighbours from t on, a multiple of 32.
ULTRAFAST_INLINE Philox neighbours(const NoiseKey& key, std::int32_t t) {
  alignas(32) std::int32_t counters[kLanes];
  for (int i = 0; i < kLanes; ++i) counters[i] = t / 32 * 8 + i;
  return philox(key, load_int(counters));
}

static void gumbel(const NoiseKey& key, const std::int32_t* ids, std::int32_t n, float* noise) {
  if (ids == nullptr) {
    for (std::int32_t t = 0; t < n; t += 32) {
      const Philox random = neighbours(key, t);
      for (int w = 0; w < 4; ++w) store(noise + t + w * 8, gumbel_of(random.word[w]));
    }
    return;
  }
  alignas(32) std::int32_t counters[kLanes];
  alignas(32) std::int32_t words[4][kLanes];
  for (std::int32_t k = 0; k < n; k += kLanes) {
    const int count = n - k < kLanes ? n - k : kLanes;
    for (int i = 0; i < kLanes; ++i) {
      const std::int32_t t = ids[k + (i < count ? i : 0)];
      counters[i] = t / 32 * 8 + t % 8;
    }
    const Philox random = philox(key, load_int(counters));
    for (int w = 0; w < 4; ++w) store_int(words[w], random.word[w]);
    alignas(32) std::int32_t own[kLanes];
    for (int i = 0; i < kLanes; ++i) own[i] = words[ids[k + (i < count ? i : 0)] / 8 % 4][i];
    alignas(32) float values[kLanes];
    store(values, gumbel_of(load_int(own)));
    for (int i = 0; i < count; ++i) noise[k + i] = values[i];
  }
}

// Rounding is monotone, so the operations of an exact score keep the order of a larger logit; the sum itself is raised
// by more than its rounding.
static void noisy_bounds(const NoiseKey& key, const float* slack, float norm, float maximum, float temperature,
                         std::int32_t begin, std::int32_t end, float* x) {
  for (std::int32_t t = begin; t < end; t += 32) {
    const Philox random = neighbours(key, t);
    for (int w = 0; w < 4; ++w) {
      float* at = x + t + w * 8;
      F32 upper = add(load(at), mul(load(slack + t + w * 8), set1(norm)));
      upper = add(upper, add(mul(abs(upper), set1(2.4e-7f)), set1(1e-30f)));
      store(at, add(gumbel_of(random.word[w]), div(sub(upper, set1(maximum)), set1(temperature))));
    }
  }
}

}  // namespace ultrafast::ULTRAFAST_ISA
