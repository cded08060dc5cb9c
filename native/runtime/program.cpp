// Declarations of a model: matrices, vectors, buffers and the operations over them, each checked against the others.
#include <algorithm>
#include <utility>

#include "checks.h"
#include "model.h"

namespace ultrafast {

const Model::Matrix& Model::matrix(std::int32_t index) const {
  require(index >= 0 && static_cast<std::size_t>(index) < matrices_.size(), "no such matrix");
  return matrices_[static_cast<std::size_t>(index)];
}

const Model::Buffer& Model::buffer(std::int32_t index) const {
  require(index >= 0 && static_cast<std::size_t>(index) < buffers_.size(), "no such buffer");
  return buffers_[static_cast<std::size_t>(index)];
}

const std::vector<float>& Model::vector(std::int32_t index) const {
  require(index >= 0 && static_cast<std::size_t>(index) < vectors_.size(), "no such vector");
  return vectors_[static_cast<std::size_t>(index)];
}

std::int32_t Model::add_matrix(const MatrixSource& source) {
  require(!finished_, "the model is finished");
  require(source.rows > 0 && source.columns > 0, "a matrix must not be empty");
  require(source.columns % block_columns(source.type) == 0, "rows must be whole blocks");
  const std::int32_t head = source.interleaved_head_size;
  require(head >= 0 && (head == 0 || (head % 2 == 0 && source.rows % head == 0)), "rows must be whole heads");
  matrices_.push_back({source});
  return static_cast<std::int32_t>(matrices_.size()) - 1;
}

std::int32_t Model::add_vector(std::vector<float> values) {
  vectors_.push_back(std::move(values));
  return static_cast<std::int32_t>(vectors_.size()) - 1;
}

std::int32_t Model::add_buffer(std::int32_t width) {
  require(width > 0, "a buffer must not be empty");
  const auto full = static_cast<std::int32_t>(padded(width));
  buffers_.push_back({full, Memory(static_cast<std::size_t>(full) * static_cast<std::size_t>(shape_.max_rows) * 4)});
  return static_cast<std::int32_t>(buffers_.size()) - 1;
}

std::int32_t Model::add_rotary(const RotarySource& source) {
  require(source.size > 0 && source.size <= shape_.head_size && source.size % 2 == 0,
          "rotary size must be even and within the head");
  require(source.base > 0.0, "rotary base must be positive");
  require(source.factors.empty() || source.factors.size() == static_cast<std::size_t>(source.size / 2),
          "rotary factors must be half the rotary size");
  rotaries_.push_back(make_rotary_table(shape_.context, source));
  return static_cast<std::int32_t>(rotaries_.size()) - 1;
}

std::int64_t Model::shared_columns(const std::vector<std::int32_t>& matrices) const {
  require(!matrices.empty(), "an operation needs a matrix");
  const std::int64_t columns = matrix(matrices.front()).source.columns;
  for (const std::int32_t index : matrices) {
    require(matrix(index).source.columns == columns, "fused matrices must have equal columns");
  }
  return columns;
}

void Model::check_input(const Input& input, std::int64_t columns) const {
  require(columns <= buffer(input.source).width, "the source is narrower than the matrix");
  require(input.norm < 0 || vector(input.norm).size() == static_cast<std::size_t>(columns),
          "the norm's weight and the matrix differ in size");
}

void Model::add_operation(Operation operation) {
  require(!finished_, "the model is finished");
  program_.push_back(std::move(operation));
}

void Model::embed(std::int32_t table, std::int32_t destination, float scale) {
  require(matrix(table).source.columns == shape_.hidden_size && matrix(table).source.rows == shape_.vocabulary_size,
          "the embedding must be [vocabulary][hidden]");
  require(buffer(destination).width >= shape_.hidden_size, "the destination is too narrow");
  add_operation({.kind = Kind::kEmbed, .destination = destination, .scale = scale, .matrices = {table}});
}

std::vector<float> Model::gather_bias(const std::vector<std::int32_t>& matrices,
                                      const std::vector<std::int32_t>& biases) const {
  if (biases.empty()) return {};
  require(biases.size() == matrices.size(), "give one bias, or -1, per matrix");
  std::vector<float> gathered;
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    const auto rows = static_cast<std::size_t>(matrix(matrices[i]).source.rows);
    std::vector<float> part(static_cast<std::size_t>(padded(static_cast<std::int64_t>(rows))), 0.0f);
    if (biases[i] >= 0) {
      require(vector(biases[i]).size() == rows, "a bias and its matrix differ in rows");
      std::copy(vector(biases[i]).begin(), vector(biases[i]).end(), part.begin());
    }
    gathered.insert(gathered.end(), part.begin(), part.end());
  }
  return gathered;
}

void Model::linear(Input input, const std::vector<std::int32_t>& matrices, const std::vector<std::int32_t>& biases,
                   std::int32_t destination, bool accumulate, float scale) {
  check_input(input, shared_columns(matrices));
  std::int64_t width = 0;
  for (const std::int32_t index : matrices) width += padded(matrix(index).source.rows);
  require(width <= buffer(destination).width, "the destination is too narrow");
  require(input.source != destination, "source and destination must differ");
  add_operation({.kind = Kind::kLinear,
                 .input = input,
                 .destination = destination,
                 .accumulate = accumulate,
                 .scale = scale,
                 .matrices = matrices,
                 .bias = gather_bias(matrices, biases)});
}

