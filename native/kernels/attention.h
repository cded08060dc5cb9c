// Attention over float16 keys and values: online softmax over fixed chunks of 128 absolute positions, merged left to
// right (exactness rule 6). Order follows position; where a key is stored never matters. Multiply-add is fused here.
//
// A call takes a tile of queries: a few neighbouring rows times the heads that share one key head. Each query sees its
// own keys only, and its sums run over them in ascending position whatever else is in the tile.
#pragma once

#include "elementwise.h"
#include "math.h"

namespace ultrafast::ULTRAFAST_ISA {

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

ULTRAFAST_INLINE F32 load_any(const std::uint16_t* p) { return load_half(p); }
ULTRAFAST_INLINE F32 load_any(const float* p) { return load(p); }

// What one query sees of a chunk: positions [begin, end) of it.
struct Seen {
  std::int32_t begin;
  std::int32_t end;
  std::int32_t tile_begin() const { return begin / kKeyTile * kKeyTile; }
  std::int32_t tile_end() const { return (end + kKeyTile - 1) / kKeyTile * kKeyTile; }
};

// A query's state between chunks.
struct Running {
  float maximum;
  float weight;
};

// Views into the caller's scratch; q counts queries of the tile.
struct TileScratch {
  float* weights;  // [q][kChunk] scores, then weights
  float* sums;     // [q][padded_head_size] values of one chunk
  float* keys;     // [padded_head_size][kKeyTile] one tile of keys as float32
  float* values;   // [kChunk][kValueTile] one tile of values as float32
};

// sums[q][v] += factors[q × stride] × vectors[v], fused. The fewer of both are held in registers beside the sums: with
// one more a sum would go through memory at every step, and that is slow.
template <int kQueries, int kVectors, class Element>
ULTRAFAST_INLINE void multiply_add(const float* factors, std::int64_t stride, const Element* vectors,
                                   F32 (&sums)[kQueries][kVectors]) {
  if constexpr (kVectors > kQueries) {
    F32 factor[kQueries];
    for (int q = 0; q < kQueries; ++q) factor[q] = set1(factors[q * stride]);
    for (int v = 0; v < kVectors; ++v) {
      const F32 vector = load_any(vectors + v * kLanes);
      for (int q = 0; q < kQueries; ++q) sums[q][v] = fused(factor[q], vector, sums[q][v]);
    }
  } else {
    F32 vector[kVectors];
    for (int v = 0; v < kVectors; ++v) vector[v] = load_any(vectors + v * kLanes);
    for (int q = 0; q < kQueries; ++q) {
      const F32 factor = set1(factors[q * stride]);
      for (int v = 0; v < kVectors; ++v) sums[q][v] = fused(factor, vector[v], sums[q][v]);
    }
  }
}

// scores[q][0, kVectors × 8) = q·k of keys side by side; dimensions ascending, one chain.
template <int kQueries, int kVectors, class Key>
ULTRAFAST_INLINE void score_tile(const AttentionArguments& a, const float* query, const Key* keys, int stride,
                                 float* scores) {
  F32 sums[kQueries][kVectors];
  for (int q = 0; q < kQueries; ++q)
    for (int v = 0; v < kVectors; ++v) sums[q][v] = zero();
  for (int d = 0; d < a.padded_head_size; ++d, keys += stride) {
    multiply_add<kQueries, kVectors>(query + d, a.padded_head_size, keys, sums);
  }
  for (int q = 0; q < kQueries; ++q)
    for (int v = 0; v < kVectors; ++v) store(scores + q * kChunk + v * kLanes, sums[q][v]);
}

// sums[q][0, kVectors × 8) += Σ weight × value over positions [begin, end), ascending. value: position `begin`'s.
template <int kQueries, int kVectors, class Value>
ULTRAFAST_INLINE void value_tile(const float* weights, const Value* value, std::int64_t stride, int begin, int end,
                                 float* sums, int sums_stride) {
  F32 acc[kQueries][kVectors];
  for (int q = 0; q < kQueries; ++q)
    for (int v = 0; v < kVectors; ++v) acc[q][v] = load(sums + q * sums_stride + v * kLanes);
  for (int p = begin; p < end; ++p, value += stride) {
    multiply_add<kQueries, kVectors>(weights + p, kChunk, value, acc);
  }
  for (int q = 0; q < kQueries; ++q)
    for (int v = 0; v < kVectors; ++v) store(sums + q * sums_stride + v * kLanes, acc[q][v]);
}

// Calls body.run<n>(first) for groups of n queries that cover [0, count): sixes, and what is left as 4, 3, 2 and 1.
template <class Body>
ULTRAFAST_INLINE void in_groups(int count, const Body& body) {
  int q = 0;
  for (; q + 6 <= count; q += 6) body.template run<6>(q);
  if (count - q == 4) return body.template run<4>(q);
  if (count - q >= 3) {
    body.template run<3>(q);
    q += 3;
  }
  if (count - q == 2) return body.template run<2>(q);
  if (count - q == 1) body.template run<1>(q);
}

// One chunk for queries [first, first + count) of the tile.
struct ChunkWork {
  const AttentionArguments& a;
  const TileScratch& scratch;
  const Seen* seen;  // [q]
  int first_block;
  int first;
  int count;

