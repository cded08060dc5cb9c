#include "rotary.h"

#include <bit>

namespace ultrafast {

namespace {

constexpr double kLn2 = 0.693147180559945309417;

// Rounds to the nearest integer for |x| < 2^51.
double nearest(double x) {
  constexpr double kShift = 6755399441055744.0;  // 1.5 × 2^52
  return (x + kShift) - kShift;
}

// atanh series on the mantissa in [sqrt(½), sqrt(2)); x positive and normal.
double natural_log(double x) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  auto exponent = static_cast<std::int64_t>(bits >> 52) - 1023;
  double mantissa = std::bit_cast<double>((bits & 0x000fffffffffffffULL) | 0x3ff0000000000000ULL);
  if (mantissa > 1.41421356237309504880) {
    mantissa *= 0.5;
    ++exponent;
  }
  const double s = (mantissa - 1.0) / (mantissa + 1.0);
  const double square = s * s;
  double sum = 0.0;
  for (int k = 27; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
  return 2.0 * s * sum + static_cast<double>(exponent) * kLn2;
}

// Taylor series after taking out powers of two; |x| < 700.
double exponential(double x) {
  const double n = nearest(x / kLn2);
  const double r = x - n * kLn2;
  double sum = 1.0;
  for (int k = 15; k >= 1; --k) sum = 1.0 + sum * r / k;
  const auto exponent = static_cast<std::uint64_t>(static_cast<std::int64_t>(n) + 1023);
  return sum * std::bit_cast<double>(exponent << 52);
}

struct SineCosine {
  double sine;
  double cosine;
};

// Reduction by π/2 in three parts (exact for quotients below 2^20), then Taylor series on [−π/4, π/4].
SineCosine sine_cosine(double x) {
  constexpr double kFirst = 1.57079632673412561417e+00;
  constexpr double kSecond = 6.07710050630396597660e-11;
  constexpr double kThird = 2.02226624879595063154e-21;
  const double n = nearest(x * 0.63661977236758134308);
  const double r = ((x - n * kFirst) - n * kSecond) - n * kThird;
  const double square = r * r;
  double sine = 1.0;
  for (int k = 18; k >= 2; k -= 2) sine = 1.0 - sine * square / (k * (k + 1));
  sine *= r;
  double cosine = 1.0;
  for (int k = 19; k >= 1; k -= 2) cosine = 1.0 - cosine * square / (k * (k + 1));
  switch (static_cast<std::int64_t>(n) & 3) {
    case 0:
      return {sine, cosine};
    case 1:
      return {cosine, -sine};
    case 2:
      return {-sine, -cosine};
    default:
      return {-cosine, sine};
  }
}

}  // namespace

RotaryTable make_rotary_table(std::int64_t context, const RotarySource& source) {
  const std::int64_t half = source.size / 2;
  RotaryTable table;
  table.size = source.size;
  table.cosines.resize(static_cast<std::size_t>(context * half));
  table.sines.resize(static_cast<std::size_t>(context * half));
  const double log_base = natural_log(source.base);
  for (std::int64_t i = 0; i < half; ++i) {
    double frequency = exponential(-2.0 * static_cast<double>(i) / source.size * log_base);
    if (!source.factors.empty()) frequency /= static_cast<double>(source.factors[static_cast<std::size_t>(i)]);
    for (std::int64_t p = 0; p < context; ++p) {
      const SineCosine value = sine_cosine(static_cast<double>(p) * frequency);
      const auto index = static_cast<std::size_t>(p * half + i);
      table.cosines[index] = static_cast<float>(value.cosine) * source.magnitude;
      table.sines[index] = static_cast<float>(value.sine) * source.magnitude;
    }
  }
  return table;
}

}  // namespace ultrafast