void Model::gated(Input input, std::int32_t gate, std::int32_t up, std::int32_t destination,
                  ActivationKind activation) {
  check_input(input, shared_columns({gate, up}));
  require(matrix(gate).source.rows == matrix(up).source.rows, "gate and up must have equal rows");
  require(padded(matrix(gate).source.rows) <= buffer(destination).width, "the destination is too narrow");
  add_operation({.kind = Kind::kGated,
                 .input = input,
                 .destination = destination,
                 .activation = activation,
                 .matrices = {gate, up}});
}

void Model::norm(Input input, std::int32_t destination, bool accumulate, float scale) {
  check_input(input, static_cast<std::int64_t>(vector(input.norm).size()));
  require(buffer(destination).width >= static_cast<std::int64_t>(vector(input.norm).size()),
          "the destination is too narrow");
  require(input.source != destination, "source and destination must differ");
  add_operation(
      {.kind = Kind::kNorm, .input = input, .destination = destination, .accumulate = accumulate, .scale = scale});
}

void Model::attention(const AttentionOptions& options, std::int32_t source, std::int32_t destination) {
  const std::int64_t query = std::int64_t{shape_.head_count} * shape_.head_size;
  const std::int64_t key = std::int64_t{shape_.kv_head_count} * shape_.head_size;
  require(options.layer >= 0 && options.layer < shape_.layer_count, "no such layer");
  require(options.rotary < static_cast<std::int32_t>(rotaries_.size()), "no such rotary table");
  require(options.window >= 0, "a window must not be negative");
  require(padded(query) + 2 * padded(key) <= buffer(source).width, "the source is narrower than q, k and v");
  require(padded(query) <= buffer(destination).width, "the destination is too narrow");
  const auto check_norm = [&](std::int32_t norm, std::int64_t width) {
    if (norm < 0) return;
    const auto size = static_cast<std::int64_t>(vector(norm).size());
    require(size == shape_.head_size || size == width, "a query or key norm must be as wide as a head or all heads");
  };
  check_norm(options.query_norm, query);
  check_norm(options.key_norm, key);
  add_operation({.kind = Kind::kAttention,
                 .input = {source, -1, options.epsilon},
                 .destination = destination,
                 .attention = options});
}

void Model::check_experts(const Experts& experts) const {
  const auto count = experts.gates.size();
  require(count > 0 && experts.ups.size() == count && experts.downs.size() == count,
          "a mixture needs as many gates, ups and downs");
  require(experts.used > 0 && static_cast<std::size_t>(experts.used) <= count,
          "a row uses one expert or more, not all");
  require(matrix(experts.router).source.rows == static_cast<std::int64_t>(count), "the router needs a row per expert");
  const std::int64_t inner = matrix(experts.gates[0]).source.rows;
  for (std::size_t e = 0; e < count; ++e) {
    require(shared_columns({experts.router, experts.gates[e], experts.ups[e]}) > 0, "experts differ in columns");
    require(matrix(experts.gates[e]).source.rows == inner && matrix(experts.ups[e]).source.rows == inner,
            "gates and ups must have equal rows");
    require(matrix(experts.downs[e]).source.columns == inner, "a down matrix takes what gate and up give");
    require(matrix(experts.downs[e]).source.rows == shape_.hidden_size, "a down matrix gives the hidden state");
  }
}

void Model::mixture(Input input, const Experts& experts, std::int32_t destination, float scale) {
  check_experts(experts);
  check_input(input, matrix(experts.router).source.columns);
  require(buffer(destination).width >= shape_.hidden_size, "the destination is too narrow");
  most_experts_ = std::max(most_experts_, experts.count());
  most_used_ = std::max(most_used_, experts.used);
  widest_expert_ = std::max(widest_expert_, padded(matrix(experts.gates[0]).source.rows));
  std::vector<std::int32_t> read = {experts.router};
  read.insert(read.end(), experts.gates.begin(), experts.gates.end());
  read.insert(read.end(), experts.ups.begin(), experts.ups.end());
  add_operation({.kind = Kind::kMixture,
                 .input = input,
                 .destination = destination,
                 .accumulate = true,
                 .scale = scale,
                 .activation = experts.activation,
                 .matrices = std::move(read),
                 .experts = experts});
}

void Model::output(Input input, std::int32_t output_matrix, float scale, float softcap) {
  check_input(input, matrix(output_matrix).source.columns);
  require(matrix(output_matrix).source.rows == shape_.vocabulary_size, "the output must have a row per token");
  require(matrix(output_matrix).source.columns == shape_.hidden_size, "the output must take the hidden state");
  require(input.norm >= 0, "the output needs its norm");
  // The arg-max can be found by bounds where nothing changes the logits afterwards.
  MatrixSource& source = matrices_[static_cast<std::size_t>(output_matrix)].source;
  const bool is_shared = std::ranges::any_of(program_, [&](const Operation& operation) {
    return operation.kind != Kind::kEmbed && std::ranges::count(operation.matrices, output_matrix) > 0;
  });
  const bool is_bounded = source.type == WeightType::kQ8_0 && scale == 1.0f && softcap == 0.0f && !is_shared;
  if (is_bounded) source.type = WeightType::kQ8_0Split;
  add_operation(
      {.kind = Kind::kOutput, .input = input, .scale = scale, .softcap = softcap, .matrices = {output_matrix}});
}

}  // namespace ultrafast