  const float* query(int q) const { return a.query + (first + q) * a.padded_head_size; }
  float* weights(int q) const { return scratch.weights + (first + q) * kChunk; }
  float* sums(int q) const { return scratch.sums + (first + q) * a.padded_head_size; }
};

struct DirectScores {
  const ChunkWork& work;
  int begin;
  int end;
  template <int kQueries>
  ULTRAFAST_METHOD void run(int q) const {
    const AttentionArguments& a = work.a;
    int p = begin;
    while (p < end) {
      const std::uint16_t* keys = a.key_blocks[work.first_block + p / kCacheBlock] + p % kCacheBlock;
      if (kQueries <= 3 && p % kCacheBlock == 0 && p + kCacheBlock <= end) {
        score_tile<kQueries, kQueries <= 3 ? kCacheBlock / kLanes : kKeyTile / kLanes>(
            a, work.query(q), keys, kCacheBlock, work.weights(q) + p);
        p += kCacheBlock;
      } else {
        score_tile<kQueries, kKeyTile / kLanes>(a, work.query(q), keys, kCacheBlock, work.weights(q) + p);
        p += kKeyTile;
      }
    }
  }
};

struct StagedScores {
  const ChunkWork& work;
  int position;
  template <int kQueries>
  ULTRAFAST_METHOD void run(int q) const {
    score_tile<kQueries, kKeyTile / kLanes>(work.a, work.query(q), static_cast<const float*>(work.scratch.keys),
                                            kKeyTile, work.weights(q) + position);
  }
};

// Values of positions that all queries of a group see go together; each query's earlier and later ones go alone.
template <int kQueries, class Loop>
ULTRAFAST_INLINE void split_by_sight(const Seen* seen, const Loop& loop) {
  int begin = seen[0].begin;
  int end = seen[0].end;
  for (int q = 1; q < kQueries; ++q) {
    begin = seen[q].begin > begin ? seen[q].begin : begin;
    end = seen[q].end < end ? seen[q].end : end;
  }
  if (begin > end) end = begin;
  for (int q = 0; q < kQueries; ++q) {
    const int until = seen[q].end < begin ? seen[q].end : begin;
    if (seen[q].begin < until) loop.template run<1>(q, seen[q].begin, until);
  }
  if (begin < end) loop.template run<kQueries>(0, begin, end);
  for (int q = 0; q < kQueries; ++q) {
    const int from = seen[q].begin > end ? seen[q].begin : end;
    if (from < seen[q].end) loop.template run<1>(q, from, seen[q].end);
  }
}

struct DirectValues {
  const ChunkWork& work;

  template <int kVectors>
  struct Loop {
    const ChunkWork& work;
    int first;
    int d;
    template <int kQueries>
    ULTRAFAST_METHOD void run(int q, int begin, int end) const {
      const AttentionArguments& a = work.a;
      for (int p = begin; p < end;) {
        const int block_end = (p / kCacheBlock + 1) * kCacheBlock;
        const int until = end < block_end ? end : block_end;
        const std::uint16_t* value = a.value_blocks[work.first_block + p / kCacheBlock] +
                                     static_cast<std::int64_t>(p % kCacheBlock) * a.padded_head_size + d;
        value_tile<kQueries, kVectors>(work.weights(first + q), value, a.padded_head_size, p, until,
                                       work.sums(first + q) + d, a.padded_head_size);
        p = until;
      }
    }
  };

