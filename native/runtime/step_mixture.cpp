// A mixture of experts: a router chooses a few per row; each expert's weights are read once for all rows that use it.
//
// Exactness: a row's router, choice, experts and their sum (by ascending expert) depend on that row alone.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "checks.h"
#include "step.h"

namespace ultrafast {

void StepRun::mixture(const Model::Operation& operation, int member) {
  Team& team = model_.team_;
  const auto count = static_cast<std::int32_t>(rows_.size());
  const std::int64_t experts = operation.experts.count();
  const Scratch scratch = scratch_of(member);
  auto* logits = reinterpret_cast<float*>(model_.router_.data());
  share_prepared(operation, all_.data(), count, member);
  each_prepared(operation, all_.data(), count, member, std::ssize(operation.router_pieces),
                [&](const Activation* activations, std::int64_t task) {
                  const Model::Piece& piece = operation.router_pieces[static_cast<std::size_t>(task)];
                  multiply(piece.matrix, piece.data, activations, count, logits + piece.column, padded(experts));
                });
  team.each(member, count, [&](std::int64_t row) { route(operation, row); });
  team.each(member, 1, [&](std::int64_t) { group_slots(operation); });
  each_prepared(operation, all_.data(), count, member, std::ssize(operation.pieces),
                [&](const Activation* activations, std::int64_t task) {
                  run_expert(operation, operation.pieces[static_cast<std::size_t>(task)], activations, scratch);
                });
  team.each(member, std::int64_t{count} * operation.experts.used,
            [&](std::int64_t slot) { prepare_slot(operation, slot); });
  // One task has all experts of its columns, so that their sum is in order.
  team.each(member, std::ssize(operation.down_pieces) / experts, [&](std::int64_t unit) {
    for (std::int64_t e = 0; e < experts; ++e) {
      join_expert(operation, operation.down_pieces[static_cast<std::size_t>(unit * experts + e)], scratch);
    }
  });
}

// The row's best experts (ties to the lower one) and their weights: a softmax over all, then over the chosen where the
// model says so.
void StepRun::route(const Model::Operation& operation, std::int64_t row) {
  const Experts& experts = operation.experts;
  const std::int32_t count = experts.count();
  float* logits = reinterpret_cast<float*>(model_.router_.data()) + row * padded(count);
  if (!model_.kernels_.finite(logits, count)) {
    fail(row);
    std::fill(logits, logits + count, 0.0f);
  }
  std::vector<std::int32_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + experts.used, order.end(), [&](std::int32_t a, std::int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  });
  const float best = logits[order.front()];
  float total = model_.kernels_.exp_sum(logits, best, count, logits);
  std::sort(order.begin(), order.begin() + experts.used);
  if (experts.normalise) {
    total = 0.0f;
    for (std::int32_t i = 0; i < experts.used; ++i) total += logits[order[static_cast<std::size_t>(i)]];
  }
  for (std::int32_t i = 0; i < experts.used; ++i) {
    const auto slot = static_cast<std::size_t>(row * experts.used + i);
    routes_[slot] = order[static_cast<std::size_t>(i)];
    route_weights_[slot] = logits[order[static_cast<std::size_t>(i)]] / total;
  }
}

// Slots (row × used + i) by the expert they go to, each expert's ascending.
void StepRun::group_slots(const Model::Operation& operation) {
  const std::size_t count = rows_.size() * static_cast<std::size_t>(operation.experts.used);
  expert_first_.assign(static_cast<std::size_t>(operation.experts.count()) + 1, 0);
  expert_slots_.resize(count);
  for (std::size_t s = 0; s < count; ++s) ++expert_first_[static_cast<std::size_t>(routes_[s]) + 1];
  std::partial_sum(expert_first_.begin(), expert_first_.end(), expert_first_.begin());
  std::vector<std::int32_t> next(expert_first_.begin(), expert_first_.end() - 1);
  for (std::size_t s = 0; s < count; ++s) {
    expert_slots_[static_cast<std::size_t>(next[static_cast<std::size_t>(routes_[s])]++)] =
        static_cast<std::int32_t>(s);
  }
}

// sweep(slots, rows) for up to kSweepRows of the expert's slots at a time.
template <class Sweep>
void StepRun::each_sweep(std::int32_t expert, const Sweep& sweep) const {
  const std::int32_t end = expert_first_[static_cast<std::size_t>(expert) + 1];
  for (std::int32_t first = expert_first_[static_cast<std::size_t>(expert)]; first < end; first += kSweepRows) {
    sweep(expert_slots_.data() + first, std::min(kSweepRows, end - first));
  }
}

// expert_[slot] = activation(gate · x) × (up · x), one unit of the slot's expert.
void StepRun::run_expert(const Model::Operation& operation, const Model::Piece& piece, const Activation* activations,
                         const Scratch& scratch) {
  each_sweep(piece.expert, [&](const std::int32_t* slots, std::int32_t rows) {
    Activation taken[kSweepRows] = {};
    for (std::int32_t r = 0; r < rows; ++r) taken[r] = activations[slots[r] / operation.experts.used];
    gate_unit(operation, piece, taken, rows, scratch);
    for (std::int32_t r = 0; r < rows; ++r) {
      float* out = reinterpret_cast<float*>(model_.expert_.data()) + slots[r] * model_.widest_expert_;
      std::memcpy(out + piece.column, scratch.gate + r * kUnitRows, kUnitRows * sizeof(float));
    }
  });
}

// What an expert gave, as its down matrix takes it.
void StepRun::prepare_slot(const Model::Operation& operation, std::int64_t slot) {
  const Experts& experts = operation.experts;
  const std::int64_t inner = model_.matrix(experts.downs[0]).source.columns;
  const auto quantised = [this](std::int32_t down) { return is_quantised(model_.matrix(down).source.type); };
  const bool needs_bytes = std::any_of(experts.downs.begin(), experts.downs.end(), quantised);
  const bool needs_values = !std::all_of(experts.downs.begin(), experts.downs.end(), quantised);
  const float* values = reinterpret_cast<float*>(model_.expert_.data()) + slot * model_.widest_expert_;
  const Activation& out = model_.shared_activations_.rows[static_cast<std::size_t>(slot)];
  if (!model_.kernels_.finite(values, inner)) fail(slot / experts.used);
  if (needs_values) std::memcpy(out.values, values, static_cast<std::size_t>(inner) * sizeof(float));
  if (needs_bytes) model_.kernels_.quantise(values, inner, out);
}

// destination += scale × weight × (down · expert_[slot]), one unit of one expert.
void StepRun::join_expert(const Model::Operation& operation, const Model::Piece& piece, const Scratch& scratch) {
  const Model::Buffer& destination = model_.buffer(operation.destination);
  each_sweep(piece.expert, [&](const std::int32_t* slots, std::int32_t rows) {
    Activation taken[kSweepRows] = {};
    for (std::int32_t r = 0; r < rows; ++r) {
      taken[r] = model_.shared_activations_.rows[static_cast<std::size_t>(slots[r])];
    }
    multiply(piece.matrix, piece.data, taken, rows, scratch.gate, kUnitRows);
    for (std::int32_t r = 0; r < rows; ++r) {
      const float weight = route_weights_[static_cast<std::size_t>(slots[r])] * operation.scale;
      float* out = destination.row(slots[r] / operation.experts.used) + piece.column;
      for (int c = 0; c < kUnitRows; ++c) out[c] += weight * scratch.gate[r * kUnitRows + c];
    }
  });
}

}  // namespace ultrafast
