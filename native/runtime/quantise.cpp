#include "quantise.h"

#include <algorithm>
#include <cmath>
#include <cstring>

// For its conversions of float16: plain code, for any processor.
#define ULTRAFAST_ISA portable
#include "../kernels/vec_portable.h"

namespace ultrafast {

namespace {

float stored_value(WeightType stored, const std::uint8_t* values, int index) {
  if (stored == WeightType::kF32) {
    float value;
    std::memcpy(&value, values + 4 * index, sizeof value);
    return value;
  }
  std::uint16_t half;
  std::memcpy(&half, values + 2 * index, sizeof half);
  if (stored == WeightType::kF16) return portable::half_to_float(half);
  return portable::float_of_word(static_cast<std::uint32_t>(half) << 16);
}

// False where float16 does not reach so far.
bool write_half(float value, std::uint8_t* out) {
  const std::uint16_t half = portable::float_to_half(value);
  std::memcpy(out, &half, sizeof half);
  return (half & 0x7c00u) != 0x7c00u;
}

// 0 where there is none.
float reciprocal(float scale) {
  const float inverse = 1.0f / scale;
  return std::isfinite(inverse) ? inverse : 0.0f;
}

// To the nearest integer, away from zero between two.
int rounded(float x) {
  const int whole = static_cast<int>(x);
  const float rest = x - static_cast<float>(whole);
  return whole + (rest >= 0.5f ? 1 : 0) - (rest <= -0.5f ? 1 : 0);
}

bool write_q8_0(const float* x, std::uint8_t* out) {
  float largest = 0.0f;
  for (int c = 0; c < kBlock; ++c) largest = std::max(largest, std::fabs(x[c]));
  const float scale = largest / 127.0f;
  if (!write_half(scale, out)) return false;
  const float inverse = reciprocal(scale);
  for (int c = 0; c < kBlock; ++c) out[2 + c] = static_cast<std::uint8_t>(rounded(x[c] * inverse));
  return true;
}

bool write_q4_1(const float* x, std::uint8_t* out) {
  float minimum = x[0];
  float maximum = x[0];
  for (int c = 1; c < kBlock; ++c) {
    minimum = std::min(minimum, x[c]);
    maximum = std::max(maximum, x[c]);
  }
  const float scale = (maximum - minimum) / 15.0f;
  if (!write_half(scale, out) || !write_half(minimum, out + 2)) return false;
  const float inverse = reciprocal(scale);
  const auto code = [&](int c) { return std::min(15, static_cast<int>((x[c] - minimum) * inverse + 0.5f)); };
  for (int c = 0; c < kBlock / 2; ++c) out[4 + c] = static_cast<std::uint8_t>(code(c) | code(c + kBlock / 2) << 4);
  return true;
}

}  // namespace

bool quantise_block(WeightType stored, const std::uint8_t* values, WeightType type, std::uint8_t* out) {
  float x[kBlock];
  bool finite = true;
  for (int c = 0; c < kBlock; ++c) {
    x[c] = stored_value(stored, values, c);
    finite = finite && std::isfinite(x[c]);
  }
  if (!finite) return false;
  return type == WeightType::kQ8_0 ? write_q8_0(x, out) : write_q4_1(x, out);
}

}  // namespace ultrafast
