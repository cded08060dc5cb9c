// Kernels one by one, so that tests can hold each instruction set against a plain twin.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "../runtime/bounds.h"
#include "../runtime/quantise.h"
#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ultrafast {

namespace {

struct OwnedActivation {
  std::vector<float> values;
  std::vector<std::int8_t> bytes;
  std::vector<float> scales;
  std::vector<std::int32_t> sums;
  std::vector<std::int32_t> half_sums;
  std::vector<float> scaled_sums;

  explicit OwnedActivation(std::vector<float> x)
      : values(std::move(x)),
        bytes(values.size()),
        scales(values.size() / kBlock + 1),
        sums(scales.size()),
        half_sums(2 * scales.size()),
        scaled_sums(scales.size()) {}
  Activation view() {
    return {values.data(), bytes.data(), scales.data(), sums.data(), half_sums.data(), scaled_sums.data()};
  }
};

// Rows of x as a product with a matrix of `type` wants them.
class Activations {
 public:
  Activations(const KernelTable& kernels, WeightType type, std::int64_t columns, const InputMatrix<float>& x) {
    if (static_cast<std::int64_t>(x.shape(1)) != columns) throw nb::value_error("x must have `columns` columns");
    owned_.reserve(x.shape(0));
    for (std::size_t r = 0; r < x.shape(0); ++r) {
      const float* row = x.data() + r * static_cast<std::size_t>(columns);
      owned_.emplace_back(std::vector<float>(row, row + columns));
      if (is_quantised(type)) kernels.quantise(row, columns, owned_.back().view());
      views_.push_back(owned_.back().view());
    }
  }
  const Activation* data() const { return views_.data(); }
  std::size_t size() const { return views_.size(); }

 private:
  std::vector<OwnedActivation> owned_;
  std::vector<Activation> views_;
};

// Products of activations with a matrix that is laid out by the unit, as a thread's arena holds it.
class Product {
 public:
  Product(const MatrixSource& source, const Activations& activations)
      : type_(source.type),
        rows_(source.rows),
        columns_(source.columns),
        units_((source.rows + kUnitRows - 1) / kUnitRows),
        unit_bytes_(unit_bytes(source.type, source.columns)),
        lower_bytes_(lower_unit_bytes(source.type, source.columns)),
        activations_(activations),
        upper_(static_cast<std::size_t>(units_ * unit_bytes_ + kLine)),
        lower_(static_cast<std::size_t>(units_ * lower_bytes_ + kLine)),
        output_(activations.size() * static_cast<std::size_t>(units_ * kUnitRows)),
        slack_(static_cast<std::size_t>(units_ * kUnitRows)) {
    for (std::int64_t u = 0; u < units_; ++u)
      write_unit(source, u, {upper(u), lower(u), slack_.data() + u * kUnitRows});
    slack_.resize(static_cast<std::size_t>(rows_));
  }

  void run(void (*kernel)(const LinearArguments&)) {
    for (std::int64_t u = 0; u < units_; ++u) {
      kernel({.type = type_,
              .unit = upper(u),
              .lower = lower(u),
              .columns = columns_,
              .activations = activations_.data(),
              .rows = static_cast<std::int32_t>(activations_.size()),
              .output = output_.data() + u * kUnitRows,
              .output_stride = units_ * kUnitRows,
              .epilogue = Epilogue::kStore});
    }
  }

  // [activation rows][matrix rows]
  OutputArray<float> output() const {
    std::vector<float> result;
    for (std::size_t r = 0; r < activations_.size(); ++r) {
      const float* row = output_.data() + static_cast<std::int64_t>(r) * units_ * kUnitRows;
      result.insert(result.end(), row, row + rows_);
    }
    return owned_array(result, {activations_.size(), static_cast<std::size_t>(rows_)});
  }

  const std::vector<float>& slack() const { return slack_; }  // [matrix rows], as write_unit fills it

 private:
  static constexpr std::int64_t kLine = 64;  // of a cache, on which an arena begins

