// The border between the runtime and the kernels: plain structs and one table of functions per instruction set.
//
// Each set is the same source (kernels.cpp) over its own vector header, in its own namespace, and all of them
// give the same bits. Kernel units use no standard-library inlines: a linker may keep the copy of the wrong set.
#pragma once

#include <cstdint>

namespace ultrafast {

constexpr int kBlock = 32;       // columns per quantised block, of weights and of activations
constexpr int kGroupRows = 16;   // output rows interleaved in a weight group: one row a vector lane
constexpr int kUnitRows = 32;    // output rows one thread owns at a time
constexpr int kCacheBlock = 32;  // tokens per KV block
constexpr int kChunk = 128;      // absolute positions per step of the online softmax

enum class WeightType : std::int32_t {
  kF32,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
  kMXFP4,
  kNVFP4,
  kIQ1_S,
  kIQ1_M,
  kIQ2_XXS,
  kIQ2_XS,
  kIQ2_S,
  kIQ3_XXS,
  kIQ3_S,
  kTQ1_0,
  kTQ2_0,
  kQ1_0,
  kQ2_0,
  kQ8_0Split,  // never stored: how an output layer of kQ8_0 is laid out
};

// How a quantised type lies in a weight group of 16 rows. Codes of a block of 32 columns are split into planes:
//   low:  8, 4, 2 or 1 bits a code. 8: eight quads [16 rows][4 columns]. 4: quads 0..3, with quad j + 4 in the high
//   nibbles.
//         2: two quads' worth, quads 0..3 and 4..7, each at bits 2j.. 1: one quad's worth, quad j at bit j.
//   high: 0, 1 or 2 further bits. 1: one quad's worth, quad j at bit j. 2: two quads' worth, as low.
// Then the block's scales: `halves` × [16] float16, `bytes` × [16]. Types of longer blocks put several of these behind
// a header of `header_halves` × [16] float16.
//
// Codebooks (IQ1, IQ2, IQ3) and ternary digits are looked up while weights are laid out, not in each step. That takes
// memory, in bits a weight, file → here: IQ1_S 1.56 → 2.31, IQ1_M 1.75 → 3.56, IQ2_XXS 2.06 → 3.31, IQ2_XS 2.31 and
// IQ2_S 2.56 → 3.56, IQ3_XXS 3.06 and IQ3_S 3.44 → 4.31, TQ1_0 1.69 → 2.06. Others keep theirs to an eighth of a bit.
struct BlockFormat {
  int blocks;  // per header
  int header_halves;
  int low_bits;
  int high_bits;
  int halves;
  int bytes;

