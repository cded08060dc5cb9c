#include "step.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "checks.h"

namespace ultrafast {

StepOutput Model::step(const StepInput& input) {
  require(finished_, "finish() the model first");
  if (busy_.test_and_set(std::memory_order_acquire)) throw std::logic_error("a step is running already");
  struct Release {
    std::atomic_flag& flag;
    ~Release() { flag.clear(std::memory_order_release); }
  } release{busy_};
  StepRun run(*this, input);
  team_.run(Team::Attendance::kWhoeverComes, [&run](int member) { run.run(member); });
  return run.take_output();
}

StepRun::StepRun(Model& model, const StepInput& input) : model_(model), input_(input), failed_(input.tokens.size()) {
  check(input);
  plan_rows(input);
  plan_tiles();
  const auto words = static_cast<std::size_t>(model.shape_.vocabulary_size);
  std::int32_t logits = 0;
  std::int32_t hidden = 0;
  for (const std::int32_t row : all_) {
    const std::uint8_t want = input.want[static_cast<std::size_t>(row)];
    if (want == 0) continue;
    wanted_.push_back(row);
    logits_index_.push_back((want & kWantLogits) != 0 ? logits++ : -1);
    hidden_index_.push_back((want & kWantHidden) != 0 ? hidden++ : -1);
  }
  output_.rows = wanted_;
  output_.picks.resize(wanted_.size());
  output_.logits.resize(static_cast<std::size_t>(logits) * words);
  output_.hidden.resize(static_cast<std::size_t>(hidden) * static_cast<std::size_t>(model.shape_.hidden_size));
  best_.resize(static_cast<std::size_t>(model.team_.members() * kPickRows));
  floors_.resize(best_.size());
  noisy_best_.resize(best_.size());
  noisy_floors_.resize(best_.size());
  may_bound_ = model.unbounded_steps_ == 0;
  if (!may_bound_) --model.unbounded_steps_;
  routes_.resize(input.tokens.size() * static_cast<std::size_t>(model.most_used_));
  route_weights_.resize(routes_.size());
}

void StepRun::check(const StepInput& input) const {
  const Shape& shape = model_.shape_;
  const std::size_t n = input.tokens.size();
  require(n > 0 && n <= static_cast<std::size_t>(shape.max_rows), "a step takes 1 to max_rows rows");
  require(
      input.positions.size() == n && input.sequences.size() == n && input.parents.size() == n && input.want.size() == n,
      "tokens, positions, sequences, parents and want differ in length");
  std::vector<std::int32_t> appended(model_.cache_.sequences().size(), 0);
  for (std::size_t i = 0; i < n; ++i) {
    require(input.tokens[i] >= 0 && input.tokens[i] < shape.vocabulary_size, "token outside the vocabulary");
    const std::int32_t id = input.sequences[i];
    const Sequence& sequence = model_.cache_.bound_sequence(id);
    const std::int32_t parent = input.parents[i];
    require(parent >= -1 && parent < static_cast<std::int32_t>(i), "a parent must be an earlier row or -1");
    if (parent < 0) {
      require(input.positions[i] == sequence.length(), "a row without parent continues its sequence's length");
    } else {
      const auto p = static_cast<std::size_t>(parent);
      require(input.sequences[p] == id, "a parent must be of the same sequence");
      require(input.positions[i] == input.positions[p] + 1, "a row's position follows its parent's");
    }
    require(input.positions[i] < shape.context, "position beyond the context");
    require(sequence.length() + appended[static_cast<std::size_t>(id)]++ < sequence.capacity(),
            "the sequence's blocks are full");
  }
}

void StepRun::plan_rows(const StepInput& input) {
  const std::size_t n = input.tokens.size();
  rows_.reserve(n);
  std::vector<std::int32_t> bases(model_.cache_.sequences().size(), -1);
  for (std::size_t i = 0; i < n; ++i) {
    const std::int32_t id = input.sequences[i];
    Sequence& sequence = model_.cache_.bound_sequence(id);
    std::int32_t& base = bases[static_cast<std::size_t>(id)];
    if (base < 0) base = sequence.length();
    const std::int32_t entry = sequence.length();
    sequence.tokens.push_back(input.tokens[i]);
    const std::int32_t parent = input.parents[i];
    const Row* above = parent < 0 ? nullptr : &rows_[static_cast<std::size_t>(parent)];
    const bool on_line = above == nullptr ? entry == base : above->on_line && entry == above->entry + 1;
    Row row{&sequence, input.positions[i], entry, base, on_line, {}};
    if (!on_line) {
      if (above != nullptr && above->on_line) {
        row.path.resize(static_cast<std::size_t>(above->entry - base + 1));
        std::iota(row.path.begin(), row.path.end(), base);
      } else if (above != nullptr) {
        row.path = above->path;
      }
      row.path.push_back(entry);
    }
    rows_.push_back(std::move(row));
  }
  all_.resize(n);
  std::iota(all_.begin(), all_.end(), 0);
}

StepRun::Scratch StepRun::scratch_of(int member) const {
  const Shape& shape = model_.shape_;
  const std::int64_t head = model_.cache_.padded_head_size();
  const std::int64_t blocks = (shape.context + kCacheBlock - 1) / kCacheBlock;
  std::uint8_t* next = model_.scratch_[static_cast<std::size_t>(member)].data();
  const auto take = [&next](std::int64_t bytes) {
    std::uint8_t* taken = next;
    next += (bytes + 63) / 64 * 64;
    return taken;
  };
  Scratch scratch;
  scratch.attention = reinterpret_cast<float*>(take(4 * attention_scratch(kTileQueries, head)));
  scratch.query = reinterpret_cast<float*>(take(4 * kTileQueries * head));
  scratch.gate = reinterpret_cast<float*>(take(4 * kSweepRows * kUnitRows));
  scratch.up = reinterpret_cast<float*>(take(4 * kSweepRows * kUnitRows));
  scratch.key_blocks = reinterpret_cast<const std::uint16_t**>(take(static_cast<std::int64_t>(sizeof(void*)) * blocks));
  scratch.value_blocks =
      reinterpret_cast<const std::uint16_t**>(take(static_cast<std::int64_t>(sizeof(void*)) * blocks));
  scratch.gathered = reinterpret_cast<std::uint16_t*>(next);
  return scratch;
}

void StepRun::run(int member) {
  for (const Model::Operation& operation : model_.program_) {
    switch (operation.kind) {
      case Model::Kind::kEmbed:
        embed(operation, member);
        break;
      case Model::Kind::kLinear:
        linear(operation, member);
        break;
      case Model::Kind::kGated:
        gated(operation, member);
        break;
      case Model::Kind::kNorm:
        norm(operation, member);
        break;
      case Model::Kind::kAttention:
        attention(operation, member);
        break;
      case Model::Kind::kMixture:
        mixture(operation, member);
        break;
      case Model::Kind::kOutput:
        output(operation, member);
        break;
    }
  }
}

void StepRun::fail(std::int64_t row) { failed_[static_cast<std::size_t>(row)].store(1, std::memory_order_relaxed); }

void StepRun::embed(const Model::Operation& operation, int member) {
  const Model::Matrix& table = model_.matrix(operation.matrices[0]);
  const Model::Buffer& out = model_.buffer(operation.destination);
  model_.team_.each(member, std::ssize(rows_), [&](std::int64_t i) {
    const std::int32_t token = input_.tokens[static_cast<std::size_t>(i)];
    const Model::Place& unit = table.units[static_cast<std::size_t>(token / kUnitRows)];
    model_.kernels_.dequantise_row(table.source.type, unit.data, unit.lower, token % kUnitRows, table.source.columns,
                                   out.row(i));
    if (operation.scale == 1.0f) return;
    for (std::int64_t c = 0; c < table.source.columns; ++c) out.row(i)[c] *= operation.scale;
  });
}

void StepRun::prepare_row(const Model::Operation& operation, std::int32_t row, const Activation& out) {
  const std::int64_t columns = model_.matrix(operation.matrices[0]).source.columns;
  bool needs_values = false;
  bool needs_bytes = false;
  for (const std::int32_t index : operation.matrices) {
    (is_quantised(model_.matrix(index).source.type) ? needs_bytes : needs_values) = true;
  }
  const float* values = model_.buffer(operation.input.source).row(row);
  bool good = true;
  if (operation.input.norm >= 0) {
    const std::vector<float>& weight = model_.vector(operation.input.norm);
    good = model_.kernels_.rms_norm(values, weight.data(), operation.input.epsilon, columns, out.values);
    values = out.values;
  } else {
    good = model_.kernels_.finite(values, columns);
    if (needs_values) std::memcpy(out.values, values, static_cast<std::size_t>(columns) * sizeof(float));
  }
  if (needs_bytes) model_.kernels_.quantise(values, columns, out);
  if (!good) fail(row);
}

void StepRun::share_prepared(const Model::Operation& operation, const std::int32_t* which, std::int32_t count,
                             int member) {
  if (operation.is_handed || count <= kOwnRows) return;
  const Activation* shared = model_.shared_activations_.rows.data();
  model_.team_.each(member, count, [&](std::int64_t i) { prepare_row(operation, which[i], shared[i]); });
}

void StepRun::multiply(std::int32_t matrix, const std::uint8_t* unit, const Activation* activations, std::int32_t rows,
                       float* out, std::int64_t stride, Epilogue epilogue, const std::uint8_t* lower) {
  const MatrixSource& source = model_.matrix(matrix).source;
  model_.kernels_.linear({.type = source.type,
                          .unit = unit,
                          .lower = lower,
                          .columns = source.columns,
                          .activations = activations,
                          .rows = rows,
                          .output = out,
                          .output_stride = stride,
                          .epilogue = epilogue});
}

// (+)= scale × (x + bias) of one unit's columns.
void StepRun::settle(const Model::Operation& operation, const float* products, std::int32_t rows, std::int64_t column,
                     float* out, std::int64_t stride) {
  const float* bias = operation.bias.empty() ? nullptr : operation.bias.data() + column;
  for (std::int32_t r = 0; r < rows; ++r) {
    for (int c = 0; c < kUnitRows; ++c) {
      float value = products[r * kUnitRows + c];
      if (bias != nullptr) value += bias[c];
      value *= operation.scale;
      float& to = out[r * stride + c];
      to = operation.accumulate ? to + value : value;
    }
  }
}

namespace {

// The tasks of a product: each unit of the weights in each sweep of the rows. A member's own tasks are its own units,
// sweep after sweep, so that the activations of one stay in its cache.
struct Sweeps {
  std::int64_t units;
  std::int64_t count;
  int members;

