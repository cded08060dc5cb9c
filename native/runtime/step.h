// One pass of the program over a batch of rows. Built by Model::step, run by the members of the team.
//
// An operation is one stage of the team or several. What stages write is only touched inside their tasks: a member that
// comes late passes through stages that are over.
#pragma once

#include <atomic>
#include <vector>

#include "model.h"

namespace ultrafast {

class StepRun {
 public:
  // Checks the input and appends its rows to their sequences. Throws std::invalid_argument, and then nothing changed.
  StepRun(Model& model, const StepInput& input);
  void run(int member);
  StepOutput take_output();

 private:
  // An arg-max so far; −1 before there is any.
  struct Best {
    std::int32_t token = -1;
    float score = 0.0f;
  };

  // One member's part of finding the best tokens of rows [first, first + count) of those wanted, by logits or by scores
  // with noise. `scores` has room for a unit.
  struct Race {
    const Model::Operation& operation;
    const Activation* activations;  // [count]
    std::int32_t first;
    std::int32_t count;
    std::int64_t part;
    bool noisy;
    float* scores;
  };
  struct Row {
    Sequence* sequence;
    std::int32_t position;
    std::int32_t entry;              // where its key and value are kept
    std::int32_t base;               // committed entries when the step began
    bool on_line;                    // its ancestors lie at entries base, base + 1, ...
    std::vector<std::int32_t> path;  // off the line: entries of positions base, base + 1, ..., its own
  };

  // Rows that attend together: neighbours on one line, or a row off it.
  struct Tile {
    std::int32_t first;
    std::int32_t count;
  };

  // Views into one member's scratch memory.
  struct Scratch {
    float* attention;  // attention_scratch(kTileQueries, padded head)
    float* query;      // [kTileQueries][padded head]
    float* gate;       // [kSweepRows × kUnitRows]
    float* up;
    const std::uint16_t** key_blocks;
    const std::uint16_t** value_blocks;
    std::uint16_t* gathered;  // key block, value block, key block, ...
  };

  void check(const StepInput& input) const;
  void plan_rows(const StepInput& input);
  Scratch scratch_of(int member) const;

  void embed(const Model::Operation& operation, int member);
  // The activations of rows_[which[0..count)], where they are many: once, for all members. Rows that are not finite are
  // noted.
  void share_prepared(const Model::Operation& operation, const std::int32_t* which, std::int32_t count, int member);
  // A stage over them, after share_prepared: task(activations, i) for i in [0, tasks). Few rows each member prepares
  // for itself.
  template <class Task>
  void each_prepared(const Model::Operation& operation, const std::int32_t* which, std::int32_t count, int member,
                     std::int64_t tasks, const Task& task);
  template <class Task>
  void each_unit(const Model::Operation& operation, int member, const Task& task);
  void prepare_row(const Model::Operation& operation, std::int32_t row, const Activation& out);
  void fail(std::int64_t row);
  // out[row × stride + c] (+)= one unit's 32 columns, for `rows` activations.
  void multiply(std::int32_t matrix, const std::uint8_t* unit, const Activation* activations, std::int32_t rows,
                float* out, std::int64_t stride, Epilogue epilogue = Epilogue::kStore,
                const std::uint8_t* lower = nullptr);
  void linear(const Model::Operation& operation, int member);
  void settle(const Model::Operation& operation, const float* products, std::int32_t rows, std::int64_t column,
              float* out, std::int64_t stride);
  void gated(const Model::Operation& operation, int member);
  void gate_unit(const Model::Operation& operation, const Model::Piece& piece, const Activation* activations,
                 std::int32_t rows, const Scratch& scratch);
  void norm(const Model::Operation& operation, int member);
  void mixture(const Model::Operation& operation, int member);
  void route(const Model::Operation& operation, std::int64_t row);
  void group_slots(const Model::Operation& operation);
  template <class Sweep>
  void each_sweep(std::int32_t expert, const Sweep& sweep) const;
  void run_expert(const Model::Operation& operation, const Model::Piece& piece, const Activation* activations,
                  const Scratch& scratch);
  void prepare_slot(const Model::Operation& operation, std::int64_t slot);
  void join_expert(const Model::Operation& operation, const Model::Piece& piece, const Scratch& scratch);
  void attention(const Model::Operation& operation, int member);
  void norm_queries(const Model::Operation& operation, std::int64_t row);
  void store_keys(const Model::Operation& operation, std::int32_t row, std::int32_t kv_head);
  void plan_tiles();
  void attend(const Model::Operation& operation, const Tile& tile, std::int32_t first_head, std::int32_t head_count,
              const Scratch& scratch);
  void gather(const Row& row, std::int32_t layer, std::int32_t kv_head, const Scratch& scratch);
  void output(const Model::Operation& operation, int member);
  void finish_logits(const Model::Operation& operation, float* logits, std::int32_t count);
  void keep_hidden(std::int32_t first, std::int32_t count, const Activation* activations);
  bool finds_by_bounds(const Model::Operation& operation, std::int32_t first, std::int32_t count) const;
  void find_by_bounds(const Model::Operation& operation, std::int32_t first, std::int32_t count, int member);
  void note_groups_left(float part);
  Share columns_of(std::int64_t part) const;
  const float* score_group(const Race& race, std::int32_t i, std::int32_t group, float maximum);
  void find_floor(const Race& race);
  void find_best_left(const Race& race);
  void pick_rows(std::int32_t first, std::int32_t count, int member);
  void find_best(std::int32_t first, std::int32_t count, std::int64_t part);
  void pick_row(std::int32_t wanted, const float* logits, int member);
  // bounded: all rows were found by bounds.
  void merge_best(std::int32_t first, std::int32_t count, bool bounded);
  const Row& row_of(std::int32_t wanted) const {
    return rows_[static_cast<std::size_t>(wanted_[static_cast<std::size_t>(wanted)])];
  }
  bool wants_only_token(std::int32_t wanted) const;
  bool picks_greedily(std::int32_t wanted) const;
  bool picks_with_noise(std::int32_t wanted) const;
  NoiseKey noise_key(std::int32_t wanted) const;
  float maximum_of(std::int32_t i) const;