  static std::uint8_t* aligned(std::vector<std::uint8_t>& bytes) {
    const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
    return bytes.data() + (kLine - address % kLine) % kLine;
  }
  std::uint8_t* upper(std::int64_t unit) { return aligned(upper_) + unit * unit_bytes_; }
  std::uint8_t* lower(std::int64_t unit) { return aligned(lower_) + unit * lower_bytes_; }

  WeightType type_;
  std::int64_t rows_, columns_, units_, unit_bytes_, lower_bytes_;
  const Activations& activations_;
  std::vector<std::uint8_t> upper_, lower_;
  std::vector<float> output_, slack_;
};

// How many times a second `work` is done, after a first time that does not count: for benchmarks.
template <class Work>
double rate(double seconds, const Work& work) {
  if (!(seconds > 0.0 && seconds <= 60.0)) throw nb::value_error("seconds must be above 0 and at most 60");
  const nb::gil_scoped_release released;
  work();
  const auto start = std::chrono::steady_clock::now();
  std::chrono::duration<double> passed{};
  std::int64_t times = 0;
  do {
    work();
    ++times;
    passed = std::chrono::steady_clock::now() - start;
  } while (passed.count() < seconds);
  return static_cast<double>(times) / passed.count();
}

// [activation rows][matrix rows]
OutputArray<float> linear(const std::string& set, const std::string& type, const InputArray<std::uint8_t>& data,
                          std::int64_t rows, std::int64_t columns, std::int32_t interleaved_head_size,
                          const InputMatrix<float>& x) {
  const KernelTable& kernels = kernels_for(set);
  const MatrixSource source = matrix_source(type, type, data, rows, columns, interleaved_head_size);
  const Activations activations(kernels, source.type, columns, x);
  Product product(source, activations);
  product.run(kernels.linear);
  return product.output();
}

// How many times a second the calling thread multiplies all rows of x with the whole matrix.
double linear_rate(const std::string& set, const std::string& type, const InputArray<std::uint8_t>& data,
                   std::int64_t rows, std::int64_t columns, const InputMatrix<float>& x, double seconds) {
  const KernelTable& kernels = kernels_for(set);
  const MatrixSource source = matrix_source(type, type, data, rows, columns, 0);
  const Activations activations(kernels, source.type, columns, x);
  Product product(source, activations);
  return rate(seconds, [&] { product.run(kernels.linear); });
}

// A Q8_0 matrix laid out in parts: exact products and those of the upper parts, each [activation rows][matrix rows],
// and how far these may be from those, as [matrix rows] of slack times [activation rows] of norms.
nb::tuple split_linear(const std::string& set, const InputArray<std::uint8_t>& data, std::int64_t rows,
                       std::int64_t columns, const InputMatrix<float>& x) {
  const KernelTable& kernels = kernels_for(set);
  MatrixSource source = matrix_source("Q8_0", "Q8_0", data, rows, columns, 0);
  source.type = WeightType::kQ8_0Split;
  const Activations activations(kernels, source.type, columns, x);
  Product product(source, activations);
  product.run(kernels.linear);
  const auto exact = product.output();
  product.run(kernels.linear_upper);
  const auto upper = product.output();
  const std::vector<float>& slack = product.slack();
  std::vector<float> norms;
  for (std::size_t r = 0; r < activations.size(); ++r) norms.push_back(activation_norm(activations.data()[r], columns));
  return nb::make_tuple(exact, upper, owned_array(slack, {slack.size()}), owned_array(norms, {norms.size()}));
}

nb::tuple quantise(const std::string& set, const InputArray<float>& x) {
  if (x.size() % kBlock != 0) throw nb::value_error("x must be whole blocks of 32");
  OwnedActivation owned(std::vector<float>(x.data(), x.data() + x.size()));
  kernels_for(set).quantise(x.data(), static_cast<std::int64_t>(x.size()), owned.view());
  const std::size_t blocks = x.size() / kBlock;
  owned.scales.resize(blocks);
  owned.sums.resize(blocks);
  return nb::make_tuple(owned_array(owned.bytes, {x.size()}), owned_array(owned.scales, {blocks}),
                        owned_array(owned.sums, {blocks}));
}

nb::tuple rms_norm(const std::string& set, const InputArray<float>& x, const InputArray<float>& weight, float epsilon) {
  if (x.size() != weight.size()) throw nb::value_error("x and weight differ in size");
  std::vector<float> values(x.size());
  const bool finite =
      kernels_for(set).rms_norm(x.data(), weight.data(), epsilon, static_cast<std::int64_t>(x.size()), values.data());
  return nb::make_tuple(owned_array(values, {x.size()}), finite);
}

// in_parts: of Q8_0, laid out as an output layer is.
OutputArray<float> dequantise(const std::string& set, const std::string& type, const InputArray<std::uint8_t>& data,
                              std::int64_t rows, std::int64_t columns, std::int32_t interleaved_head_size,
                              bool in_parts) {
  MatrixSource source = matrix_source(type, type, data, rows, columns, interleaved_head_size);
  if (in_parts && source.type != WeightType::kQ8_0) throw nb::value_error("only Q8_0 is laid out in parts");
  if (in_parts) source.type = WeightType::kQ8_0Split;
  std::vector<float> values(static_cast<std::size_t>(rows * columns));
  std::vector<std::uint8_t> unit(static_cast<std::size_t>(unit_bytes(source.type, columns)));
  std::vector<std::uint8_t> lower(static_cast<std::size_t>(lower_unit_bytes(source.type, columns)));
  float slack[kUnitRows];
  for (std::int64_t r = 0; r < rows; ++r) {
    if (r % kUnitRows == 0) write_unit(source, r / kUnitRows, {unit.data(), lower.data(), slack});
    kernels_for(set).dequantise_row(source.type, unit.data(), lower.data(), static_cast<std::int32_t>(r % kUnitRows),
                                    columns, values.data() + r * columns);
  }
  return owned_array(values, {static_cast<std::size_t>(rows), static_cast<std::size_t>(columns)});
}

// Whole blocks of float weights as a file would hold them in type `layout`.
OutputArray<std::uint8_t> quantise_weights(const std::string& type, const InputArray<std::uint8_t>& data,
                                           const std::string& layout) {
  const WeightType stored = weight_type(type);
  const WeightType wanted = weight_type(layout);
  if (!can_quantise(stored, wanted)) throw nb::value_error("such weights cannot be quantised to that type");
  const std::int64_t block_bytes = source_bytes(stored, 1, kBlock);
  if (data.size() % static_cast<std::size_t>(block_bytes) != 0) throw nb::value_error("weights must be whole blocks");
  const std::int64_t blocks = static_cast<std::int64_t>(data.size()) / block_bytes;
  const std::int64_t bytes = source_bytes(wanted, 1, kBlock);
  std::vector<std::uint8_t> quantised(static_cast<std::size_t>(blocks * bytes));
  for (std::int64_t b = 0; b < blocks; ++b) {
    if (!quantise_block(stored, data.data() + b * block_bytes, wanted, quantised.data() + b * bytes)) {
      throw nb::value_error("a weight is not finite or too large to be quantised");
    }
  }
  return owned_array(quantised, {quantised.size()});
}

nb::tuple exp_sum(const std::string& set, const InputArray<float>& x, float shift) {
  std::vector<float> values(x.size());
  const float sum = kernels_for(set).exp_sum(x.data(), shift, static_cast<std::int32_t>(x.size()), values.data());
  return nb::make_tuple(owned_array(values, {x.size()}), sum);
}

OutputArray<float> activate_multiply(const std::string& set, const std::string& activation,
                                     const InputArray<float>& gate, const InputArray<float>& up) {
  if (gate.size() != up.size() || gate.size() % kUnitRows != 0)
    throw nb::value_error("sizes must be equal, whole units");
  std::vector<float> values(gate.data(), gate.data() + gate.size());
  kernels_for(set).activate_multiply(activation_kind(activation), values.data(), up.data(),
                                     static_cast<std::int64_t>(values.size()));
  return owned_array(values, {values.size()});
}

OutputArray<float> soft_cap(const std::string& set, const InputArray<float>& x, float cap) {
  if (x.size() % kUnitRows != 0) throw nb::value_error("x must be whole units");
  std::vector<float> values(x.data(), x.data() + x.size());
  kernels_for(set).soft_cap(values.data(), cap, static_cast<std::int64_t>(values.size()));
  return owned_array(values, {values.size()});
}

// Queries [rows][heads][size] at the last positions over keys and values [positions][size], in blocks.
class Attention {
 public:
  Attention(const KernelTable& kernels, const InputCube<float>& query, const InputMatrix<float>& keys,
            const InputMatrix<float>& values, std::int32_t window, float scale, float softcap)
      : kernels_(kernels) {
    const auto rows = static_cast<std::int32_t>(query.shape(0));
    const auto heads = static_cast<std::int32_t>(query.shape(1));
    const auto size = static_cast<std::int32_t>(query.shape(2));
    const auto positions = static_cast<std::int32_t>(keys.shape(0));
    if (rows * heads > kTileQueries) throw nb::value_error("too many queries");
    if (rows > positions || keys.shape(1) != query.shape(2) || values.shape(0) != keys.shape(0) ||
        values.shape(1) != keys.shape(1)) {
      throw nb::value_error("shapes do not fit");
    }
    const std::int32_t padded_size = (size + 15) / 16 * 16;
    const std::int32_t block_count = (positions + kCacheBlock - 1) / kCacheBlock;
    const std::int64_t block = std::int64_t{kCacheBlock} * padded_size;
    storage_.resize(static_cast<std::size_t>(2 * block * block_count));
    for (std::int32_t b = block_count - 1; b >= 0; --b) {  // stored backwards: only the position counts
      key_blocks_.insert(key_blocks_.begin(), storage_.data() + 2 * block * (block_count - 1 - b));
      value_blocks_.insert(value_blocks_.begin(), key_blocks_.front() + block);
    }
    for (std::int32_t p = 0; p < positions; ++p) {
      const auto b = static_cast<std::size_t>(p / kCacheBlock);
      kernels.store_key_value(keys.data() + std::int64_t{p} * size, values.data() + std::int64_t{p} * size, size,
                              padded_size, p % kCacheBlock, const_cast<std::uint16_t*>(key_blocks_[b]),
                              const_cast<std::uint16_t*>(value_blocks_[b]));
    }
    query_.resize(static_cast<std::size_t>(rows * heads * padded_size));
    for (std::int32_t q = 0; q < rows * heads; ++q) {
      std::copy_n(query.data() + q * size, size, query_.data() + q * padded_size);
    }
    scratch_.resize(static_cast<std::size_t>(attention_scratch(rows * heads, padded_size)));
    output_.resize(static_cast<std::size_t>(rows * heads * size));
    arguments_ = {.query = query_.data(),
                  .rows = rows,
                  .head_count = heads,
                  .padded_head_size = padded_size,
                  .head_size = size,
                  .key_blocks = key_blocks_.data(),
                  .value_blocks = value_blocks_.data(),
                  .first_position = positions - rows,
                  .window = window,
                  .scale = scale,
                  .softcap = softcap,
                  .scratch = scratch_.data(),
                  .output = output_.data(),
                  .output_stride = std::int64_t{heads} * size};
  }

