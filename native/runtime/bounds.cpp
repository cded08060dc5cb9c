#include "bounds.h"

#include <cmath>
#include <cstring>
#include <limits>

#define ULTRAFAST_ISA portable
#include "../kernels/vec_portable.h"

namespace ultrafast {

namespace {

constexpr double kUnitRoundoff = 0x1p-24;
// For what doubles round, and next_reaching's product.
constexpr double kSafety = 1.0 + 1e-6;
// Underflow rounds absolutely: a few hundred times 2⁻¹⁴⁹ at most.
constexpr float kTiny = 1e-30f;

}  // namespace

void UpperSlack::add(const std::uint8_t* scale, const std::uint8_t* codes) {
  std::uint16_t half;
  std::memcpy(&half, scale, sizeof half);
  const double d = portable::half_to_float(half);
  std::int32_t squares = 0;
  std::int32_t twice_residuals = 0;  // squares of twice the residual, which is a whole number
  for (int c = 0; c < kBlock; ++c) {
    const int code = static_cast<std::int8_t>(codes[c]);
    constexpr int kParts = 1 << kSplitBits;
    const int twice_residual = 2 * ((code + 128) % kParts) - (kParts - 1);
    squares += code * code;
    twice_residuals += twice_residual * twice_residual;
  }
  weights_ += d * d * squares;
  residual_ += d * d * twice_residuals / 4;
  ++blocks_;
}

float UpperSlack::slack() const {
  const double weights = std::sqrt(weights_);
  const double residual = std::sqrt(residual_);
  if (!(weights + residual < kLargestNorm)) return std::numeric_limits<float>::infinity();
  const double rounding = static_cast<double>(blocks_ + 2) * kUnitRoundoff * (2 * weights + residual);
  return static_cast<float>((residual + rounding) * kSafety);
}

float activation_norm(const Activation& row, std::int64_t columns) {
  double squares = 0.0;
  for (std::int64_t b = 0; b < columns / kBlock; ++b) {
    std::int32_t block = 0;
    for (int c = 0; c < kBlock; ++c) {
      const std::int32_t value = row.bytes[b * kBlock + c];
      block += value * value;
    }
    squares += static_cast<double>(row.scales[b]) * row.scales[b] * block;
  }
  return static_cast<float>(std::sqrt(squares) * kSafety);
}

float reach_threshold(float score) { return score - std::abs(score) * 1e-6f - kTiny; }

}  // namespace ultrafast