  Model& model_;
  const StepInput& input_;
  std::vector<Row> rows_;
  std::vector<Tile> tiles_;
  std::int32_t tile_heads_ = 1;             // query heads of one attention task, of those that share keys
  std::vector<std::int32_t> all_;           // 0, 1, ..., rows − 1
  std::vector<std::int32_t> wanted_;        // rows that want something
  std::vector<std::int32_t> logits_index_;  // per wanted row, where its logits go, or −1
  std::vector<std::int32_t> hidden_index_;
  std::vector<std::atomic<std::uint8_t>> failed_;  // per row
  std::vector<std::int32_t> routes_;               // [row][used] experts, ascending
  std::vector<float> route_weights_;               // [row][used]
  std::vector<std::int32_t> expert_first_;         // [experts + 1] into expert_slots_
  std::vector<std::int32_t> expert_slots_;         // slots (row × used + i) by their expert
  std::vector<Best> best_;                         // [part][kPickRows]: arg-max of a part of the columns
  std::vector<Best> noisy_best_;                   // alike, of scores with noise
  std::vector<float> floors_;                      // [part][kPickRows]: a score that the arg-max reaches
  std::vector<float> noisy_floors_;
  std::atomic<std::int64_t> groups_left_ = 0;  // by bounds, of those of the output layer
  bool may_bound_ = false;
  StepOutput output_;
};

template <class Task>
void StepRun::each_prepared(const Model::Operation& operation, const std::int32_t* which, std::int32_t count,
                            int member, std::int64_t tasks, const Task& task) {
  if (operation.is_handed || count > kOwnRows) {
    const Activation* shared =
        (operation.is_handed ? model_.handed_activations_ : model_.shared_activations_).rows.data();
    model_.team_.each(member, tasks, [&](std::int64_t i) { task(shared, i); });
    return;
  }
  const Activation* own = model_.own_activations_[static_cast<std::size_t>(member)].rows.data();
  const auto prepare = [&] {
    for (std::int32_t i = 0; i < count; ++i) prepare_row(operation, which[i], own[i]);
  };
  model_.team_.each(member, tasks, prepare, [&](std::int64_t i) { task(own, i); });
}

}  // namespace ultrafast
