#include "memory.h"

#include <sys/mman.h>

#include <new>
#include <utility>

namespace ultrafast {

namespace {
constexpr std::size_t kHugePage = std::size_t{2} << 20;
}

Memory::Memory(std::size_t byte_count) : size_(byte_count) {
  if (byte_count == 0) return;
  // One huge page more than asked for, so that the start can be aligned to one.
  mapping_size_ = (byte_count + kHugePage - 1) / kHugePage * kHugePage + kHugePage;
  mapping_ = mmap(nullptr, mapping_size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping_ == MAP_FAILED) {
    mapping_ = nullptr;
    throw std::bad_alloc();
  }
  const auto start = reinterpret_cast<std::uintptr_t>(mapping_);
  data_ = reinterpret_cast<std::uint8_t*>((start + kHugePage - 1) / kHugePage * kHugePage);
#ifdef MADV_HUGEPAGE
  // Advice only: where it is refused, ordinary pages serve. What is smaller than a huge page would pay for a whole one.
  if (byte_count >= kHugePage)
    (void)madvise(data_, (byte_count + kHugePage - 1) / kHugePage * kHugePage, MADV_HUGEPAGE);
#endif
}

Memory::Memory(Memory&& other) noexcept { *this = std::move(other); }

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_size_, other.mapping_size_);
  return *this;
}

Memory::~Memory() {
  if (mapping_ != nullptr) munmap(mapping_, mapping_size_);
}

}  // namespace ultrafast
