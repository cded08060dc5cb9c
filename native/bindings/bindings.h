#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>
#include <vector>

#include "../kernels/kernels.h"
#include "../runtime/layout.h"

namespace ultrafast {

template <class T>
using InputArray = nanobind::ndarray<const T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
template <class T>
using InputCube = nanobind::ndarray<const T, nanobind::ndim<3>, nanobind::c_contig, nanobind::device::cpu>;
template <class T>
using InputMatrix = nanobind::ndarray<const T, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;
template <class T>
using OutputArray = nanobind::ndarray<nanobind::numpy, T, nanobind::c_contig>;

// A NumPy array that owns a copy of `values`.
template <class T>
OutputArray<T> owned_array(const std::vector<T>& values, std::vector<std::size_t> shape) {
  auto* data = new T[values.size() + 1];
  for (std::size_t i = 0; i < values.size(); ++i) data[i] = values[i];
  nanobind::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return OutputArray<T>(data, shape.size(), shape.data(), owner);
}

std::vector<std::string> instruction_sets();
// All throw ValueError.
const KernelTable& kernels_for(const std::string& instruction_set);
WeightType weight_type(const std::string& name);
ActivationKind activation_kind(const std::string& name);

// Checks that data holds the matrix exactly, and that its type can be laid out as `layout`. Throws ValueError.
MatrixSource matrix_source(const std::string& type, const std::string& layout, const InputArray<std::uint8_t>& data,
                           std::int64_t rows, std::int64_t columns, std::int32_t interleaved_head_size);

void register_model(nanobind::module_& module);
void register_kernels(nanobind::module_& module);
void register_sentence_piece(nanobind::module_& module);

}  // namespace ultrafast