  struct Place {
    std::int64_t unit;
    std::int64_t sweep;
  };

  std::int64_t tasks() const { return units * count; }
  Place at(std::int64_t task) const {
    if (count == 1) return {task, 0};
    int owner = 0;
    while (task >= share(units, owner, members).end * count) ++owner;
    const Share own = share(units, owner, members);
    const std::int64_t within = task - own.begin * count;
    const std::int64_t width = own.end - own.begin;
    return {own.begin + within % width, within / width};
  }
};

}  // namespace

// A product's tasks: task(activations, piece, first row, rows).
template <class Task>
void StepRun::each_unit(const Model::Operation& operation, int member, const Task& task) {
  const auto count = static_cast<std::int32_t>(rows_.size());
  const Sweeps sweeps{std::ssize(operation.pieces), (count + kSweepRows - 1) / kSweepRows, model_.team_.members()};
  share_prepared(operation, all_.data(), count, member);
  each_prepared(operation, all_.data(), count, member, sweeps.tasks(),
                [&](const Activation* activations, std::int64_t i) {
                  const auto [unit, sweep] = sweeps.at(i);
                  const auto first = static_cast<std::int32_t>(sweep) * kSweepRows;
                  task(activations + first, operation.pieces[static_cast<std::size_t>(unit)], first,
                       std::min(kSweepRows, count - first));
                });
}

void StepRun::linear(const Model::Operation& operation, int member) {
  const Model::Buffer& out = model_.buffer(operation.destination);
  const Scratch scratch = scratch_of(member);
  const bool plain = operation.bias.empty() && operation.scale == 1.0f;
  each_unit(operation, member, [&](const Activation* x, const Model::Piece& piece, std::int32_t first, std::int32_t n) {
    float* to = out.row(first) + piece.column;
    multiply(piece.matrix, piece.data, x, n, plain ? to : scratch.gate, plain ? out.width : kUnitRows,
             plain && operation.accumulate ? Epilogue::kAdd : Epilogue::kStore);
    if (!plain) settle(operation, scratch.gate, n, piece.column, to, out.width);
  });
}

// scratch.gate = activation(gate · x) × (up · x) of one unit.
void StepRun::gate_unit(const Model::Operation& operation, const Model::Piece& piece, const Activation* activations,
                        std::int32_t rows, const Scratch& scratch) {
  multiply(piece.matrix, piece.data, activations, rows, scratch.gate, kUnitRows);
  multiply(piece.partner, piece.second, activations, rows, scratch.up, kUnitRows);
  model_.kernels_.activate_multiply(operation.activation, scratch.gate, scratch.up, std::int64_t{rows} * kUnitRows);
}

void StepRun::gated(const Model::Operation& operation, int member) {
  const Model::Buffer& out = model_.buffer(operation.destination);
  const Scratch scratch = scratch_of(member);
  each_unit(operation, member, [&](const Activation* x, const Model::Piece& piece, std::int32_t first, std::int32_t n) {
    gate_unit(operation, piece, x, n, scratch);
    for (std::int32_t r = 0; r < n; ++r) {
      const float* values = scratch.gate + r * kUnitRows;
      if (!operation.hands_on) {
        std::memcpy(out.row(first + r) + piece.column, values, kUnitRows * sizeof(float));
        continue;
      }
      const Activation& row = model_.handed_activations_.rows[static_cast<std::size_t>(first + r)];
      model_.kernels_.quantise(values, kUnitRows, row.quantised_from(piece.column));
      if (!model_.kernels_.finite(values, kUnitRows)) fail(first + r);
    }
  });
}

void StepRun::norm(const Model::Operation& operation, int member) {
  const std::vector<float>& weight = model_.vector(operation.input.norm);
  const auto columns = std::ssize(weight);
  float* normalised = model_.own_activations_[static_cast<std::size_t>(member)].rows[0].values;
  model_.team_.each(member, std::ssize(rows_), [&](std::int64_t i) {
    const float* source = model_.buffer(operation.input.source).row(i);
    if (!model_.kernels_.rms_norm(source, weight.data(), operation.input.epsilon, columns, normalised)) fail(i);
    float* out = model_.buffer(operation.destination).row(i);
    for (std::int64_t c = 0; c < columns; ++c) {
      const float value = normalised[c] * operation.scale;
      out[c] = operation.accumulate ? out[c] + value : value;
    }
  });
}

StepOutput StepRun::take_output() {
  std::vector<std::int32_t>& failed = output_.failed_sequences;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (failed_[i].load(std::memory_order_relaxed) != 0) failed.push_back(input_.sequences[i]);
  }
  // What a failed row leaves depends on how its token was looked for: results that are void are equal, too.
  for (std::size_t w = 0; w < wanted_.size(); ++w) {
    if (failed_[static_cast<std::size_t>(wanted_[w])].load(std::memory_order_relaxed) != 0) output_.picks[w] = {};
  }
  std::sort(failed.begin(), failed.end());
  failed.erase(std::unique(failed.begin(), failed.end()), failed.end());
  return std::move(output_);
}

}  // namespace ultrafast
