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

// What an operation reads: a buffer, through an RMS norm (a vector) where norm is not −1.
struct Input {
  std::int32_t source;
  std::int32_t norm;
  float epsilon;
};

struct AttentionOptions {
  std::int32_t layer;
  std::int32_t rotary;  // a rotary table, or −1 for none
  std::int32_t window;  // latest positions seen, or 0 for all
  std::int32_t
      query_norm;  // an RMS norm before rotation, or −1: of head_size values per head, of the whole width across
  std::int32_t key_norm;
  float epsilon;
  float softcap;  // scores become softcap × tanh(score / softcap); 0 for none
};

struct Experts {
  std::int32_t router;              // [experts][hidden]
  std::vector<std::int32_t> gates;  // [expert] matrices [inner][hidden]
  std::vector<std::int32_t> ups;    // [expert] matrices [inner][hidden]
  std::vector<std::int32_t> downs;  // [expert] matrices [hidden][inner]
  std::int32_t used;                // experts per row
  bool normalise;                   // their weights sum to one
  ActivationKind activation;
  std::int32_t count() const { return static_cast<std::int32_t>(gates.size()); }
};

class Model {
 public:
  Model(const KernelTable& kernels, int threads, std::vector<int> cpus, const Shape& shape);

  // Declarations; all throw std::invalid_argument. Pointers must stay valid until finish() returns.
  std::int32_t add_matrix(const MatrixSource& source);
  std::int32_t add_vector(std::vector<float> values);
  std::int32_t add_buffer(std::int32_t width);
  std::int32_t add_rotary(const RotarySource& source);

  // The program, in order. `norm` is a vector for an RMS norm of the source, or −1 for none; `scale` multiplies what an
  // operation adds to the residual stream.
  void embed(std::int32_t table, std::int32_t destination, float scale);
  // destination (+)= scale × (matrix · source + bias). biases: empty, or a vector or −1 per matrix.
  void linear(Input input, const std::vector<std::int32_t>& matrices, const std::vector<std::int32_t>& biases,
              std::int32_t destination, bool accumulate, float scale);
  // destination = activation(gate · source) × (up · source)
  void gated(Input input, std::int32_t gate, std::int32_t up, std::int32_t destination, ActivationKind activation);
  // destination (+)= scale × norm(source)
  void norm(Input input, std::int32_t destination, bool accumulate, float scale);
  // source holds [q | k | v], each part padded to 32 columns.
  void attention(const AttentionOptions& options, std::int32_t source, std::int32_t destination);
  // destination += scale × Σ weight × expert(source) over each row's best experts.
  void mixture(Input input, const Experts& experts, std::int32_t destination, float scale);
  // logits = scale × matrix · source, then cap × tanh(logits / cap) where softcap is not 0.
  void output(Input input, std::int32_t matrix, float scale, float softcap);
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

  enum class Kind { kEmbed, kLinear, kGated, kNorm, kAttention, kMixture, kOutput };

  // One unit: where it is and which 32 columns of the destination it gives.
  struct Piece {
    std::int32_t matrix;
    std::int64_t unit;
    std::int64_t column;
    std::int32_t partner = -1;  // the `up` matrix of a gated pair
    std::int32_t expert = 0;
    const std::uint8_t* data = nullptr;
    const std::uint8_t* second = nullptr;  // the `up` unit of a gated pair, or the lower part of one of kQ8_0Split
  };

  struct Operation {
    Kind kind;
    Input input = {-1, -1, 0.0f};
    std::int32_t destination = -1;
    bool accumulate = false;
    float scale = 1.0f;
    float softcap = 0.0f;
    ActivationKind activation = ActivationKind::kSilu;
    std::vector<std::int32_t> matrices = {};
    std::vector<float> bias = {};  // [columns of the destination], zero where a matrix has none; empty without any
    AttentionOptions attention = {};
    Experts experts = {};
    bool hands_on = false;   // a gated product that leaves its result quantised, for the next operation
    bool is_handed = false;  // a product whose input the last operation left quantised
    // Units in the order they are read; a mixture reads its router, the gates and ups, then the downs.
    std::vector<Piece> pieces = {};
    std::vector<Piece> router_pieces = {};
    std::vector<Piece> down_pieces = {};  // [unit][expert]
  };

