// Attention over float16 keys and values: online softmax over fixed chunks of 128 absolute positions, merged left to
// right (exactness rule 6). Order follows position; where a key is stored never matters. Multiply-add is fused here.
#pragma once

#include "elementwise.h"
#include "math.h"

namespace ultrafast::ULTRAFAST_ISA {

constexpr int kKeysAtOnce = 16;
constexpr float kLowest = -3.4028234663852886e38f;

static void store_key_value(const float* key, const float* value, std::int32_t head_size, std::int32_t padded_head_size,
                            std::int32_t offset, std::uint16_t* key_block, std::uint16_t* value_block) {
  std::uint16_t rounded[kLanes];
  float padded[kLanes];
  for (int d = 0; d < padded_head_size; d += kLanes) {
    for (int i = 0; i < kLanes; ++i) padded[i] = d + i < head_size ? key[d + i] : 0.0f;
    store_half(rounded, load(padded));
    for (int i = 0; i < kLanes; ++i) key_block[(d + i) * kCacheBlock + offset] = rounded[i];
    for (int i = 0; i < kLanes; ++i) padded[i] = d + i < head_size ? value[d + i] : 0.0f;
    store_half(value_block + offset * padded_head_size + d, load(padded));
  }
}

// scores[h][0, 16) = scale × q·k of sixteen keys that lie side by side in a block, for heads that share them. Virtual
// lane l sums dimensions l, l + 16, ...; the fold is fold_sum's tree: (l, l + 8), (l, l + 4), then ((0, 2), (1, 3)).
template <int kHeads>
ULTRAFAST_INLINE void score_keys(const AttentionArguments& a, const std::uint16_t* keys, float* scores) {
  constexpr int kVectors = kKeysAtOnce / kLanes;
  F32 folded[8][kHeads][kVectors];
  for (int lane = 0; lane < 8; ++lane) {
    F32 sums[2][kHeads][kVectors];
    for (int half = 0; half < 2; ++half)
      for (int h = 0; h < kHeads; ++h)
        for (int v = 0; v < kVectors; ++v) sums[half][h][v] = zero();
    for (int start = 0; start < a.padded_head_size; start += 16) {
      for (int half = 0; half < 2; ++half) {
        const int d = start + lane + 8 * half;
        F32 key[kVectors];
        for (int v = 0; v < kVectors; ++v) key[v] = load_half(keys + d * kCacheBlock + v * kLanes);
        for (int h = 0; h < kHeads; ++h) {
          const F32 query = set1(a.query[h * a.padded_head_size + d]);
          for (int v = 0; v < kVectors; ++v) sums[half][h][v] = fused(query, key[v], sums[half][h][v]);
        }
      }
    }
    for (int h = 0; h < kHeads; ++h)
      for (int v = 0; v < kVectors; ++v) folded[lane][h][v] = add(sums[0][h][v], sums[1][h][v]);
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int v = 0; v < kVectors; ++v) {
      F32 t[4];
      for (int i = 0; i < 4; ++i) t[i] = add(folded[i][h][v], folded[i + 4][h][v]);
      const F32 dot = add(add(t[0], t[2]), add(t[1], t[3]));
      store(scores + h * kChunk + v * kLanes, mul(dot, set1(a.scale)));
    }
  }
}

// Scores of one chunk's n keys; those from n up to the next sixteen become the lowest float. maxima[h]: each head's
// largest.
template <int kHeads>
ULTRAFAST_INLINE void chunk_scores(const AttentionArguments& a, int first_block, int n, float* scores, float* maxima) {
  for (int p = 0; p < n; p += kKeysAtOnce) {
    score_keys<kHeads>(a, a.key_blocks[first_block + p / kCacheBlock] + p % kCacheBlock, scores + p);
  }
  for (int h = 0; h < kHeads; ++h) {
    float* row = scores + h * kChunk;
    for (int p = n; p % kKeysAtOnce != 0; ++p) row[p] = kLowest;
    F32 largest = set1(kLowest);
    for (int p = 0; p < n; p += kLanes) largest = max(largest, load(row + p));
    alignas(32) float lanes[kLanes];
    store(lanes, largest);
    maxima[h] = kLowest;
    for (float lane : lanes) maxima[h] = lane > maxima[h] ? lane : maxima[h];
  }
}

// scores become weights exp(score − maximum); returns their sum in 16 lanes by position mod 16.
static float chunk_weights(float* scores, float maximum, int n) {
  F32 sums[kVirtualVectors];
  for (F32& sum : sums) sum = zero();
  for (int p = 0; p < n; p += kLanes) {
    const F32 weight = exponential(sub(load(scores + p), set1(maximum)));  // unseen lanes: exp of very little is 0
    store(scores + p, weight);
    F32& sum = sums[p / kLanes % kVirtualVectors];
    sum = add(sum, weight);
  }
  alignas(64) float lanes[kVirtualLanes];
  for (int v = 0; v < kVirtualVectors; ++v) store(lanes + v * kLanes, sums[v]);
  return fold_sum(lanes);
}

