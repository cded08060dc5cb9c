// Weights as the engine reads them: rows interleaved so that a vector lane is an output row, values as the file has
// them, or quantised where that was asked for.
#pragma once

#include <cstdint>
#include <memory>

#include "../kernels/kernels.h"

namespace ultrafast {

// A matrix as a model file stores it: row after row, blocks of 32 columns where it is quantised.
struct MatrixSource {
  WeightType stored;  // in the file
  WeightType type;    // as laid out: the same, or what a float type is quantised to
  const std::uint8_t* data;
  std::int64_t rows;
  std::int64_t columns;
  // Rows of each head are stored with rotary halves interleaved (llama GGUF q and k): put them back. 0 for none.
  std::int32_t interleaved_head_size;
  std::shared_ptr<const void> owner = nullptr;  // keeps `data` valid, where that is needed
};

// Bytes of the source.
std::int64_t source_bytes(WeightType type, std::int64_t rows, std::int64_t columns);

// Bytes of one 32-row unit, a multiple of 64; of kQ8_0Split those of its upper part.
std::int64_t unit_bytes(WeightType type, std::int64_t columns);
// Bytes of the lower part of one, 0 for types that have none.
std::int64_t lower_unit_bytes(WeightType type, std::int64_t columns);

// Where the parts of a unit go; `lower` and the [32] slacks of its rows (bounds.h) are of kQ8_0Split only.
struct UnitOutput {
  std::uint8_t* data;
  std::uint8_t* lower = nullptr;
  float* slack = nullptr;
};

// Writes rows [32 × unit, 32 × unit + 32) to out; rows beyond the matrix become zero. False where a value cannot be
// quantised.
bool write_unit(const MatrixSource& source, std::int64_t unit, const UnitOutput& out);

}  // namespace ultrafast
