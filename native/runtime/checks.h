// Small things that several files of the runtime need.
#pragma once

#include <cstdint>
#include <stdexcept>

#include "../kernels/kernels.h"

namespace ultrafast {

// `rows` rounded up to whole units.
constexpr std::int64_t padded(std::int64_t rows) { return (rows + kUnitRows - 1) / kUnitRows * kUnitRows; }

inline void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

}  // namespace ultrafast
