// The arg-max of the output layer, with noise or without, and without reading all of it: the upper parts of the weights
// give every score but for a proven slack (bounds.h), and only rows that could win are multiplied exactly. The result
// is the one of all scores.
#include <algorithm>
#include <limits>

#include "bounds.h"
#include "checks.h"
#include "step.h"

namespace ultrafast {

bool StepRun::finds_by_bounds(const Model::Operation& operation, std::int32_t first, std::int32_t count) const {
  if (!may_bound_ || model_.matrix(operation.matrices[0]).slack.empty()) return false;
  for (std::int32_t i = 0; i < count; ++i) {
    if (!picks_greedily(first + i) && !picks_with_noise(first + i)) return false;
  }
  return true;
}

void StepRun::find_by_bounds(const Model::Operation& operation, std::int32_t first, std::int32_t count, int member) {
  const std::int32_t* which = wanted_.data() + first;
  const std::int64_t width = padded(model_.shape_.vocabulary_size);
  const std::int64_t parts = model_.team_.members();
  const Model::Matrix& matrix = model_.matrix(operation.matrices[0]);
  auto* scores = reinterpret_cast<float*>(model_.logits_.data());
  float* exact = scratch_of(member).gate;
  each_prepared(operation, which, count, member, std::ssize(operation.pieces),
                [&](const Activation* activations, std::int64_t task) {
                  const Model::Piece& piece = operation.pieces[static_cast<std::size_t>(task)];
                  model_.kernels_.linear_upper({.type = matrix.source.type,
                                                .unit = piece.data,
                                                .lower = nullptr,
                                                .columns = matrix.source.columns,
                                                .activations = activations,
                                                .rows = count,
                                                .output = scores + piece.column,
                                                .output_stride = width,
                                                .epilogue = Epilogue::kStore});
                  if (task == 0) keep_hidden(first, count, activations);
                });
  const auto race = [&](bool noisy) {
    each_prepared(operation, which, count, member, parts, [&](const Activation* activations, std::int64_t part) {
      find_floor({operation, activations, first, count, part, noisy, exact});
    });
    each_prepared(operation, which, count, member, parts, [&](const Activation* activations, std::int64_t part) {
      find_best_left({operation, activations, first, count, part, noisy, exact});
    });
  };
  race(false);
  bool any_noise = false;
  for (std::int32_t i = 0; i < count; ++i) any_noise = any_noise || picks_with_noise(first + i);
  if (any_noise) race(true);
  model_.team_.each(member, 1, [&](std::int64_t) {
    merge_best(first, count, true);
    note_groups_left(static_cast<float>(groups_left_.exchange(0)) /
                     static_cast<float>(count * std::ssize(operation.pieces) * (kUnitRows / kGroupRows)));
  });
}

// Where bounds leave too large a part of the groups on average, some steps go without them.
void StepRun::note_groups_left(float part) {
  float& average = model_.left_average_;
  average += (part - average) / kLeftSteps;
  if (average < kMostLeft) return;
  model_.unbounded_steps_ = kUnboundedSteps;
  average = kMostLeft / 2;
}

// The exact logits of row i for a group's 16 tokens or, with noise, their scores by the operations of Picker::sample.
const float* StepRun::score_group(const Race& race, std::int32_t i, std::int32_t group, float maximum) {
  constexpr std::int32_t kGroups = kUnitRows / kGroupRows;
  const Model::Piece& piece = race.operation.pieces[static_cast<std::size_t>(group / kGroups)];
  const MatrixSource& source = model_.matrix(piece.matrix).source;
  model_.kernels_.linear_group({.type = source.type,
                                .unit = piece.data,
                                .lower = piece.second,
                                .columns = source.columns,
                                .activations = race.activations + i,
                                .rows = 1,
                                .output = race.scores,
                                .output_stride = kUnitRows,
                                .epilogue = Epilogue::kStore},
                               group % kGroups);
  float* scores = race.scores + group % kGroups * kGroupRows;
  if (!race.noisy) return scores;
  std::int32_t tokens[kGroupRows];
  for (std::int32_t r = 0; r < kGroupRows; ++r) tokens[r] = group * kGroupRows + r;
  float noise[kUnitRows];
  model_.kernels_.gumbel(noise_key(race.first + i), tokens, kGroupRows, noise);
  const float temperature = row_of(race.first + i).sequence->sampling.temperature;
  for (std::int32_t r = 0; r < kGroupRows; ++r) scores[r] = noise[r] + (scores[r] - maximum) / temperature;
  return scores;
}

// The exact score of the token that looks best in a part: no token below it can be the best. With noise the part's
// bounds of logits become those of scores first.
void StepRun::find_floor(const Race& race) {
  const Model::Matrix& matrix = model_.matrix(race.operation.matrices[0]);
  const Share columns = columns_of(race.part);
  const auto begin = static_cast<std::int32_t>(columns.begin);
  const auto end = static_cast<std::int32_t>(columns.end);
  for (std::int32_t i = 0; i < race.count; ++i) {
    float& floor = (race.noisy ? noisy_floors_ : floors_)[static_cast<std::size_t>(race.part * kPickRows + i)];
    floor = -std::numeric_limits<float>::infinity();
    if (begin >= end || (race.noisy && !picks_with_noise(race.first + i))) continue;
    auto* bounds = reinterpret_cast<float*>(model_.logits_.data()) + i * padded(model_.shape_.vocabulary_size);
    const float maximum = race.noisy ? maximum_of(i) : 0.0f;
    if (race.noisy) {
      model_.kernels_.noisy_bounds(noise_key(race.first + i), matrix.slack.data(),
                                   activation_norm(race.activations[i], matrix.source.columns), maximum,
                                   row_of(race.first + i).sequence->sampling.temperature, begin, end, bounds);
    }
    const std::int32_t token = model_.kernels_.arg_max(bounds, begin, end);
    floor = score_group(race, i, token / kGroupRows, maximum)[token % kGroupRows];
  }
}

// The best of a part's tokens among those that could reach the highest floor, by exact scores.
void StepRun::find_best_left(const Race& race) {
  const Model::Matrix& matrix = model_.matrix(race.operation.matrices[0]);
  const std::vector<float>& floors = race.noisy ? noisy_floors_ : floors_;
  const Share columns = columns_of(race.part);
  const auto end = static_cast<std::int32_t>(columns.end);
  for (std::int32_t i = 0; i < race.count; ++i) {
    Best& best = (race.noisy ? noisy_best_ : best_)[static_cast<std::size_t>(race.part * kPickRows + i)];
    best = {};
    if (race.noisy && !picks_with_noise(race.first + i)) continue;
    const auto* bounds =
        reinterpret_cast<const float*>(model_.logits_.data()) + i * padded(model_.shape_.vocabulary_size);
    float floor = floors[static_cast<std::size_t>(i)];
    for (std::int64_t other = 1; other < model_.team_.members(); ++other) {
      floor = std::max(floor, floors[static_cast<std::size_t>(other * kPickRows + i)]);
    }
    const float norm = activation_norm(race.activations[i], matrix.source.columns);
    const float maximum = race.noisy ? maximum_of(i) : 0.0f;
    // Bounds of scores have their slack in them.
    const float threshold = race.noisy ? floor : reach_threshold(floor);
    const float reach = race.noisy ? 0.0f : norm;
    for (auto token = static_cast<std::int32_t>(columns.begin); token < end;) {
      if (norm < kLargestNorm) {
        token = model_.kernels_.next_reaching(bounds, matrix.slack.data(), reach, threshold, token, end);
        if (token >= end) break;
      }
      const std::int32_t group = token / kGroupRows;
      const float* scores = score_group(race, i, group, maximum);
      groups_left_.fetch_add(1, std::memory_order_relaxed);
      if (!race.noisy && !model_.kernels_.finite(scores, kGroupRows)) {
        fail(wanted_[static_cast<std::size_t>(race.first + i)]);
      }
      for (const std::int32_t group_end = std::min((group + 1) * kGroupRows, end); token < group_end; ++token) {
        const float score = scores[token % kGroupRows];
        if (best.token < 0 || score > best.score) best = {token, score};
      }
    }
  }
}

// With noise: a token's score is (logit − maximum) / temperature + noise, and grows with its logit, so a logit's bound
// bounds the score. The exact maximum was found before, as for greedy rows.

bool StepRun::picks_with_noise(std::int32_t wanted) const {
  return wants_only_token(wanted) && row_of(wanted).sequence->sampling.is_plain_noise();
}

NoiseKey StepRun::noise_key(std::int32_t wanted) const {
  const Row& row = row_of(wanted);
  const Sampling& sampling = row.sequence->sampling;
  return {sampling.seed, sampling.choice, static_cast<std::uint32_t>(row.position + 1 - row.sequence->prompt_length)};
}

// The largest logit of the batch's row i.
float StepRun::maximum_of(std::int32_t i) const {
  float maximum = -std::numeric_limits<float>::infinity();
  for (std::int64_t part = 0; part < model_.team_.members(); ++part) {
    const Best& best = best_[static_cast<std::size_t>(part * kPickRows + i)];
    if (best.token >= 0) maximum = std::max(maximum, best.score);
  }
  return maximum;
}

}  // namespace ultrafast
