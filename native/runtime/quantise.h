// Float weights as quantised blocks, made while they are laid out.
#pragma once

#include <cstdint>

#include "../kernels/kernels.h"

namespace ultrafast {

constexpr int kMostQuantisedBytes = 34;  // of a block that quantise_block writes

// Whether float weights of type `stored` can become blocks of `type`.
constexpr bool can_quantise(WeightType stored, WeightType type) {
  return !is_quantised(stored) && (type == WeightType::kQ8_0 || type == WeightType::kQ4_1);
}

// Writes kBlock stored values as one block, in the form of a file and with the bytes that ggml's reference gives for
// the same float32 values. Blocks too small for a scale of float32 become zero. False where a value is not finite, or
// too large for the block's float16 numbers.
bool quantise_block(WeightType stored, const std::uint8_t* values, WeightType type, std::uint8_t* out);

}  // namespace ultrafast
