// How far a product with the upper parts of kQ8_0Split may be from the exact one.
//
// Let w be a row as laid out, u the values that its upper codes stand for and x an activation row of n blocks as the
// kernels see it, all taken as real numbers. Then |w·x − u·x| ≤ ‖w − u‖ ‖x‖ (Cauchy and Schwarz). Each chain of float32
// operations rounds a block's term n + 1 times at most, so it is off by at most (n + 2) 2⁻²⁴ ‖w‖ ‖x‖, or that with u;
// and ‖u‖ ≤ ‖w‖ + ‖w − u‖. A row's slack is the sum of all that over ‖x‖.
#pragma once

#include <cstdint>

#include "../kernels/kernels.h"

namespace ultrafast {

class UpperSlack {
 public:
  // The row's next block: its float16 scale and its 32 signed codes.
  void add(const std::uint8_t* scale, const std::uint8_t* codes);
  // Not finite where nothing can be said: the row has a scale that is not, or values near the end of float32's range.
  float slack() const;

 private:
  std::int64_t blocks_ = 0;
  double weights_ = 0.0;   // ‖w‖²
  double residual_ = 0.0;  // ‖w − u‖²
};

// Beyond this norm of x nothing can be said either: sums might overflow.
constexpr float kLargestNorm = 1e18f;

// ‖x‖, never less, of an activation row of so many columns.
float activation_norm(const Activation& row, std::int64_t columns);

// The least value of x + slack × norm, as next_reaching computes it, that a row with an exact product of at least
// `score` can have.
float reach_threshold(float score);

}  // namespace ultrafast