  template <int kQueries>
  ULTRAFAST_METHOD void run(int q) const {
    constexpr int kWide = kQueries <= 3 ? 4 : 2;
    int d = 0;
    for (; d + kWide * kLanes <= work.a.padded_head_size; d += kWide * kLanes) {
      split_by_sight<kQueries>(work.seen + work.first + q, Loop<kWide>{work, q, d});
    }
    for (; d < work.a.padded_head_size; d += 2 * kLanes) {
      split_by_sight<kQueries>(work.seen + work.first + q, Loop<2>{work, q, d});
    }
  }
};

struct StagedValues {
  const ChunkWork& work;
  int d;

  struct Loop {
    const ChunkWork& work;
    int first;
    int d;
    template <int kQueries>
    ULTRAFAST_METHOD void run(int q, int begin, int end) const {
      value_tile<kQueries, kValueTile / kLanes>(
          work.weights(first + q), static_cast<const float*>(work.scratch.values) + begin * kValueTile, kValueTile,
          begin, end, work.sums(first + q) + d, work.a.padded_head_size);
    }
  };

  template <int kQueries>
  ULTRAFAST_METHOD void run(int q) const {
    split_by_sight<kQueries>(work.seen + work.first + q, Loop{work, q, d});
  }
};

// A chunk's positions that any query of the work sees, in whole key tiles.
static Seen range_of(const ChunkWork& work) {
  Seen all = work.seen[work.first];
  for (int q = 1; q < work.count; ++q) {
    const Seen& one = work.seen[work.first + q];
    all.begin = one.begin < all.begin ? one.begin : all.begin;
    all.end = one.end > all.end ? one.end : all.end;
  }
  return all;
}

// Above this many queries keys and values are turned into float32 once for all of them.
constexpr int kDirectQueries = 6;

static void chunk_scores(const ChunkWork& work) {
  const Seen all = range_of(work);
  if (work.count <= kDirectQueries) {
    in_groups(work.count, DirectScores{work, all.tile_begin(), all.tile_end()});
    return;
  }
  for (int p = all.tile_begin(); p < all.end; p += kKeyTile) {
    const std::uint16_t* keys = work.a.key_blocks[work.first_block + p / kCacheBlock] + p % kCacheBlock;
    for (int d = 0; d < work.a.padded_head_size; ++d)
      for (int i = 0; i < kKeyTile; i += kLanes)
        store(work.scratch.keys + d * kKeyTile + i, load_half(keys + d * kCacheBlock + i));
    in_groups(work.count, StagedScores{work, p});
  }
}

static void chunk_values(const ChunkWork& work) {
  const int size = work.a.padded_head_size;
  for (int i = 0; i < work.count * size; i += kLanes) store(work.sums(0) + i, zero());
  if (work.count <= kDirectQueries) {
    in_groups(work.count, DirectValues{work});
    return;
  }
  const Seen all = range_of(work);
  for (int d = 0; d < size; d += kValueTile) {
    for (int p = all.begin; p < all.end; ++p) {
      const std::uint16_t* value = work.a.value_blocks[work.first_block + p / kCacheBlock] +
                                   static_cast<std::int64_t>(p % kCacheBlock) * size + d;
      for (int i = 0; i < kValueTile; i += kLanes)
        store(work.scratch.values + p * kValueTile + i, load_half(value + i));
    }
    in_groups(work.count, StagedValues{work, d});
  }
}

// Scores are scaled, capped and become weights exp(score − maximum). Returns the maximum, and the sum of weights in 16
// lanes by position; the sum is NaN where a score is not finite, for neither maximum nor exponential would show it.
static Running chunk_weights(const AttentionArguments& a, float* scores, const Seen& seen) {
  const int begin = seen.tile_begin();
  const int end = seen.tile_end();
  for (int p = begin; p < end; p += kLanes) {
    const F32 score = mul(load(scores + p), set1(a.scale));
    store(scores + p, a.softcap != 0.0f ? soft_capped(score, a.softcap) : score);
  }
  for (int p = begin; p < seen.begin; ++p) scores[p] = kLowest;
  for (int p = seen.end; p < end; ++p) scores[p] = kLowest;
  F32 largest = set1(kLowest);
  for (int p = begin; p < end; p += kLanes) largest = max(largest, load(scores + p));
  const bool good = finite(scores + begin, end - begin);
  alignas(64) float lanes[kVirtualLanes];
  store(lanes, largest);
  float maximum = kLowest;
  for (int i = 0; i < kLanes; ++i) maximum = lanes[i] > maximum ? lanes[i] : maximum;
  F32 sums[kVirtualVectors];
  for (F32& sum : sums) sum = zero();
  for (int p = begin; p < end; p += kLanes) {
    const F32 weight = exponential(sub(load(scores + p), set1(maximum)));  // unseen: exp of very little is 0
    store(scores + p, weight);
    F32& sum = sums[p / kLanes % kVirtualVectors];
    sum = add(sum, weight);
  }
  for (int v = 0; v < kVirtualVectors; ++v) store(lanes + v * kLanes, sums[v]);
  return {maximum, good ? fold_sum(lanes) : __builtin_nanf("")};
}

// Merges one chunk's (maximum, weight, sums) into what earlier positions gave.
static void merge_chunk(Running& running, const Running& chunk, const float* sums, float* output, int size) {
  const bool rises = chunk.maximum > running.maximum;
  const float old_factor = rises ? scalar_exponential(running.maximum - chunk.maximum) : 1.0f;
  const float new_factor = rises ? 1.0f : scalar_exponential(chunk.maximum - running.maximum);
  running.weight = running.weight * old_factor + chunk.weight * new_factor;
  running.maximum = rises ? chunk.maximum : running.maximum;
  for (int d = 0; d < size; ++d) output[d] = output[d] * old_factor + sums[d] * new_factor;
}

// First position that a row of the tile sees.
ULTRAFAST_INLINE int first_seen(const AttentionArguments& a, int row) {
  const int begin = a.first_position + row + 1 - a.window;
  return a.window > 0 && begin > 0 ? begin : 0;
}

// One chunk that starts at position `start`, for the rows that see any of it: neighbours, since rows see ascending
// positions.
static void attention_chunk(const AttentionArguments& a, const TileScratch& scratch, int start, Running* running) {
  Seen seen[kTileQueries];
  const int begin_row = start > a.first_position ? start - a.first_position : 0;
  int end_row = begin_row;
  for (; end_row < a.rows && first_seen(a, end_row) < start + kChunk; ++end_row) {
    const int begin = first_seen(a, end_row) - start;
    const int end = a.first_position + end_row + 1 - start;
    for (int h = 0; h < a.head_count; ++h) {
      seen[end_row * a.head_count + h] = {begin > 0 ? begin : 0, end < kChunk ? end : kChunk};
    }
  }
  const ChunkWork work{
      a, scratch, seen, start / kCacheBlock, begin_row * a.head_count, (end_row - begin_row) * a.head_count};
  Running chunk[kTileQueries];
  chunk_scores(work);
  for (int q = 0; q < work.count; ++q) chunk[q] = chunk_weights(a, work.weights(q), seen[work.first + q]);
  chunk_values(work);
  for (int q = 0; q < work.count; ++q) {
    const int index = work.first + q;
    const int row = index / a.head_count;
    float* output = a.output + row * a.output_stride + index % a.head_count * a.head_size;
    if (first_seen(a, row) >= start) {
      running[index] = chunk[q];
      for (int d = 0; d < a.head_size; ++d) output[d] = work.sums(q)[d];
    } else {
      merge_chunk(running[index], chunk[q], work.sums(q), output, a.head_size);
    }
  }
}

static void attention(const AttentionArguments& a) {
  const int queries = a.rows * a.head_count;
  TileScratch scratch;
  scratch.weights = a.scratch;
  scratch.sums = scratch.weights + queries * kChunk;
  scratch.keys = scratch.sums + queries * a.padded_head_size;
  scratch.values = scratch.keys + kKeyTile * a.padded_head_size;
  Running running[kTileQueries];
  for (int start = first_seen(a, 0) / kChunk * kChunk; start < a.first_position + a.rows; start += kChunk) {
    attention_chunk(a, scratch, start, running);
  }
  for (int q = 0; q < queries; ++q) {
    float* output = a.output + q / a.head_count * a.output_stride + q % a.head_count * a.head_size;
    for (int d = 0; d < a.head_size; ++d) output[d] /= running[q].weight;
  }
}

}  // namespace ultrafast::ULTRAFAST_ISA
