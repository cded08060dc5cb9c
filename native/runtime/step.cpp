#include "step.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "checks.h"

namespace ultrafast {

namespace {

// Member m's share [begin, end) of n equal tasks.
struct Share {
  std::int64_t begin;
  std::int64_t end;
};
Share share(std::int64_t n, int member, int members) { return {n * member / members, n * (member + 1) / members}; }

}  // namespace

StepOutput Model::step(const StepInput& input) {
  require(finished_, "finish() the model first");
  if (busy_.test_and_set(std::memory_order_acquire)) throw std::logic_error("a step is running already");
  struct Release {
    std::atomic_flag& flag;
    ~Release() { flag.clear(std::memory_order_release); }
  } release{busy_};
  StepRun run(*this, input);
  team_.run([&run](int member) { run.run(member); });
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
      case Model::Kind::kAttention:
        attention(operation, member);
        break;
      case Model::Kind::kOutput:
        output(operation, member);
        break;
    }
  }
}

void StepRun::embed(const Model::Operation& operation, int member) {
  const Model::Matrix& table = model_.matrix(operation.matrices[0]);
  const Model::Buffer& out = model_.buffer(operation.destination);
  const auto [begin, end] = share(static_cast<std::int64_t>(rows_.size()), member, model_.team_.members());
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int32_t token = input_.tokens[static_cast<std::size_t>(i)];
    model_.kernels_.dequantise_row(table.source.type, table.units[static_cast<std::size_t>(token / kUnitRows)],
                                   token % kUnitRows, table.source.columns, out.row(i));
  }
  model_.team_.barrier();
}

void StepRun::prepare_row(const Model::Operation& operation, std::int32_t row, const Activation& out) {
  const MatrixSource& first = model_.matrix(operation.matrices[0]).source;
  bool needs_values = false;
  bool needs_bytes = false;
  for (const std::int32_t index : operation.matrices) {
    (is_quantised(model_.matrix(index).source.type) ? needs_bytes : needs_values) = true;
  }
  const float* values = model_.buffer(operation.source).row(row);
  bool good = true;
  if (operation.norm >= 0) {
    const std::vector<float>& weight = model_.vectors_[static_cast<std::size_t>(operation.norm)];
    good = model_.kernels_.rms_norm(values, weight.data(), operation.epsilon, first.columns, out.values);
    values = out.values;
  } else {
    good = model_.kernels_.finite(values, first.columns);
    if (needs_values) std::memcpy(out.values, values, static_cast<std::size_t>(first.columns) * sizeof(float));
  }
  if (needs_bytes) model_.kernels_.quantise(values, first.columns, out);
  if (!good) failed_[static_cast<std::size_t>(row)].store(1, std::memory_order_relaxed);
}

const Activation* StepRun::prepare(const Model::Operation& operation, const std::int32_t* which, std::int32_t count,
                                   int member) {
  if (count <= kOwnRows) {
    const std::vector<Activation>& own = model_.own_activations_[static_cast<std::size_t>(member)].rows;
    for (std::int32_t i = 0; i < count; ++i) prepare_row(operation, which[i], own[static_cast<std::size_t>(i)]);
    return own.data();
  }
  const std::vector<Activation>& shared = model_.shared_activations_.rows;
  const auto [begin, end] = share(count, member, model_.team_.members());
  for (std::int64_t i = begin; i < end; ++i) prepare_row(operation, which[i], shared[static_cast<std::size_t>(i)]);
  model_.team_.barrier();
  return shared.data();
}

void StepRun::linear(const Model::Operation& operation, int member) {
  const auto count = static_cast<std::int32_t>(rows_.size());
  const Activation* activations = prepare(operation, all_.data(), count, member);
  const Model::Buffer& out = model_.buffer(operation.destination);
  for (std::int32_t first = 0; first < count; first += kSweepRows) {
    for (const Model::Piece& piece : operation.pieces[static_cast<std::size_t>(member)]) {
      const MatrixSource& source = model_.matrix(piece.matrix).source;
      model_.kernels_.linear({.type = source.type,
                              .unit = piece.data,
                              .columns = source.columns,
                              .activations = activations + first,
                              .rows = std::min(kSweepRows, count - first),
                              .output = out.row(first) + piece.column,
                              .output_stride = out.width,
                              .epilogue = operation.accumulate ? Epilogue::kAdd : Epilogue::kStore});
    }
  }
  model_.team_.barrier();
}

