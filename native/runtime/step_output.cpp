// The last operation of a step: logits of the rows that want something, then their tokens.
#include <algorithm>

#include "checks.h"
#include "step.h"

namespace ultrafast {

void StepRun::output(const Model::Operation& operation, int member) {
  const auto total = static_cast<std::int32_t>(wanted_.size());
  const std::int64_t width = padded(model_.shape_.vocabulary_size);
  auto* logits = reinterpret_cast<float*>(model_.logits_.data());
  for (std::int32_t first = 0; first < total; first += kPickRows) {
    const std::int32_t count = std::min(kPickRows, total - first);
    share_prepared(operation, wanted_.data() + first, count, member);
    if (finds_by_bounds(operation, first, count)) {
      find_by_bounds(operation, first, count, member);
      continue;
    }
    each_prepared(operation, wanted_.data() + first, count, member, std::ssize(operation.pieces),
                  [&](const Activation* activations, std::int64_t task) {
                    const Model::Piece& piece = operation.pieces[static_cast<std::size_t>(task)];
                    multiply(piece.matrix, piece.data, activations, count, logits + piece.column, width,
                             Epilogue::kStore, piece.second);
                    finish_logits(operation, logits + piece.column, count);
                    if (task == 0) keep_hidden(first, count, activations);
                  });
    pick_rows(first, count, member);
  }
}

void StepRun::keep_hidden(std::int32_t first, std::int32_t count, const Activation* activations) {
  const auto size = static_cast<std::size_t>(model_.shape_.hidden_size);
  for (std::int32_t i = 0; i < count; ++i) {
    const std::int32_t hidden = hidden_index_[static_cast<std::size_t>(first + i)];
    if (hidden < 0) continue;
    std::copy_n(activations[i].values, size, output_.hidden.data() + static_cast<std::size_t>(hidden) * size);
  }
}

// Scale and soft cap of one unit's columns.
void StepRun::finish_logits(const Model::Operation& operation, float* logits, std::int32_t count) {
  const std::int64_t width = padded(model_.shape_.vocabulary_size);
  for (std::int32_t i = 0; i < count; ++i) {
    float* row = logits + i * width;
    if (operation.scale != 1.0f) {
      for (int c = 0; c < kUnitRows; ++c) row[c] *= operation.scale;
    }
    if (operation.softcap != 0.0f) model_.kernels_.soft_cap(row, operation.softcap, kUnitRows);
  }
}

bool StepRun::wants_only_token(std::int32_t wanted) const {
  const auto row = static_cast<std::size_t>(wanted_[static_cast<std::size_t>(wanted)]);
  return (input_.want[row] & (kWantToken | kWantTop | kWantLogits)) == kWantToken && input_.allowed_mask == nullptr;
}

bool StepRun::picks_greedily(std::int32_t wanted) const {
  return wants_only_token(wanted) && row_of(wanted).sequence->sampling.is_plain_greedy();
}

// Greedy rows: the best of each part of the columns, then of the parts. Other rows are tasks of their own.
void StepRun::pick_rows(std::int32_t first, std::int32_t count, int member) {
  const std::int64_t width = padded(model_.shape_.vocabulary_size);
  const auto* logits = reinterpret_cast<const float*>(model_.logits_.data());
  const std::int64_t parts = model_.team_.members();
  model_.team_.each(member, parts + count, [&](std::int64_t task) {
    const auto row = static_cast<std::int32_t>(task - parts);
    if (row < 0) {
      find_best(first, count, task);
    } else if (!picks_greedily(first + row)) {
      pick_row(first + row, logits + row * width, member);
    }
  });
  model_.team_.each(member, 1, [&](std::int64_t) { merge_best(first, count, false); });
}

// A part's columns, those of the vocabulary.
Share StepRun::columns_of(std::int64_t part) const {
  const std::int64_t units = padded(model_.shape_.vocabulary_size) / kUnitRows;
  const Share own = share(units, static_cast<int>(part), model_.team_.members());
  return {own.begin * kUnitRows, std::min<std::int64_t>(own.end * kUnitRows, model_.shape_.vocabulary_size)};
}

void StepRun::find_best(std::int32_t first, std::int32_t count, std::int64_t part) {
  const std::int64_t width = padded(model_.shape_.vocabulary_size);
  const auto* logits = reinterpret_cast<const float*>(model_.logits_.data());
  const auto [begin, end] = columns_of(part);
  for (std::int32_t i = 0; i < count; ++i) {
    if (!picks_greedily(first + i)) continue;
    const float* row = logits + i * width;
    Best& best = best_[static_cast<std::size_t>(part * kPickRows + i)];
    best = {};
    if (begin >= end) continue;
    if (!model_.kernels_.finite(row + begin, end - begin)) {
      fail(wanted_[static_cast<std::size_t>(first + i)]);
      continue;
    }
    best.token = model_.kernels_.arg_max(row, static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end));
    best.score = row[best.token];
  }
}

// Parts are of ascending columns, so the first of equals is the lowest id.
void StepRun::merge_best(std::int32_t first, std::int32_t count, bool bounded) {
  for (std::int32_t i = 0; i < count; ++i) {
    const std::vector<Best>& found = picks_with_noise(first + i) ? noisy_best_ : best_;
    if (!bounded && !picks_greedily(first + i)) continue;
    Best best;
    for (std::int64_t part = 0; part < model_.team_.members(); ++part) {
      const Best& candidate = found[static_cast<std::size_t>(part * kPickRows + i)];
      if (candidate.token < 0) continue;
      if (best.token < 0 || candidate.score > best.score) best = candidate;
    }
    output_.picks[static_cast<std::size_t>(first + i)].token = best.token;
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
  const PickRequest request{
      .sampling = &row.sequence->sampling,
      .path = path,
      .prompt_length = row.sequence->prompt_length,
      .output_index = noise_key(wanted).output_index,
      .allowed_mask = input_.allowed_mask == nullptr ? nullptr : input_.allowed_mask + w * ((vocabulary + 31) / 32),
      .want_token = (want & kWantToken) != 0,
      .want_top = (want & kWantTop) != 0,
  };
  output_.picks[w] = model_.pickers_[static_cast<std::size_t>(member)].pick(logits, request);
  if (output_.picks[w].failed) fail(static_cast<std::int64_t>(index));
}

}  // namespace ultrafast
