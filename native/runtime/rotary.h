// Rotary position tables from our own double-precision code: libm differs between systems, these bits do not.
#pragma once

#include <cstdint>
#include <vector>

namespace ultrafast {

struct RotaryTable {
  std::vector<float> cosines;  // [context][rotary / 2]
  std::vector<float> sines;
};

// Angle of pair i at position p: p × base^(−2i / rotary) / factors[i]. factors may be empty (all one).
RotaryTable make_rotary_table(std::int64_t context, std::int32_t rotary, double base,
                              const std::vector<float>& factors);

}  // namespace ultrafast
