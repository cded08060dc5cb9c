// Rotary position tables from our own double-precision code: libm differs between systems, these bits do not.
#pragma once

#include <cstdint>
#include <vector>

namespace ultrafast {

// Angle of pair i at position p: p × base^(−2i / size) / factors[i].
struct RotarySource {
  std::int32_t size;  // values of a head that turn: pairs (i, i + size / 2)
  double base;
  std::vector<float> factors;  // [size / 2], or empty: all one
  float magnitude;             // multiplies cosines and sines
};

struct RotaryTable {
  std::int32_t size;
  std::vector<float> cosines;  // [context][size / 2]
  std::vector<float> sines;
};

RotaryTable make_rotary_table(std::int64_t context, const RotarySource& source);

}  // namespace ultrafast
