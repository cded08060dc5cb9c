// Storage of keys and values, and what the engine knows of each sequence.
//
// A sequence's entries are numbered 0, 1, ... in the order its rows were appended; entry i lives in block blocks[i /
// 32], slot i % 32. On the committed line the entry number is the position; rows of a tree of drafts are appended after
// it and `move` brings the kept ones into place. Which blocks a sequence may use is decided outside.
#pragma once

#include <cstdint>
#include <vector>

#include "../kernels/kernels.h"
#include "memory.h"

namespace ultrafast {

struct Bias {
  std::int32_t token;
  float value;
};

struct Sampling {
  float temperature = 1.0f;  // 0: greedy
  std::int32_t top_k = 0;    // 0: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  std::uint64_t seed = 0;
  std::uint32_t choice = 0;
  std::int32_t top_logprobs = 0;
  std::vector<Bias> logit_bias;

  bool penalises() const { return repetition_penalty != 1.0f || presence_penalty != 0.0f || frequency_penalty != 0.0f; }
  // The arg-max of the raw logits is the answer.
  bool is_plain_greedy() const { return temperature == 0.0f && takes_raw_logits(); }
  // The arg-max of the raw logits, divided by the temperature, and noise is.
  bool is_plain_noise() const {
    return temperature > 0.0f && takes_raw_logits() && top_k == 0 && top_p >= 1.0f && min_p <= 0.0f;
  }

 private:
  bool takes_raw_logits() const { return !penalises() && logit_bias.empty(); }
};

struct Sequence {
  bool bound = false;
  std::vector<std::int32_t> blocks;
  std::vector<std::int32_t> tokens;  // one per entry
  std::int32_t prompt_length = 0;
  Sampling sampling;

  std::int32_t length() const { return static_cast<std::int32_t>(tokens.size()); }
  std::int64_t capacity() const { return static_cast<std::int64_t>(blocks.size()) * kCacheBlock; }
};

class KvCache {
 public:
  KvCache() = default;
  KvCache(std::int32_t layers, std::int32_t kv_heads, std::int32_t head_size, std::int32_t block_count,
          std::int32_t max_sequences);

  std::vector<Sequence>& sequences() { return sequences_; }
  std::int32_t block_count() const { return block_count_; }
  std::int32_t padded_head_size() const { return padded_head_size_; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(memory_.size()); }

  // [padded head size][32] float16.
  std::uint16_t* keys(std::int32_t block, std::int32_t layer, std::int32_t head) const {
    return start(block, layer, head);
  }
  // [32][padded head size] float16.
  std::uint16_t* values(std::int32_t block, std::int32_t layer, std::int32_t head) const {
    return start(block, layer, head) + kCacheBlock * padded_head_size_;
  }

  // All throw std::invalid_argument on a bad index.
  Sequence& bound_sequence(std::int32_t sequence);
  // `history`: tokens whose entries the blocks hold already, computed by another sequence that began with them.
  void bind(std::int32_t sequence, std::vector<std::int32_t> blocks, std::vector<std::int32_t> history,
            std::int32_t prompt_length, Sampling sampling);
  void release(std::int32_t sequence);
  // Drops entries from `length` on.
  void truncate(std::int32_t sequence, std::int32_t length);
  // Copies all of a block over another one.
  void copy_block(std::int32_t source, std::int32_t destination);
  // Copies entry `source` (keys, values of every layer, token) over entry `destination` <= source.
  void move(std::int32_t sequence, std::int32_t source, std::int32_t destination);

 private:
  std::uint16_t* start(std::int32_t block, std::int32_t layer, std::int32_t head) const {
    const std::int64_t index = (static_cast<std::int64_t>(block) * layers_ + layer) * kv_heads_ + head;
    return reinterpret_cast<std::uint16_t*>(memory_.data()) + index * 2 * kCacheBlock * padded_head_size_;
  }

  std::int32_t layers_ = 0;
  std::int32_t kv_heads_ = 0;
  std::int32_t padded_head_size_ = 0;
  std::int32_t block_count_ = 0;
  Memory memory_;
  std::vector<Sequence> sequences_;
};

}  // namespace ultrafast
