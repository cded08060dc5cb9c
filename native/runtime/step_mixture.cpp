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
  const auto count = static_cast<std::int32_t>(rows_.size());
  const std::int64_t experts = padded(operation.experts.count());
  const Activation* activations = prepare(operation, all_.data(), count, member);
  auto* logits = reinterpret_cast<float*>(model_.router_.data());
  for (const Model::Piece& piece : operation.router_pieces[static_cast<std::size_t>(member)]) {
    multiply(piece.matrix, piece.data, activations, count, logits + piece.column, experts);
  }
  model_.team_.barrier();
  const auto [begin, end] = share(count, member, model_.team_.members());
  for (std::int64_t row = begin; row < end; ++row) route(operation, row);
  model_.team_.barrier();
  run_experts(operation, activations, member);
  model_.team_.barrier();
  join_experts(operation, member);
  model_.team_.barrier();
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

namespace {

// Slots (row × used + i) by the expert they go to, each expert's ascending.
struct SlotsByExpert {
  std::vector<std::int32_t> first;  // [experts + 1]
  std::vector<std::int32_t> slots;

  SlotsByExpert(const std::vector<std::int32_t>& routes, std::size_t count, std::int32_t experts)
      : first(static_cast<std::size_t>(experts) + 1, 0), slots(count) {
    for (std::size_t s = 0; s < count; ++s) ++first[static_cast<std::size_t>(routes[s]) + 1];
    std::partial_sum(first.begin(), first.end(), first.begin());
    std::vector<std::int32_t> next(first.begin(), first.end() - 1);
    for (std::size_t s = 0; s < count; ++s) {
      slots[static_cast<std::size_t>(next[static_cast<std::size_t>(routes[s])]++)] = static_cast<std::int32_t>(s);
    }
  }
};

}  // namespace

// expert_[slot] = activation(gate · x) × (up · x) of the slot's expert.
void StepRun::run_experts(const Model::Operation& operation, const Activation* activations, int member) {
  const Experts& experts = operation.experts;
  const SlotsByExpert by_expert(routes_, rows_.size() * static_cast<std::size_t>(experts.used), experts.count());
  const Scratch scratch = scratch_of(member);
  Activation taken[kSweepRows];
  for (const Model::Piece& piece : operation.pieces[static_cast<std::size_t>(member)]) {
    const auto expert = static_cast<std::size_t>(piece.expert);
    const std::int32_t end = by_expert.first[expert + 1];
    for (std::int32_t first = by_expert.first[expert]; first < end; first += kSweepRows) {
      const std::int32_t rows = std::min(kSweepRows, end - first);
      const std::int32_t* slots = by_expert.slots.data() + first;
      for (std::int32_t r = 0; r < rows; ++r) taken[r] = activations[slots[r] / experts.used];
      gate_unit(operation, piece, taken, rows, scratch);
      for (std::int32_t r = 0; r < rows; ++r) {
        float* out = reinterpret_cast<float*>(model_.expert_.data()) + slots[r] * model_.widest_expert_;
        std::memcpy(out + piece.column, scratch.gate + r * kUnitRows, kUnitRows * sizeof(float));
      }
    }
  }
}

// destination += scale × Σ weight × (down · expert_[slot]), by ascending expert.
void StepRun::join_experts(const Model::Operation& operation, int member) {
  const Experts& experts = operation.experts;
  const std::size_t count = rows_.size() * static_cast<std::size_t>(experts.used);
  const std::vector<Activation>& inputs = model_.shared_activations_.rows;
  const std::int64_t inner = model_.matrix(experts.downs[0]).source.columns;
  const auto quantised = [this](std::int32_t down) { return is_quantised(model_.matrix(down).source.type); };
  const bool needs_bytes = std::any_of(experts.downs.begin(), experts.downs.end(), quantised);
  const bool needs_values = !std::all_of(experts.downs.begin(), experts.downs.end(), quantised);
  const auto [begin, end] = share(static_cast<std::int64_t>(count), member, model_.team_.members());
  for (std::int64_t slot = begin; slot < end; ++slot) {
    const float* values = reinterpret_cast<float*>(model_.expert_.data()) + slot * model_.widest_expert_;
    const Activation& out = inputs[static_cast<std::size_t>(slot)];
    if (!model_.kernels_.finite(values, inner)) fail(slot / experts.used);
    if (needs_values) std::memcpy(out.values, values, static_cast<std::size_t>(inner) * sizeof(float));
    if (needs_bytes) model_.kernels_.quantise(values, inner, out);
  }
  model_.team_.barrier();
  const SlotsByExpert by_expert(routes_, count, experts.count());
  const Scratch scratch = scratch_of(member);
  const Model::Buffer& destination = model_.buffer(operation.destination);
  Activation taken[kSweepRows];
  for (const Model::Piece& piece : operation.down_pieces[static_cast<std::size_t>(member)]) {
    const auto expert = static_cast<std::size_t>(piece.expert);
    const std::int32_t last = by_expert.first[expert + 1];
    for (std::int32_t first = by_expert.first[expert]; first < last; first += kSweepRows) {
      const std::int32_t rows = std::min(kSweepRows, last - first);
      const std::int32_t* slots = by_expert.slots.data() + first;
      for (std::int32_t r = 0; r < rows; ++r) taken[r] = inputs[static_cast<std::size_t>(slots[r])];
      multiply(piece.matrix, piece.data, taken, rows, scratch.gate, kUnitRows);
      for (std::int32_t r = 0; r < rows; ++r) {
        const float weight = route_weights_[static_cast<std::size_t>(slots[r])] * operation.scale;
        float* out = destination.row(slots[r] / experts.used) + piece.column;
        for (int c = 0; c < kUnitRows; ++c) out[c] += weight * scratch.gate[r * kUnitRows + c];
      }
    }
  }
}

}  // namespace ultrafast