void StepRun::gated(const Model::Operation& operation, int member) {
  const auto count = static_cast<std::int32_t>(rows_.size());
  const Activation* activations = prepare(operation, all_.data(), count, member);
  const Model::Buffer& out = model_.buffer(operation.destination);
  const Scratch scratch = scratch_of(member);
  const MatrixSource& gate = model_.matrix(operation.matrices[0]).source;
  const MatrixSource& up = model_.matrix(operation.matrices[1]).source;
  for (std::int32_t first = 0; first < count; first += kSweepRows) {
    const std::int32_t rows = std::min(kSweepRows, count - first);
    for (const Model::Piece& piece : operation.pieces[static_cast<std::size_t>(member)]) {
      LinearArguments arguments{.type = gate.type,
                                .unit = piece.data,
                                .columns = gate.columns,
                                .activations = activations + first,
                                .rows = rows,
                                .output = scratch.gate,
                                .output_stride = kUnitRows,
                                .epilogue = Epilogue::kStore};
      model_.kernels_.linear(arguments);
      arguments.type = up.type;
      arguments.unit = piece.second;
      arguments.output = scratch.up;
      model_.kernels_.linear(arguments);
      model_.kernels_.silu_multiply(scratch.gate, scratch.up, std::int64_t{rows} * kUnitRows);
      for (std::int32_t r = 0; r < rows; ++r) {
        std::memcpy(out.row(first + r) + piece.column, scratch.gate + r * kUnitRows, kUnitRows * sizeof(float));
      }
    }
  }
  model_.team_.barrier();
}

void StepRun::output(const Model::Operation& operation, int member) {
  const auto total = static_cast<std::int32_t>(wanted_.size());
  const std::int64_t width = padded(model_.shape_.vocabulary_size);
  auto* logits = reinterpret_cast<float*>(model_.logits_.data());
  const MatrixSource& source = model_.matrix(operation.matrices[0]).source;
  for (std::int32_t first = 0; first < total; first += kPickRows) {
    const std::int32_t count = std::min(kPickRows, total - first);
    const Activation* activations = prepare(operation, wanted_.data() + first, count, member);
    for (const Model::Piece& piece : operation.pieces[static_cast<std::size_t>(member)]) {
      model_.kernels_.linear({.type = source.type,
                              .unit = piece.data,
                              .columns = source.columns,
                              .activations = activations,
                              .rows = count,
                              .output = logits + piece.column,
                              .output_stride = width,
                              .epilogue = Epilogue::kStore});
    }
    model_.team_.barrier();
    pick_rows(first, count, activations, member);
  }
}

bool StepRun::picks_greedily(std::int32_t wanted) const {
  const auto row = static_cast<std::size_t>(wanted_[static_cast<std::size_t>(wanted)]);
  const bool only_token = (input_.want[row] & (kWantToken | kWantTop | kWantLogits)) == kWantToken;
  return only_token && input_.allowed_mask == nullptr && rows_[row].sequence->sampling.is_plain_greedy();
}