  void run() const { kernels_.attention(arguments_); }
  const std::vector<float>& output() const { return output_; }

 private:
  const KernelTable& kernels_;
  std::vector<std::uint16_t> storage_;
  std::vector<const std::uint16_t*> key_blocks_, value_blocks_;
  std::vector<float> query_, scratch_, output_;
  AttentionArguments arguments_{};
};

OutputArray<float> attention(const std::string& set, const InputCube<float>& query, const InputMatrix<float>& keys,
                             const InputMatrix<float>& values, std::int32_t window, float scale, float softcap) {
  const Attention call(kernels_for(set), query, keys, values, window, scale, softcap);
  call.run();
  return owned_array(call.output(), {query.shape(0), query.shape(1), query.shape(2)});
}

// How many times a second the calling thread does all of it.
double attention_rate(const std::string& set, const InputCube<float>& query, const InputMatrix<float>& keys,
                      const InputMatrix<float>& values, float scale, double seconds) {
  const Attention call(kernels_for(set), query, keys, values, 0, scale, 0.0f);
  return rate(seconds, [&] { call.run(); });
}

OutputArray<float> gumbel(const std::string& set, std::uint64_t seed, std::uint32_t choice, std::uint32_t output_index,
                          std::int32_t count, const std::vector<std::int32_t>& ids) {
  const std::int32_t n = ids.empty() ? count : static_cast<std::int32_t>(ids.size());
  if (n < 0) throw nb::value_error("count must not be negative");
  for (const std::int32_t id : ids) {
    if (id < 0) throw nb::value_error("ids must not be negative");
  }
  std::vector<float> noise(static_cast<std::size_t>(n + 31) / 32 * 32);
  kernels_for(set).gumbel({seed, choice, output_index}, ids.empty() ? nullptr : ids.data(), n, noise.data());
  noise.resize(static_cast<std::size_t>(n));
  return owned_array(noise, {noise.size()});
}

OutputArray<float> half_to_float(const std::string& set, const InputArray<std::uint16_t>& x) {
  std::vector<float> values(x.size());
  kernels_for(set).half_to_float(x.data(), static_cast<std::int64_t>(x.size()), values.data());
  return owned_array(values, {values.size()});
}

std::int32_t arg_max(const std::string& set, const InputArray<float>& x) {
  if (x.size() == 0) throw nb::value_error("x is empty");
  return kernels_for(set).arg_max(x.data(), 0, static_cast<std::int32_t>(x.size()));
}

}  // namespace

