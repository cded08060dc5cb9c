// Quantised blocks as model files store them, taken apart: every type's bits become plain codes and scales.
#pragma once

#include <cstdint>

#include "../kernels/kernels.h"

namespace ultrafast {

// One row's block of 32 columns, as block_format describes it.
struct BlockCodes {
  std::uint8_t code[kBlock];
  std::uint8_t bytes[2];
};

// Bytes of one block of the file, or of one float.
int file_block_bytes(WeightType type);

// The block's float16 scale (half 0) or minimum (half 1), two bytes.
void take_half(WeightType type, const std::uint8_t* data, int half, std::uint8_t* out);

// The 32 columns from 32 × i on.
void take_block(WeightType type, const std::uint8_t* data, int i, BlockCodes& out);

}  // namespace ultrafast