  constexpr int low_bytes() const { return kGroupRows * kBlock * low_bits / 8; }
  constexpr int quant_bytes() const { return low_bytes() + kGroupRows * kBlock * high_bits / 8; }
  constexpr int block_bytes() const { return quant_bytes() + kGroupRows * (2 * halves + bytes); }
  constexpr int header_bytes() const { return 2 * kGroupRows * header_halves; }
};

// Internal linkage: each unit keeps its own copy.
static constexpr BlockFormat block_format(WeightType type) {
  switch (type) {
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
      return {};
    case WeightType::kQ8_0:  // scale
      return {.blocks = 1, .header_halves = 0, .low_bits = 8, .high_bits = 0, .halves = 1, .bytes = 0};
    case WeightType::kQ4_0:  // scale
    case WeightType::kIQ4_NL:
      return {.blocks = 1, .header_halves = 0, .low_bits = 4, .high_bits = 0, .halves = 1, .bytes = 0};
    case WeightType::kQ4_1:  // scale, minimum
      return {.blocks = 1, .header_halves = 0, .low_bits = 4, .high_bits = 0, .halves = 2, .bytes = 0};
    case WeightType::kQ5_0:
    case WeightType::kQ8_0Split:  // its upper part
      return {.blocks = 1, .header_halves = 0, .low_bits = 4, .high_bits = 1, .halves = 1, .bytes = 0};
    case WeightType::kQ5_1:
      return {.blocks = 1, .header_halves = 0, .low_bits = 4, .high_bits = 1, .halves = 2, .bytes = 0};
    case WeightType::kQ2_K:  // per half block: scale in the low nibble, minimum in the high one
      return {.blocks = 8, .header_halves = 2, .low_bits = 2, .high_bits = 0, .halves = 0, .bytes = 2};
    case WeightType::kQ3_K:  // per half block: signed scale
      return {.blocks = 8, .header_halves = 1, .low_bits = 2, .high_bits = 1, .halves = 0, .bytes = 2};
    case WeightType::kQ4_K:  // scale, minimum
      return {.blocks = 8, .header_halves = 2, .low_bits = 4, .high_bits = 0, .halves = 0, .bytes = 2};
    case WeightType::kQ5_K:
      return {.blocks = 8, .header_halves = 2, .low_bits = 4, .high_bits = 1, .halves = 0, .bytes = 2};
    case WeightType::kQ6_K:  // per half block: signed scale
      return {.blocks = 8, .header_halves = 1, .low_bits = 4, .high_bits = 2, .halves = 0, .bytes = 2};
    case WeightType::kIQ4_XS:  // signed scale
    case WeightType::kIQ3_XXS:
    case WeightType::kIQ3_S:
      return {.blocks = 8, .header_halves = 1, .low_bits = 4, .high_bits = 0, .halves = 0, .bytes = 1};
    case WeightType::kIQ2_XXS:
      return {.blocks = 8, .header_halves = 1, .low_bits = 2, .high_bits = 1, .halves = 0, .bytes = 1};
    case WeightType::kIQ2_XS:  // per half block: scale
    case WeightType::kIQ2_S:
    case WeightType::kIQ1_M:
      return {.blocks = 8, .header_halves = 1, .low_bits = 2, .high_bits = 1, .halves = 0, .bytes = 2};
    case WeightType::kIQ1_S:  // scale, with the sign of the shift
      return {.blocks = 8, .header_halves = 1, .low_bits = 2, .high_bits = 0, .halves = 0, .bytes = 1};
    case WeightType::kTQ1_0:
    case WeightType::kTQ2_0:
      return {.blocks = 8, .header_halves = 1, .low_bits = 2, .high_bits = 0, .halves = 0, .bytes = 0};
    case WeightType::kQ2_0:
      return {.blocks = 2, .header_halves = 1, .low_bits = 2, .high_bits = 0, .halves = 0, .bytes = 0};
    case WeightType::kQ1_0:
      return {.blocks = 4, .header_halves = 1, .low_bits = 1, .high_bits = 0, .halves = 0, .bytes = 0};
    case WeightType::kMXFP4:  // exponent
      return {.blocks = 1, .header_halves = 0, .low_bits = 4, .high_bits = 0, .halves = 0, .bytes = 1};
    case WeightType::kNVFP4:  // per half block: scale, UE4M3
      return {.blocks = 2, .header_halves = 0, .low_bits = 4, .high_bits = 0, .halves = 0, .bytes = 2};
  }
  return {};
}

static constexpr bool is_quantised(WeightType type) { return block_format(type).blocks > 0; }

// Columns of one block as the file stores it: rows are whole blocks.
static constexpr std::int64_t block_columns(WeightType type) {
  return is_quantised(type) ? kBlock * block_format(type).blocks : 1;
}

static constexpr std::int64_t group_bytes(WeightType type, std::int64_t columns) {
  if (!is_quantised(type)) return (type == WeightType::kF32 ? 4 : 2) * kGroupRows * columns;
  const BlockFormat format = block_format(type);
  return (format.header_bytes() + format.blocks * format.block_bytes()) * (columns / block_columns(type));
}

// A unit of kQ8_0Split lies in two places, so that either part of a matrix is one stream. Codes are raised by 128; the
// upper part holds their upper five bits and the scales, laid out as kQ5_0, and bounds a product (bounds.h); the lower
// part holds the other three bits.
static constexpr BlockFormat kSplitUpper = block_format(WeightType::kQ5_0);
static constexpr BlockFormat kSplitLower = {
    .blocks = 1, .header_halves = 0, .low_bits = 2, .high_bits = 1, .halves = 0, .bytes = 0};
static constexpr int kSplitBits = 3;  // of the lower part
static constexpr std::int64_t lower_group_bytes(std::int64_t columns) {
  return columns / kBlock * kSplitLower.block_bytes();
}

// What a code means where it is an index. All but those of IQ4 are raised by code_offset, so that they are unsigned.
alignas(16) static constexpr std::int8_t kIQ4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                           1,    13,   25,  38,  53,  69,  89,  113};
alignas(16) static constexpr std::int8_t kFP4Values[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
// Place in the codebook's vector, then the sign of the shift: 8 × (place − 1) ± 1.
alignas(16) static constexpr std::int8_t kIQ1Values[16] = {2, 10, 18, 9, 0, 8, 16, 9};
// Magnitude 8, 25 or 43, then its sign.
alignas(16) static constexpr std::int8_t kIQ2Values[16] = {51, 68, 86, 43, 35, 18, 0, 43};
// Magnitude 4, 12 .. 52 or 62, then its sign.
alignas(16) static constexpr std::int8_t kIQ3XXSValues[16] = {66, 74, 82, 90, 98, 106, 114, 124,
                                                              58, 50, 42, 34, 26, 18,  10,  0};
// Magnitude 1, 3 .. 15, then its sign.
alignas(16) static constexpr std::int8_t kIQ3SValues[16] = {16, 18, 20, 22, 24, 26, 28, 30, 14, 12, 10, 8, 6, 4, 2, 0};

// One row of activations, in the forms a matrix may want. n is a multiple of kBlock where it is quantised.
struct Activation {
  float* values;            // [n] float32, for float weights; null where no consumer needs it
  std::int8_t* bytes;       // [n] int8, for quantised weights; null where no consumer needs it
  float* scales;            // [n / 32] amax / 127
  std::int32_t* sums;       // [n / 32] sum of the block's int8 values
  std::int32_t* half_sums;  // [n / 16] sums of its halves
  float* scaled_sums;       // [n / 32] scale × sum

  // The part from column `begin`, a multiple of kBlock, in quantised form only.
  Activation quantised_from(std::int64_t begin) const {
    const std::int64_t block = begin / kBlock;
    return {nullptr, bytes + begin, scales + block, sums + block, half_sums + 2 * block, scaled_sums + block};
  }
};

enum class ActivationKind : std::int32_t { kSilu, kGelu };  // gelu in its tanh form

enum class Epilogue : std::int32_t { kStore, kAdd };

// output[row * output_stride + r] (= or +=) the dot of one 32-row unit with each activation row.
struct LinearArguments {
  WeightType type;
  const std::uint8_t* unit;   // two groups of 16 rows, as layout.h describes
  const std::uint8_t* lower;  // the lower part of kQ8_0Split
  std::int64_t columns;
  const Activation* activations;  // [rows]
  std::int32_t rows;
  float* output;
  std::int64_t output_stride;
  Epilogue epilogue;
};

constexpr int kTileQueries = 32;  // most queries (rows × heads) of one attention call
constexpr int kKeyTile = 16;      // keys per tile of scores; a chunk's scores are padded to whole tiles
constexpr int kValueTile = 16;    // dimensions per tile of values

// Attention of `head_count` query heads that share one key head, for `rows` rows at consecutive positions of one line.
// Keys: blocks of [padded head size][32 tokens] float16; values: blocks of [32 tokens][padded head size] float16.
struct AttentionArguments {
  const float* query;  // [rows][head_count][padded_head_size], rotated; rows × head_count <= kTileQueries
  std::int32_t rows;
  std::int32_t head_count;
  std::int32_t padded_head_size;  // a multiple of 16; the padding is zero
  std::int32_t head_size;
  const std::uint16_t* const* key_blocks;    // by position / 32
  const std::uint16_t* const* value_blocks;  // by position / 32
  std::int32_t first_position;               // of the first row; a row sees keys up to its own position
  std::int32_t window;                       // and only so many of the latest; 0: all
  float scale;
  float softcap;   // scores become softcap × tanh(score / softcap); 0: none
  float* scratch;  // attention_scratch(queries, padded head size) floats
  float* output;   // row r's heads at output + r × output_stride, [head_count][head_size]
  std::int64_t output_stride;
};

static constexpr std::int64_t attention_scratch(std::int64_t queries, std::int64_t padded_head_size) {
  return queries * (kChunk + padded_head_size) + kKeyTile * padded_head_size + kChunk * kValueTile;
}

// What makes a Gumbel value: g is a pure function of these and the token.
struct NoiseKey {
  std::uint64_t seed;
  std::uint32_t choice;
  std::uint32_t output_index;
};

struct KernelTable {
  const char* name;
  void (*linear)(const LinearArguments&);
  // linear of kQ8_0Split by the upper parts alone: off by what bounds.h says.
  void (*linear_upper)(const LinearArguments&);
  // linear of one group of 16 rows of kQ8_0Split, exact.
  void (*linear_group)(const LinearArguments&, int group);
  // values[i] = (x[i] × (1 / sqrt(mean(x²) + epsilon))) × weight[i]; false where a value is not finite.
  bool (*rms_norm)(const float* x, const float* weight, float epsilon, std::int64_t n, float* values);
  bool (*finite)(const float* x, std::int64_t n);
  // int8 per 32: scale amax / 127, nearest even; blocks of tiny amax become zero. Fills all of `out` but values.
  void (*quantise)(const float* x, std::int64_t n, const Activation& out);
  // gate[i] = activation(gate[i]) × up[i]; n is a multiple of 8.
  void (*activate_multiply)(ActivationKind kind, float* gate, const float* up, std::int64_t n);
  // x[i] = cap × tanh(x[i] / cap); n is a multiple of 8.
  void (*soft_cap)(float* x, float cap, std::int64_t n);
  // One row of a unit as float32.
  void (*dequantise_row)(WeightType type, const std::uint8_t* unit, const std::uint8_t* lower, std::int32_t row,
                         std::int64_t columns, float* out);
  // Rotates pairs (i, i + rotary / 2) of one head in place; cos and sin are [rotary / 2].
  void (*rotate)(float* head, const float* cosines, const float* sines, std::int32_t rotary);
  // Rounds one head's key and value to float16 into slot `offset` of their blocks.
  void (*store_key_value)(const float* key, const float* value, std::int32_t head_size, std::int32_t padded_head_size,
                          std::int32_t offset, std::uint16_t* key_block, std::uint16_t* value_block);
  void (*attention)(const AttentionArguments&);
  // Arg-max of x[begin, end), the lowest index among equals.
  std::int32_t (*arg_max)(const float* x, std::int32_t begin, std::int32_t end);
  // The first index in [begin, end) with x[i] + slack[i] × norm >= threshold, or end.
  std::int32_t (*next_reaching)(const float* x, const float* slack, float norm, float threshold, std::int32_t begin,
                                std::int32_t end);
  // out[i] = exp(x[i] − shift); returns the sum in 16 lanes by index mod 16, folded.
  float (*exp_sum)(const float* x, float shift, std::int32_t n, float* out);
  float (*log)(float x);
  // noise[i] for the tokens ids[i], or for tokens 0..n−1 where ids is null. noise has room for n rounded up to 32.
  void (*gumbel)(const NoiseKey& key, const std::int32_t* ids, std::int32_t n, float* noise);
  // For tokens [begin, end), begin a multiple of 32: x[i] = ((x[i] + slack[i] × norm) − maximum) / temperature + noise,
  // never less than what the exact logit would give. x and slack have room for end rounded up to 32.
  void (*noisy_bounds)(const NoiseKey& key, const float* slack, float norm, float maximum, float temperature,
                       std::int32_t begin, std::int32_t end, float* x);
  void (*half_to_float)(const std::uint16_t* x, std::int64_t n, float* out);
};

namespace portable {
extern const KernelTable kTable;
}
#if defined(__x86_64__)
namespace avx2 {
extern const KernelTable kTable;
}
#endif

}  // namespace ultrafast