// sums[h][d..] = Σ weight × value over the chunk, ascending position, for kVectors vectors of kHeads heads.
template <int kHeads, int kVectors>
ULTRAFAST_INLINE void value_tile(const AttentionArguments& a, const float* weights, int first_block, int n, int d,
                                 float* sums) {
  F32 acc[kHeads][kVectors];
  for (int h = 0; h < kHeads; ++h)
    for (int v = 0; v < kVectors; ++v) acc[h][v] = zero();
  for (int start = 0; start < n; start += kCacheBlock) {
    const std::uint16_t* value = a.value_blocks[first_block + start / kCacheBlock] + d;
    const int end = n - start < kCacheBlock ? n : start + kCacheBlock;
    for (int p = start; p < end; ++p, value += a.padded_head_size) {
      F32 weight[kHeads];
      for (int h = 0; h < kHeads; ++h) weight[h] = set1(weights[h * kChunk + p]);
      for (int v = 0; v < kVectors; ++v) {
        const F32 part = load_half(value + v * kLanes);
        for (int h = 0; h < kHeads; ++h) acc[h][v] = fused(weight[h], part, acc[h][v]);
      }
    }
  }
  for (int h = 0; h < kHeads; ++h)
    for (int v = 0; v < kVectors; ++v) store(sums + h * a.padded_head_size + d + v * kLanes, acc[h][v]);
}

// One head leaves registers for a wide tile, several for a narrower one.
template <int kHeads>
ULTRAFAST_INLINE void chunk_values(const AttentionArguments& a, const float* weights, int first_block, int n,
                                   float* sums) {
  constexpr int kWide = kHeads == 1 ? 8 : 4;
  int d = 0;
  for (; d + kWide * kLanes <= a.padded_head_size; d += kWide * kLanes) {
    value_tile<kHeads, kWide>(a, weights, first_block, n, d, sums);
  }
  for (; d < a.padded_head_size; d += 2 * kLanes) value_tile<kHeads, 2>(a, weights, first_block, n, d, sums);
}

struct Running {
  float maximum;
  float weight;
};

// Merges one chunk's (maximum, weight, sums) into what earlier positions gave.
static void merge_chunk(Running& running, float maximum, float weight, const float* sums, float* output, int size) {
  const bool rises = maximum > running.maximum;
  const float old_factor = rises ? scalar_exponential(running.maximum - maximum) : 1.0f;
  const float new_factor = rises ? 1.0f : scalar_exponential(maximum - running.maximum);
  running.weight = running.weight * old_factor + weight * new_factor;
  running.maximum = rises ? maximum : running.maximum;
  for (int d = 0; d < size; ++d) output[d] = output[d] * old_factor + sums[d] * new_factor;
}

template <int kHeads>
static void attention_heads(const AttentionArguments& a) {
  float* weights = a.scratch;
  float* sums = a.scratch + kHeads * kChunk;
  Running running[kHeads];
  for (int start = 0; start < a.positions; start += kChunk) {
    const int n = a.positions - start < kChunk ? a.positions - start : kChunk;
    const int first_block = start / kCacheBlock;
    float maxima[kHeads];
    float totals[kHeads];
    chunk_scores<kHeads>(a, first_block, n, weights, maxima);
    for (int h = 0; h < kHeads; ++h) {
      totals[h] = chunk_weights(weights + h * kChunk, maxima[h], n);
    }
    chunk_values<kHeads>(a, weights, first_block, n, sums);
    for (int h = 0; h < kHeads; ++h) {
      float* output = a.output + h * a.head_size;
      const float* chunk = sums + h * a.padded_head_size;
      if (start == 0) {
        running[h] = {maxima[h], totals[h]};
        for (int d = 0; d < a.head_size; ++d) output[d] = chunk[d];
      } else {
        merge_chunk(running[h], maxima[h], totals[h], chunk, output, a.head_size);
      }
    }
  }
  for (int h = 0; h < kHeads; ++h)
    for (int d = 0; d < a.head_size; ++d) a.output[h * a.head_size + d] /= running[h].weight;
}

static void attention(const AttentionArguments& a) {
  AttentionArguments part = a;
  while (part.head_count > 0) {
    const int heads = part.head_count >= 3 ? 3 : 1;
    if (heads == 3) {
      attention_heads<3>(part);
    } else {
      attention_heads<1>(part);
    }
    part.head_count -= heads;
    part.query += heads * part.padded_head_size;
    part.output += heads * part.head_size;
  }
}

}  // namespace ultrafast::ULTRAFAST_ISA