  // Where a unit lies: at `offset` of a member's arena, its lower part at `lower_offset`.
  struct Place {
    int member = -1;
    std::int64_t offset = 0;
    std::int64_t lower_offset = 0;
    const std::uint8_t* data = nullptr;
    const std::uint8_t* lower = nullptr;
  };

  struct Matrix {
    MatrixSource source;
    std::vector<Place> units = {};
    std::vector<float> slack = {};  // [units × 32] where the upper parts alone bound a product, see bounds.h
    std::int64_t unit_count() const { return (source.rows + kUnitRows - 1) / kUnitRows; }
  };

  struct Buffer {
    std::int32_t width;
    Memory memory = {};
    float* row(std::int64_t index) const { return reinterpret_cast<float*>(memory.data()) + index * width; }
  };

  // Room for `rows` activations of up to `width` values, in quantised form only where not `with_values`.
  struct ActivationRoom {
    ActivationRoom() = default;
    ActivationRoom(std::int64_t rows, std::int64_t width, bool with_values = true);
    Memory memory;
    std::vector<Activation> rows;
  };

  const Matrix& matrix(std::int32_t index) const;
  const Buffer& buffer(std::int32_t index) const;
  const std::vector<float>& vector(std::int32_t index) const;
  void check_input(const Input& input, std::int64_t columns) const;
  std::int64_t shared_columns(const std::vector<std::int32_t>& matrices) const;
  void check_experts(const Experts& experts) const;
  std::vector<float> gather_bias(const std::vector<std::int32_t>& matrices,
                                 const std::vector<std::int32_t>& biases) const;
  void add_operation(Operation operation);
  std::vector<Piece> units_of(const std::vector<std::int32_t>& matrices) const;
  void list_pieces(Operation& operation);
  void hand_on();
  std::vector<std::int64_t> place_units();
  void fill_arenas();
  void make_rooms();
  template <class Visit>
  void each_piece(Operation& operation, int member, const Visit& visit);
  std::int64_t widest_input() const;

  const KernelTable& kernels_;
  Team team_;
  const Shape shape_;
  std::vector<RotaryTable> rotaries_;
  std::vector<Matrix> matrices_;
  std::vector<std::vector<float>> vectors_;
  std::vector<Buffer> buffers_;
  std::vector<Operation> program_;
  std::vector<Memory> arenas_;  // [thread]
  KvCache cache_;
  ActivationRoom shared_activations_;
  ActivationRoom handed_activations_;            // from a gated product to the next
  std::vector<ActivationRoom> own_activations_;  // [thread]
  std::vector<Memory> scratch_;                  // [thread]
  std::vector<Picker> pickers_;                  // [thread]
  Memory logits_;                                // [kPickRows][padded vocabulary]
  std::int32_t most_experts_ = 0;                // of any mixture: how many it has, how many a row uses, how wide
  std::int32_t most_used_ = 0;
  std::int64_t widest_expert_ = 0;
  Memory router_;                     // [max_rows][padded experts] logits, then probabilities
  Memory expert_;                     // [max_rows × used][padded inner]
  float left_average_ = 0.0f;         // part of the output layer's groups that bounds leave, of late
  std::int32_t unbounded_steps_ = 0;  // still to come, because that was too much
  bool finished_ = false;
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
};

// Up to this many rows every thread prepares all activations for itself: cheaper than a stage more.
constexpr std::int32_t kOwnRows = 4;
// Rows of logits in flight.
constexpr std::int32_t kPickRows = 16;
// Where bounds leave more than a part of the output layer, averaged over some steps, they cost more than they save: so
// many steps go without.
constexpr float kMostLeft = 0.25f;
constexpr float kLeftSteps = 16.0f;
constexpr std::int32_t kUnboundedSteps = 256;
// Rows of one task and of a sweep over the weights: their activations stay in the core's cache.
constexpr std::int32_t kSweepRows = 64;

}  // namespace ultrafast