void register_kernels(nb::module_& module) {
  module.def("linear", &linear, "instruction_set"_a, "type"_a, "data"_a, "rows"_a, "columns"_a,
             "interleaved_head_size"_a, "x"_a);
  module.def("linear_rate", &linear_rate, "instruction_set"_a, "type"_a, "data"_a, "rows"_a, "columns"_a, "x"_a,
             "seconds"_a);
  module.def("split_linear", &split_linear, "instruction_set"_a, "data"_a, "rows"_a, "columns"_a, "x"_a);
  module.def("quantise", &quantise, "instruction_set"_a, "x"_a);
  module.def("rms_norm", &rms_norm, "instruction_set"_a, "x"_a, "weight"_a, "epsilon"_a);
  module.def("dequantise", &dequantise, "instruction_set"_a, "type"_a, "data"_a, "rows"_a, "columns"_a,
             "interleaved_head_size"_a, "in_parts"_a = false);
  module.def("quantise_weights", &quantise_weights, "type"_a, "data"_a, "layout"_a);
  module.def("exp_sum", &exp_sum, "instruction_set"_a, "x"_a, "shift"_a);
  module.def(
      "log", [](const std::string& set, float x) { return kernels_for(set).log(x); }, "instruction_set"_a, "x"_a);
  module.def("activate_multiply", &activate_multiply, "instruction_set"_a, "activation"_a, "gate"_a, "up"_a);
  module.def("soft_cap", &soft_cap, "instruction_set"_a, "x"_a, "cap"_a);
  module.def("attention", &attention, "instruction_set"_a, "query"_a, "keys"_a, "values"_a, "window"_a, "scale"_a,
             "softcap"_a);
  module.def("attention_rate", &attention_rate, "instruction_set"_a, "query"_a, "keys"_a, "values"_a, "scale"_a,
             "seconds"_a);
  module.def("gumbel", &gumbel, "instruction_set"_a, "seed"_a, "choice"_a, "output_index"_a, "count"_a, "ids"_a);
  module.def("half_to_float", &half_to_float, "instruction_set"_a, "x"_a);
  module.def("arg_max", &arg_max, "instruction_set"_a, "x"_a);
}

}  // namespace ultrafast
