#include "kv_cache.h"

#include <cstring>
#include <stdexcept>
#include <utility>

namespace ultrafast {

KvCache::KvCache(std::int32_t layers, std::int32_t kv_heads, std::int32_t head_size, std::int32_t block_count,
                 std::int32_t max_sequences)
    : layers_(layers),
      kv_heads_(kv_heads),
      padded_head_size_((head_size + 15) / 16 * 16),
      block_count_(block_count),
      memory_(static_cast<std::size_t>(block_count) * static_cast<std::size_t>(layers) *
              static_cast<std::size_t>(kv_heads) * 2 * kCacheBlock * static_cast<std::size_t>(padded_head_size_) *
              sizeof(std::uint16_t)),
      sequences_(static_cast<std::size_t>(max_sequences)) {}

Sequence& KvCache::bound_sequence(std::int32_t sequence) {
  if (sequence < 0 || static_cast<std::size_t>(sequence) >= sequences_.size()) {
    throw std::invalid_argument("sequence out of range");
  }
  Sequence& found = sequences_[static_cast<std::size_t>(sequence)];
  if (!found.bound) throw std::invalid_argument("sequence is not bound");
  return found;
}

void KvCache::bind(std::int32_t sequence, std::vector<std::int32_t> blocks, std::vector<std::int32_t> history,
                   std::int32_t prompt_length, Sampling sampling) {
  if (sequence < 0 || static_cast<std::size_t>(sequence) >= sequences_.size()) {
    throw std::invalid_argument("sequence out of range");
  }
  Sequence& found = sequences_[static_cast<std::size_t>(sequence)];
  if (found.bound) throw std::invalid_argument("sequence is bound already");
  for (const std::int32_t block : blocks) {
    if (block < 0 || block >= block_count_) throw std::invalid_argument("block out of range");
  }
  if (history.size() > blocks.size() * kCacheBlock) throw std::invalid_argument("the history is beyond the blocks");
  found = Sequence{true, std::move(blocks), std::move(history), prompt_length, std::move(sampling)};
  found.tokens.reserve(static_cast<std::size_t>(found.capacity()));
}

void KvCache::release(std::int32_t sequence) { bound_sequence(sequence) = Sequence{}; }

void KvCache::truncate(std::int32_t sequence, std::int32_t length) {
  Sequence& found = bound_sequence(sequence);
  if (length < 0 || length > found.length()) throw std::invalid_argument("truncate beyond the sequence's length");
  found.tokens.resize(static_cast<std::size_t>(length));
}

void KvCache::copy_block(std::int32_t source, std::int32_t destination) {
  if (source < 0 || source >= block_count_ || destination < 0 || destination >= block_count_) {
    throw std::invalid_argument("block out of range");
  }
  if (source == destination) return;
  const std::size_t bytes = memory_.size() / static_cast<std::size_t>(block_count_);
  std::memcpy(start(destination, 0, 0), start(source, 0, 0), bytes);
}

void KvCache::move(std::int32_t sequence, std::int32_t source, std::int32_t destination) {
  Sequence& found = bound_sequence(sequence);
  if (destination < 0 || destination > source || source >= found.length()) {
    throw std::invalid_argument("move outside the sequence");
  }
  if (source == destination) return;
  const std::int32_t from = found.blocks[static_cast<std::size_t>(source / kCacheBlock)];
  const std::int32_t to = found.blocks[static_cast<std::size_t>(destination / kCacheBlock)];
  const std::int32_t from_slot = source % kCacheBlock;
  const std::int32_t to_slot = destination % kCacheBlock;
  for (std::int32_t layer = 0; layer < layers_; ++layer) {
    for (std::int32_t head = 0; head < kv_heads_; ++head) {
      const std::uint16_t* from_keys = keys(from, layer, head);
      std::uint16_t* to_keys = keys(to, layer, head);
      for (std::int32_t d = 0; d < padded_head_size_; ++d) {
        to_keys[d * kCacheBlock + to_slot] = from_keys[d * kCacheBlock + from_slot];
      }
      std::memcpy(values(to, layer, head) + to_slot * padded_head_size_,
                  values(from, layer, head) + from_slot * padded_head_size_,
                  static_cast<std::size_t>(padded_head_size_) * sizeof(std::uint16_t));
    }
  }
  found.tokens[static_cast<std::size_t>(destination)] = found.tokens[static_cast<std::size_t>(source)];
}

}  // namespace ultrafast
