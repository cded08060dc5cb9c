#include "model.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "checks.h"

namespace ultrafast {

namespace {

void check_shape(const Shape& s) {
  require(s.vocabulary_size > 0 && s.hidden_size > 0 && s.layer_count > 0, "sizes must be positive");
  require(s.head_count > 0 && s.kv_head_count > 0 && s.head_size > 0, "head counts and size must be positive");
  require(s.head_count % s.kv_head_count == 0, "head count must be a multiple of the KV head count");
  require(s.rotary_size > 0 && s.rotary_size <= s.head_size && s.rotary_size % 2 == 0,
          "rotary size must be even and within the head");
  require(s.rotary_base > 0.0, "rotary base must be positive");
  require(s.context > 0 && s.block_count > 0 && s.max_sequences > 0 && s.max_rows > 0, "limits must be positive");
}

}  // namespace

Model::ActivationRoom::ActivationRoom(std::int64_t row_count, std::int64_t width) {
  const std::int64_t padded_width = padded(width);
  const std::int64_t blocks = padded_width / kBlock;
  const std::int64_t row_bytes = (padded_width * 5 + blocks * 12 + 63) / 64 * 64;
  memory = Memory(static_cast<std::size_t>(row_bytes * row_count));
  rows.resize(static_cast<std::size_t>(row_count));
  for (std::int64_t r = 0; r < row_count; ++r) {
    std::uint8_t* start = memory.data() + r * row_bytes;
    Activation& row = rows[static_cast<std::size_t>(r)];
    row.values = reinterpret_cast<float*>(start);
    row.scales = row.values + padded_width;
    row.scaled_sums = row.scales + blocks;
    row.sums = reinterpret_cast<std::int32_t*>(row.scaled_sums + blocks);
    row.bytes = reinterpret_cast<std::int8_t*>(row.sums + blocks);
  }
}

Model::Model(const KernelTable& kernels, int threads, std::vector<int> cpus, const Shape& shape,
             std::vector<float> rotary_factors)
    : kernels_(kernels),
      team_((check_shape(shape), threads), std::move(cpus)),
      shape_(shape),
      rotary_(make_rotary_table(shape.context, shape.rotary_size, shape.rotary_base, rotary_factors)),
      cache_(shape.layer_count, shape.kv_head_count, shape.head_size, shape.block_count, shape.max_sequences) {}

const Model::Matrix& Model::matrix(std::int32_t index) const {
  require(index >= 0 && static_cast<std::size_t>(index) < matrices_.size(), "no such matrix");
  return matrices_[static_cast<std::size_t>(index)];
}

const Model::Buffer& Model::buffer(std::int32_t index) const {
  require(index >= 0 && static_cast<std::size_t>(index) < buffers_.size(), "no such buffer");
  return buffers_[static_cast<std::size_t>(index)];
}

std::int32_t Model::add_matrix(const MatrixSource& source) {
  require(!finished_, "the model is finished");
  require(source.rows > 0 && source.columns > 0, "a matrix must not be empty");
  require(!is_quantised(source.type) || source.columns % kBlock == 0, "quantised rows must be whole blocks of 32");
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

void Model::check_input(std::int32_t source, std::int32_t norm, const std::vector<std::int32_t>& matrices) const {
  require(!matrices.empty(), "an operation needs a matrix");
  const std::int64_t columns = matrix(matrices.front()).source.columns;
  for (const std::int32_t index : matrices) {
    require(matrix(index).source.columns == columns, "fused matrices must have equal columns");
  }
  require(columns <= buffer(source).width, "the source is narrower than the matrix");
  if (norm < 0) return;
  require(static_cast<std::size_t>(norm) < vectors_.size(), "no such vector");
  require(vectors_[static_cast<std::size_t>(norm)].size() == static_cast<std::size_t>(columns),
          "the norm's weight and the matrix differ in size");
}

void Model::add_operation(Operation operation) {
  require(!finished_, "the model is finished");
  program_.push_back(std::move(operation));
}

void Model::embed(std::int32_t table, std::int32_t destination) {
  require(matrix(table).source.columns == shape_.hidden_size && matrix(table).source.rows == shape_.vocabulary_size,
          "the embedding must be [vocabulary][hidden]");
  require(buffer(destination).width >= shape_.hidden_size, "the destination is too narrow");
  add_operation({.kind = Kind::kEmbed, .destination = destination, .matrices = {table}});
}

void Model::linear(std::int32_t source, std::int32_t norm, float epsilon, const std::vector<std::int32_t>& matrices,
                   std::int32_t destination, bool accumulate) {
  check_input(source, norm, matrices);
  std::int64_t width = 0;
  for (const std::int32_t index : matrices) width += padded(matrix(index).source.rows);
  require(width <= buffer(destination).width, "the destination is too narrow");
  require(source != destination, "source and destination must differ");
  add_operation({.kind = Kind::kLinear,
                 .source = source,
                 .destination = destination,
                 .norm = norm,
                 .epsilon = epsilon,
                 .accumulate = accumulate,
                 .matrices = matrices});
}

void Model::gated(std::int32_t source, std::int32_t norm, float epsilon, std::int32_t gate, std::int32_t up,
                  std::int32_t destination) {
  check_input(source, norm, {gate, up});
  require(matrix(gate).source.rows == matrix(up).source.rows, "gate and up must have equal rows");
  require(padded(matrix(gate).source.rows) <= buffer(destination).width, "the destination is too narrow");
  add_operation({.kind = Kind::kGated,
                 .source = source,
                 .destination = destination,
                 .norm = norm,
                 .epsilon = epsilon,
                 .matrices = {gate, up}});
}

void Model::attention(std::int32_t layer, std::int32_t source, std::int32_t destination) {
  const std::int64_t query = padded(std::int64_t{shape_.head_count} * shape_.head_size);
  const std::int64_t key = padded(std::int64_t{shape_.kv_head_count} * shape_.head_size);
  require(layer >= 0 && layer < shape_.layer_count, "no such layer");
  require(query + 2 * key <= buffer(source).width, "the source is narrower than q, k and v");
  require(query <= buffer(destination).width, "the destination is too narrow");
  add_operation(
      {.kind = Kind::kAttention, .source = source, .destination = destination, .layer = layer, .matrices = {}});
}

void Model::output(std::int32_t source, std::int32_t norm, float epsilon, std::int32_t output_matrix) {
  check_input(source, norm, {output_matrix});
  require(matrix(output_matrix).source.rows == shape_.vocabulary_size, "the output must have a row per token");
  require(matrix(output_matrix).source.columns == shape_.hidden_size, "the output must take the hidden state");
  require(norm >= 0, "the output needs its norm");
  add_operation(
      {.kind = Kind::kOutput, .source = source, .norm = norm, .epsilon = epsilon, .matrices = {output_matrix}});
}

// Contiguous shares of an operation's units, equal to within one.
void Model::share_out(Operation& operation) {
  std::vector<Piece> all;
  if (operation.kind == Kind::kGated) {
    for (std::int64_t u = 0; u < matrix(operation.matrices[0]).unit_count(); ++u) {
      all.push_back({operation.matrices[0], u, u * kUnitRows});
    }
  } else if (operation.kind == Kind::kLinear || operation.kind == Kind::kOutput) {
    std::int64_t column = 0;
    for (const std::int32_t index : operation.matrices) {
      for (std::int64_t u = 0; u < matrix(index).unit_count(); ++u, column += kUnitRows) {
        all.push_back({index, u, column});
      }
    }
  }
  const auto members = static_cast<std::size_t>(team_.members());
  operation.pieces.resize(members);
  for (std::size_t m = 0; m < members; ++m) {
    const auto begin = static_cast<std::ptrdiff_t>(all.size() * m / members);
    const auto end = static_cast<std::ptrdiff_t>(all.size() * (m + 1) / members);
    operation.pieces[m].assign(all.begin() + begin, all.begin() + end);
  }
}

// Runs on the member itself, so that its pages are first touched where they will be read.
void Model::fill_arena(int member) {
  const auto m = static_cast<std::size_t>(member);
  std::uint8_t* next = arenas_[m].data();
  const auto place = [&](std::int32_t index, std::int64_t unit) -> const std::uint8_t* {
    Matrix& owner = matrices_[static_cast<std::size_t>(index)];
    const std::uint8_t*& slot = owner.units[static_cast<std::size_t>(unit)];
    if (slot == nullptr) {  // a tied embedding and output layer share one copy
      write_unit(owner.source, unit, next);
      slot = next;
      next += unit_bytes(owner.source.type, owner.source.columns);
    }
    return slot;
  };
  for (Operation& operation : program_) {
    for (Piece& piece : operation.pieces[m]) {
      piece.data = place(piece.matrix, piece.unit);
      if (operation.kind == Kind::kGated) piece.second = place(operation.matrices[1], piece.unit);
    }
  }
}

std::int64_t Model::widest_input() const {
  std::int64_t widest = shape_.hidden_size;
  for (const Matrix& each : matrices_) widest = std::max(widest, each.source.columns);
  return widest;
}

void Model::finish() {
  require(!finished_, "the model is finished");
  const auto members = static_cast<std::size_t>(team_.members());
  for (Matrix& each : matrices_) each.units.assign(static_cast<std::size_t>(each.unit_count()), nullptr);
  std::vector<std::vector<bool>> placed;
  for (const Matrix& each : matrices_) placed.emplace_back(static_cast<std::size_t>(each.unit_count()), false);
  std::vector<std::int64_t> arena_bytes(members, 0);
  const auto count = [&](std::size_t m, std::int32_t index, std::int64_t unit) {
    const auto reference = placed[static_cast<std::size_t>(index)][static_cast<std::size_t>(unit)];
    if (reference) return;
    placed[static_cast<std::size_t>(index)][static_cast<std::size_t>(unit)] = true;
    arena_bytes[m] += unit_bytes(matrix(index).source.type, matrix(index).source.columns);
  };
  bool has_output = false;
  for (Operation& operation : program_) {
    has_output = has_output || operation.kind == Kind::kOutput;
    share_out(operation);
    for (std::size_t m = 0; m < members; ++m) {
      for (const Piece& piece : operation.pieces[m]) {
        count(m, piece.matrix, piece.unit);
        if (operation.kind == Kind::kGated) count(m, operation.matrices[1], piece.unit);
      }
    }
  }
  require(has_output && program_.front().kind == Kind::kEmbed, "a program starts with embed and ends with output");
  // Rows of an embedding that no product reads still need a place: the first member's arena, at its end.
  const std::int32_t table = program_.front().matrices[0];
  std::vector<std::int64_t> loose;
  for (std::int64_t u = 0; u < matrix(table).unit_count(); ++u) {
    if (placed[static_cast<std::size_t>(table)][static_cast<std::size_t>(u)]) continue;
    loose.push_back(u);
    count(0, table, u);
  }
  arenas_.resize(members);
  for (std::size_t m = 0; m < members; ++m) arenas_[m] = Memory(static_cast<std::size_t>(arena_bytes[m]));
  team_.run([this](int member) { fill_arena(member); });
  const MatrixSource& embedding = matrix(table).source;
  const std::int64_t bytes = unit_bytes(embedding.type, embedding.columns);
  std::uint8_t* next = arenas_[0].data() + arena_bytes[0] - bytes * static_cast<std::int64_t>(loose.size());
  for (const std::int64_t unit : loose) {
    write_unit(embedding, unit, next);
    matrices_[static_cast<std::size_t>(table)].units[static_cast<std::size_t>(unit)] = next;
    next += bytes;
  }

  const std::int64_t width = widest_input();
  shared_activations_ = ActivationRoom(shape_.max_rows, width);
  const std::int64_t head = cache_.padded_head_size();
  const std::int64_t blocks = (shape_.context + kCacheBlock - 1) / kCacheBlock;
  const std::int64_t scratch_bytes = 4 * (attention_scratch(kTileQueries, head) + kTileQueries * head) +
                                     4 * 2 * kSweepRows * kUnitRows + 2 * sizeof(void*) * blocks +
                                     4 * kCacheBlock * head * blocks + 4096;
  for (std::size_t m = 0; m < members; ++m) {
    own_activations_.emplace_back(kOwnRows, width);
    scratch_.emplace_back(static_cast<std::size_t>(scratch_bytes));
    pickers_.emplace_back(kernels_, shape_.vocabulary_size);
  }
  logits_ = Memory(static_cast<std::size_t>(kPickRows * padded(shape_.vocabulary_size) * 4));
  finished_ = true;
}

std::int64_t Model::weight_bytes() const {
  std::int64_t total = 0;
  for (const Memory& arena : arenas_) total += static_cast<std::int64_t>(arena.size());
  return total;
}

std::vector<std::pair<std::uintptr_t, std::size_t>> Model::regions() const {
  std::vector<std::pair<std::uintptr_t, std::size_t>> found;
  for (const Memory& arena : arenas_) found.emplace_back(reinterpret_cast<std::uintptr_t>(arena.data()), arena.size());
  return found;
}

}  // namespace ultrafast
