// One model: its weights laid out per thread, its KV cache, and the flat program of operations that a step runs.
//
// Built in three moves: declare matrices and vectors (pointers into the model file), declare the program, finish().
// finish() re-lays every matrix into one contiguous arena per thread, in the order a step reads it, written first by
// the thread that will read it; the file may be closed afterwards.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kv_cache.h"
#include "layout.h"
#include "memory.h"
#include "pick.h"
#include "rotary.h"
#include "team.h"

namespace ultrafast {

struct Shape {
  std::int32_t vocabulary_size;
  std::int32_t hidden_size;
  std::int32_t layer_count;
  std::int32_t head_count;
  std::int32_t kv_head_count;
  std::int32_t head_size;
  std::int32_t rotary_size;
  double rotary_base;
  float attention_scale;
  std::int32_t context;
  std::int32_t block_count;
  std::int32_t max_sequences;
  std::int32_t max_rows;
};

enum Want : std::uint8_t { kWantToken = 1, kWantTop = 2, kWantLogits = 4, kWantHidden = 8 };

// Rows of a step; all spans have the same length.
struct StepInput {
  std::span<const std::int32_t> tokens;
  std::span<const std::int32_t> positions;
  std::span<const std::int32_t> sequences;
  std::span<const std::int32_t> parents;  // −1: the sequence's committed history
  std::span<const std::uint8_t> want;
  const std::uint32_t* allowed_mask;  // [wanted rows][ceil(vocabulary / 32)] or null
};

struct StepOutput {
  std::vector<std::int32_t> rows;              // those with want != 0, ascending
  std::vector<PickResult> picks;               // one per wanted row
  std::vector<float> logits;                   // [rows wanting logits][vocabulary]
  std::vector<float> hidden;                   // [rows wanting the hidden state][hidden size], after the final norm
  std::vector<std::int32_t> failed_sequences;  // met a value that is not finite
};

class Model {
 public:
  Model(const KernelTable& kernels, int threads, std::vector<int> cpus, const Shape& shape,
        std::vector<float> rotary_factors);

  // Declarations; all throw std::invalid_argument. Pointers must stay valid until finish() returns.
  std::int32_t add_matrix(const MatrixSource& source);
  std::int32_t add_vector(std::vector<float> values);
  std::int32_t add_buffer(std::int32_t width);

  // The program, in order. `norm` is a vector for an RMS norm of the source, or −1 for none.
  void embed(std::int32_t table, std::int32_t destination);
  void linear(std::int32_t source, std::int32_t norm, float epsilon, const std::vector<std::int32_t>& matrices,
              std::int32_t destination, bool accumulate);
  // destination = silu(gate · source) × (up · source)
  void gated(std::int32_t source, std::int32_t norm, float epsilon, std::int32_t gate, std::int32_t up,
             std::int32_t destination);
  // source holds [q | k | v], each part padded to 32 columns.
  void attention(std::int32_t layer, std::int32_t source, std::int32_t destination);
  void output(std::int32_t source, std::int32_t norm, float epsilon, std::int32_t matrix);
  void finish();

  StepOutput step(const StepInput& input);

  KvCache& cache() { return cache_; }
  Team& team() { return team_; }
  const Shape& shape() const { return shape_; }
  std::int64_t weight_bytes() const;
  // (address, bytes) of every arena of weights.
  std::vector<std::pair<std::uintptr_t, std::size_t>> regions() const;

 private:
  friend class StepRun;

  enum class Kind { kEmbed, kLinear, kGated, kAttention, kOutput };

  // One unit a thread owns: where it is and which 32 columns of the destination it gives.
  struct Piece {
    std::int32_t matrix;
    std::int64_t unit;
    std::int64_t column;
    const std::uint8_t* data = nullptr;
    const std::uint8_t* second = nullptr;  // the `up` unit of a gated pair
  };

  struct Operation {
    Kind kind;
    std::int32_t source = -1;
    std::int32_t destination = -1;
    std::int32_t norm = -1;
    float epsilon = 0.0f;
    std::int32_t layer = -1;
    bool accumulate = false;
    std::vector<std::int32_t> matrices;
    std::vector<std::vector<Piece>> pieces = {};  // [thread]
  };

  struct Matrix {
    MatrixSource source;
    std::vector<const std::uint8_t*> units = {};
    std::int64_t unit_count() const { return (source.rows + kUnitRows - 1) / kUnitRows; }
  };

  struct Buffer {
    std::int32_t width;
    Memory memory = {};
    float* row(std::int64_t index) const { return reinterpret_cast<float*>(memory.data()) + index * width; }
  };

  // Room for `rows` activations of up to `width` values.
  struct ActivationRoom {
    ActivationRoom() = default;
    ActivationRoom(std::int64_t rows, std::int64_t width);
    Memory memory;
    std::vector<Activation> rows;
  };

  const Matrix& matrix(std::int32_t index) const;
  const Buffer& buffer(std::int32_t index) const;
  void check_input(std::int32_t source, std::int32_t norm, const std::vector<std::int32_t>& matrices) const;
  void add_operation(Operation operation);
  void share_out(Operation& operation);
  void fill_arena(int member);
  std::int64_t widest_input() const;

  const KernelTable& kernels_;
  Team team_;
  const Shape shape_;
  const RotaryTable rotary_;
  std::vector<Matrix> matrices_;
  std::vector<std::vector<float>> vectors_;
  std::vector<Buffer> buffers_;
  std::vector<Operation> program_;
  std::vector<Memory> arenas_;  // [thread]
  KvCache cache_;
  ActivationRoom shared_activations_;
  std::vector<ActivationRoom> own_activations_;  // [thread]
  std::vector<Memory> scratch_;                  // [thread]
  std::vector<Picker> pickers_;                  // [thread]
  Memory logits_;                                // [kPickRows][padded vocabulary]
  bool finished_ = false;
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
};

// Up to this many rows every thread prepares all activations for itself: cheaper than meeting at a barrier.
constexpr std::int32_t kOwnRows = 4;
// Rows of logits in flight.
constexpr std::int32_t kPickRows = 16;
// Rows per sweep over the weights, so that their activations stay in the core's cache.
constexpr std::int32_t kSweepRows = 64;

}  // namespace ultrafast
