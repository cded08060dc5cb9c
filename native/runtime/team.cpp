#include "team.h"

#include <chrono>
#include <climits>
#include <utility>

#include "memory.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ultrafast {

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kSpinTime = std::chrono::microseconds(20);
constexpr int kSpinsPerClockRead = 64;

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void sleep_while(std::atomic<std::uint32_t>& word, std::uint32_t value) {
#if defined(__linux__)
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
#else
  word.wait(value);
#endif
}

void wake_all(std::atomic<std::uint32_t>& word) {
#if defined(__linux__)
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#else
  word.notify_all();
#endif
}

// Round to nearest even, denormals kept, whatever the embedding process chose (exactness rule 7).
class FloatModes {
 public:
#if defined(__x86_64__)
  FloatModes() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~FloatModes() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  FloatModes() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(std::uint64_t{0}));
  }
  ~FloatModes() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }

 private:
  std::uint64_t saved_;
#endif
};

// Pins the calling thread while it lives, then restores where it was allowed to run.
class Pin {
 public:
  Pin(const std::vector<int>& cpus, int member) {
#if defined(__linux__)
    if (cpus.empty()) return;
    pinned_ = sched_getaffinity(0, sizeof saved_, &saved_) == 0;
    cpu_set_t wanted;
    CPU_ZERO(&wanted);
    CPU_SET(cpus[static_cast<std::size_t>(member)], &wanted);
    pinned_ = pinned_ && sched_setaffinity(0, sizeof wanted, &wanted) == 0;
#else
    (void)cpus;
    (void)member;
#endif
  }
  ~Pin() {
#if defined(__linux__)
    if (pinned_) sched_setaffinity(0, sizeof saved_, &saved_);
#endif
  }
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;

 private:
#if defined(__linux__)
  cpu_set_t saved_{};
  bool pinned_ = false;
#endif
};

}  // namespace

void Barrier::wait() {
  const std::uint32_t generation = generation_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == members_) {
    arrived_.store(0, std::memory_order_relaxed);
    generation_.store(generation + 1, std::memory_order_seq_cst);
    // Pairs with the sleeper's increment: either it sees the new generation or we see it sleeping.
    if (sleepers_.load(std::memory_order_seq_cst) > 0) wake_all(generation_);
    return;
  }
  const auto start = Clock::now();
  do {
    for (int i = 0; i < kSpinsPerClockRead; ++i) {
      if (generation_.load(std::memory_order_acquire) != generation) return;
      relax();
    }
  } while (Clock::now() - start < kSpinTime);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (generation_.load(std::memory_order_seq_cst) == generation) sleep_while(generation_, generation);
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

Team::Team(int members, std::vector<int> cpus)
    : members_(members), cpus_(std::move(cpus)), outer_(members), inner_(members) {
  threads_.reserve(static_cast<std::size_t>(members - 1));
  for (int member = 1; member < members; ++member) threads_.emplace_back([this, member] { member_loop(member); });
}

Team::~Team() {
  stopping_ = true;
  outer_.wait();
  for (std::thread& thread : threads_) thread.join();
}

void Team::member_loop(int member) {
  const Pin pin(cpus_, member);
  const FloatModes modes;
  while (true) {
    outer_.wait();
    if (stopping_) return;
    (*work_)(member);
    outer_.wait();
  }
}

void Team::run(const std::function<void(int)>& work) {
  const Pin pin(cpus_, 0);
  const FloatModes modes;
  work_ = &work;
  outer_.wait();
  work(0);
  outer_.wait();
  work_ = nullptr;
}

double measure_read_bandwidth(Team& team, std::int64_t byte_count, double seconds) {
  const std::int64_t share = byte_count / team.members() / 64 * 64;
  std::vector<Memory> shares(static_cast<std::size_t>(team.members()));
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(team.members()));
  std::vector<std::int64_t> passes(static_cast<std::size_t>(team.members()));
  std::vector<double> elapsed(static_cast<std::size_t>(team.members()));
  team.run([&](int member) {
    const auto m = static_cast<std::size_t>(member);
    shares[m] = Memory(static_cast<std::size_t>(share));
    auto* words = reinterpret_cast<std::uint64_t*>(shares[m].data());
    const std::int64_t count = share / 8;
    for (std::int64_t i = 0; i < count; ++i) words[i] = static_cast<std::uint64_t>(i);
    team.barrier();
    std::uint64_t sum = 0;
    const auto start = Clock::now();
    do {
      for (std::int64_t i = 0; i < count; i += 8) {
        sum += words[i] ^ words[i + 1] ^ words[i + 2] ^ words[i + 3] ^ words[i + 4] ^ words[i + 5] ^ words[i + 6] ^
               words[i + 7];
      }
      ++passes[m];
      elapsed[m] = std::chrono::duration<double>(Clock::now() - start).count();
    } while (elapsed[m] < seconds);
    sums[m] = sum;
  });
  double total = 0.0;
  for (std::size_t m = 0; m < shares.size(); ++m) {
    // The sum is read so that the loop cannot be dropped.
    total += static_cast<double>(share * passes[m]) / elapsed[m] + (sums[m] == 1 ? 1e-9 : 0.0);
  }
  return total;
}

}  // namespace ultrafast