void StepRun::pick_rows(std::int32_t first, std::int32_t count, const Activation* activations, int member) {
  const std::int64_t width = padded(model_.shape_.vocabulary_size);
  const auto* logits = reinterpret_cast<const float*>(model_.logits_.data());
  const auto [begin_unit, end_unit] = share(width / kUnitRows, member, model_.team_.members());
  const auto begin = static_cast<std::int32_t>(begin_unit * kUnitRows);
  const auto end = std::min(static_cast<std::int32_t>(end_unit * kUnitRows), model_.shape_.vocabulary_size);
  std::int32_t turn = 0;
  for (std::int32_t i = 0; i < count; ++i) {
    const float* row_logits = logits + i * width;
    if (picks_greedily(first + i)) {
      const bool any = begin < end;
      const bool good = !any || model_.kernels_.finite(row_logits + begin, end - begin);
      if (!good) {
        failed_[static_cast<std::size_t>(wanted_[static_cast<std::size_t>(first + i)])].store(
            1, std::memory_order_relaxed);
      }
      best_[static_cast<std::size_t>(member * kPickRows + i)] =
          any && good ? model_.kernels_.arg_max(row_logits, begin, end) : -1;
    } else if (turn++ % model_.team_.members() == member) {
      pick_row(first + i, row_logits, member);
    }
    const std::int32_t hidden = hidden_index_[static_cast<std::size_t>(first + i)];
    if (hidden >= 0 && member == 0) {
      const auto size = static_cast<std::size_t>(model_.shape_.hidden_size);
      std::copy_n(activations[i].values, size, output_.hidden.data() + static_cast<std::size_t>(hidden) * size);
    }
  }
  model_.team_.barrier();
  if (member == 0) merge_greedy(first, count);
}

// Members own ascending columns, so the first of equals is the lowest id.
void StepRun::merge_greedy(std::int32_t first, std::int32_t count) {
  const std::int64_t width = padded(model_.shape_.vocabulary_size);
  const auto* logits = reinterpret_cast<const float*>(model_.logits_.data());
  for (std::int32_t i = 0; i < count; ++i) {
    if (!picks_greedily(first + i)) continue;
    std::int32_t best = -1;
    for (int member = 0; member < model_.team_.members(); ++member) {
      const std::int32_t candidate = best_[static_cast<std::size_t>(member * kPickRows + i)];
      if (candidate < 0) continue;
      if (best < 0 || logits[i * width + candidate] > logits[i * width + best]) best = candidate;
    }
    output_.picks[static_cast<std::size_t>(first + i)].token = best;
  }
}

void StepRun::pick_row(std::int32_t wanted, const float* logits, int member) {
  const auto w = static_cast<std::size_t>(wanted);
  const auto index = static_cast<std::size_t>(wanted_[w]);
  const Row& row = rows_[index];
  const auto vocabulary = static_cast<std::size_t>(model_.shape_.vocabulary_size);
  if (logits_index_[w] >= 0) {
    std::copy_n(logits, vocabulary, output_.logits.data() + static_cast<std::size_t>(logits_index_[w]) * vocabulary);
  }
  const std::uint8_t want = input_.want[index];
  if ((want & (kWantToken | kWantTop)) == 0) return;
  const std::vector<std::int32_t>& history = row.sequence->tokens;
  std::span<const std::int32_t> path(history.data(), static_cast<std::size_t>(row.position) + 1);
  std::vector<std::int32_t> gathered;
  if (!row.on_line && row.sequence->sampling.penalises()) {
    gathered.assign(history.begin(), history.begin() + row.base);
    for (const std::int32_t entry : row.path) gathered.push_back(history[static_cast<std::size_t>(entry)]);
    path = gathered;
  }
  const std::int32_t output_index = row.position + 1 - row.sequence->prompt_length;
  const PickRequest request{
      .sampling = &row.sequence->sampling,
      .path = path,
      .prompt_length = row.sequence->prompt_length,
      .output_index = static_cast<std::uint32_t>(output_index),
      .allowed_mask = input_.allowed_mask == nullptr ? nullptr : input_.allowed_mask + w * ((vocabulary + 31) / 32),
      .want_token = (want & kWantToken) != 0,
      .want_top = (want & kWantTop) != 0,
  };
  output_.picks[w] = model_.pickers_[static_cast<std::size_t>(member)].pick(logits, request);
  if (output_.picks[w].failed) failed_[index].store(1, std::memory_order_relaxed);
}

StepOutput StepRun::take_output() {
  std::vector<std::int32_t>& failed = output_.failed_sequences;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (failed_[i].load(std::memory_order_relaxed) != 0) failed.push_back(input_.sequences[i]);
  }
  std::sort(failed.begin(), failed.end());
  failed.erase(std::unique(failed.begin(), failed.end()), failed.end());
  return std::move(output_);
}

}  // namespace ultrafast
