// The Python module ultrafast._native. One call per step, buffers not objects, the GIL released around real work.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ultrafast {

namespace {

#if defined(__x86_64__)
bool has_avx2() {
  // GCC's and Clang's run-time library asks the operating system too whether it keeps the wide registers.
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
#endif

}  // namespace

std::vector<std::string> instruction_sets() {
  std::vector<std::string> sets;
#if defined(__x86_64__)
  if (has_avx2()) sets.emplace_back("avx2");
#endif
  sets.emplace_back("portable");
  return sets;
}

const KernelTable& kernels_for(const std::string& instruction_set) {
  for (const std::string& runnable : instruction_sets()) {
    if (runnable != instruction_set) continue;
#if defined(__x86_64__)
    if (instruction_set == "avx2") return avx2::kTable;
#endif
    return portable::kTable;
  }
  throw nb::value_error("this processor cannot run that instruction set");
}

WeightType weight_type(const std::string& name) {
  static constexpr std::pair<const char*, WeightType> kTypes[] = {
      {"F32", WeightType::kF32},     {"F16", WeightType::kF16},         {"BF16", WeightType::kBF16},
      {"Q8_0", WeightType::kQ8_0},   {"Q4_0", WeightType::kQ4_0},       {"Q4_1", WeightType::kQ4_1},
      {"Q5_0", WeightType::kQ5_0},   {"Q5_1", WeightType::kQ5_1},       {"Q2_K", WeightType::kQ2_K},
      {"Q3_K", WeightType::kQ3_K},   {"Q4_K", WeightType::kQ4_K},       {"Q5_K", WeightType::kQ5_K},
      {"Q6_K", WeightType::kQ6_K},   {"IQ4_NL", WeightType::kIQ4_NL},   {"IQ4_XS", WeightType::kIQ4_XS},
      {"MXFP4", WeightType::kMXFP4}, {"NVFP4", WeightType::kNVFP4},     {"IQ1_S", WeightType::kIQ1_S},
      {"IQ1_M", WeightType::kIQ1_M}, {"IQ2_XXS", WeightType::kIQ2_XXS}, {"IQ2_XS", WeightType::kIQ2_XS},
      {"IQ2_S", WeightType::kIQ2_S}, {"IQ3_XXS", WeightType::kIQ3_XXS}, {"IQ3_S", WeightType::kIQ3_S},
      {"TQ1_0", WeightType::kTQ1_0}, {"TQ2_0", WeightType::kTQ2_0},     {"Q1_0", WeightType::kQ1_0},
      {"Q2_0", WeightType::kQ2_0},
  };
  for (const auto& [known, type] : kTypes) {
    if (name == known) return type;
  }
  throw nb::value_error("unknown weight type");
}

namespace {

std::int64_t row_bytes(const std::string& type, std::int64_t columns) {
  const WeightType known = weight_type(type);
  if (columns < 0 || columns % block_columns(known) != 0) throw nb::value_error("columns are not whole blocks");
  return group_bytes(known, columns) / kGroupRows;
}

}  // namespace

}  // namespace ultrafast

NB_MODULE(_native, module) {
  module.doc() = "Ultrafast's kernels and runtime.";
  module.def("instruction_sets", &ultrafast::instruction_sets, "Instruction sets this processor runs, fastest first.");
  module.def("row_bytes", &ultrafast::row_bytes, "type"_a, "columns"_a,
             "Bytes of a row of a matrix of that type as the engine holds it.");
  ultrafast::register_model(module);
  ultrafast::register_sentence_piece(module);
  nb::module_ kernels = module.def_submodule("kernels", "Single kernels, for tests against their plain twins.");
  ultrafast::register_kernels(kernels);
}
