// Anonymous memory for weights, KV cache and buffers: zero until written, on huge pages where the system grants them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ultrafast {

class Memory {
 public:
  Memory() = default;
  // Throws std::bad_alloc.
  explicit Memory(std::size_t byte_count);
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  std::uint8_t* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
  void* mapping_ = nullptr;
  std::size_t mapping_size_ = 0;
};

}  // namespace ultrafast
