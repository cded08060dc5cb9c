#include "team.h"

#include <algorithm>
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

// Below the number of a stage: tasks of one stage are fewer than 2^22, and stages of years fit above.
constexpr int kTaskBits = 22;
constexpr std::uint64_t kTaskMask = (std::uint64_t{1} << kTaskBits) - 1;
// A claim takes up to so many tasks at once, and a part of what is left, so that little is in hand near the end.
constexpr std::int64_t kMostClaimed = 4;
constexpr std::int64_t kClaimedPart = 4;

constexpr std::uint64_t kOpen = std::uint64_t{1} << 31;
constexpr std::uint64_t kJoined = kOpen - 1;

}  // namespace

template <class Enough>
std::uint32_t Signal::await(const Enough& enough) {
  std::uint32_t seen = value_.load(std::memory_order_acquire);
  if (enough(seen)) return seen;
  const auto start = Clock::now();
  do {
    for (int i = 0; i < kSpinsPerClockRead; ++i) {
      relax();
      seen = value_.load(std::memory_order_acquire);
      if (enough(seen)) return seen;
    }
  } while (Clock::now() - start < kSpinTime);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (!enough(seen = value_.load(std::memory_order_seq_cst))) sleep_while(value_, seen);
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  return seen;
}

void Signal::store(std::uint32_t value) {
  value_.store(value, std::memory_order_seq_cst);
  wake();
}

void Signal::add(std::uint32_t difference) {
  value_.fetch_add(difference, std::memory_order_seq_cst);
  wake();
}

// Pairs with the sleeper's increment: either it sees the new value or we see it sleeping.
void Signal::wake() {
  if (sleepers_.load(std::memory_order_seq_cst) > 0) wake_all(value_);
}

Team::Team(int members, std::vector<int> cpus)
    : members_(members),
      cpus_(std::move(cpus)),
      claims_(static_cast<std::size_t>(members)),
      seats_(static_cast<std::size_t>(members)) {
  threads_.reserve(static_cast<std::size_t>(members - 1));
  for (int member = 1; member < members; ++member) threads_.emplace_back([this, member] { member_loop(member); });
}

Team::~Team() {
  stopping_ = true;
  runs_.add(1);
  for (std::thread& thread : threads_) thread.join();
}

// Takes tasks of the owner's share; false where none is left or the stage is over. A word of an earlier stage means
// that nothing of the share is claimed yet.
bool Team::claim(std::uint64_t stage, int owner, std::int64_t count, bool is_own, Share& claimed) {
  const Share whole = share(count, owner, members_);
  std::atomic<std::uint64_t>& word = claims_[static_cast<std::size_t>(owner)].word;
  std::uint64_t seen = word.load(std::memory_order_acquire);
  while (seen >> kTaskBits <= stage) {
    const bool is_begun = seen >> kTaskBits == stage;
    const std::int64_t next = is_begun ? static_cast<std::int64_t>(seen & kTaskMask) : whole.begin;
    if (next >= whole.end) return false;
    const std::int64_t part = is_own ? std::clamp<std::int64_t>((whole.end - next) / kClaimedPart, 1, kMostClaimed) : 1;
    const std::uint64_t wanted = stage << kTaskBits | static_cast<std::uint64_t>(next + part);
    if (word.compare_exchange_weak(seen, wanted, std::memory_order_acq_rel, std::memory_order_acquire)) {
      claimed = {next, next + part};
      return true;
    }
  }
  return false;
}

// Counts what a member did in a stage, and waits for the end of the stage.
void Team::finish(std::uint64_t stage, std::int64_t done, std::int64_t count) {
  const auto number = static_cast<std::uint32_t>(stage);
  if (done > 0 && done_.fetch_add(done, std::memory_order_acq_rel) + done == count) {
    done_.store(0, std::memory_order_relaxed);  // nobody counts again before he has seen the next line
    completed_.store(number);
    return;
  }
  completed_.await([number](std::uint32_t seen) { return static_cast<std::int32_t>(seen - number) >= 0; });
}

// Whether this member takes part in a run that it has not taken part in.
bool Team::join(int member) {
  Seat& seat = seats_[static_cast<std::size_t>(member)];
  std::uint64_t gate = gate_.load(std::memory_order_acquire);
  while ((gate & kOpen) != 0 && static_cast<std::uint32_t>(gate >> 32) != seat.run) {
    if (!gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
    seat.run = static_cast<std::uint32_t>(gate >> 32);
    seat.stage = first_stage_;
    return true;
  }
  return false;
}

void Team::member_loop(int member) {
  const Pin pin(cpus_, member);
  const FloatModes modes;
  std::uint32_t seen = 0;
  while (true) {
    seen = runs_.await([seen](std::uint32_t value) { return value != seen; });
    if (stopping_) return;
    if (!join(member)) continue;
    (*work_)(member);
    left_.add(1);
  }
}

void Team::run(Attendance attendance, const std::function<void(int)>& work) {
  const Pin pin(cpus_, 0);
  const FloatModes modes;
  const std::uint32_t left = left_.load();
  work_ = &work;
  first_stage_ = seats_[0].stage;
  gate_.store(std::uint64_t{runs_.load() + 1} << 32 | kOpen, std::memory_order_release);
  runs_.add(1);
  work(0);
  auto joined = static_cast<std::uint32_t>(members_ - 1);
  const auto all_have_left = [&](std::uint32_t seen) { return seen - left == joined; };
  if (attendance == Attendance::kEveryone) left_.await(all_have_left);
  joined = static_cast<std::uint32_t>(gate_.fetch_and(~kOpen, std::memory_order_acq_rel) & kJoined);
  left_.await(all_have_left);
  work_ = nullptr;
}

double measure_read_bandwidth(Team& team, std::int64_t byte_count, double seconds) {
  const std::int64_t bytes = byte_count / team.members() / 64 * 64;
  std::vector<Memory> shares(static_cast<std::size_t>(team.members()));
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(team.members()));
  std::vector<std::int64_t> passes(static_cast<std::size_t>(team.members()));
  std::vector<double> elapsed(static_cast<std::size_t>(team.members()));
  const std::int64_t count = bytes / 8;
  team.run(Team::Attendance::kEveryone, [&](int member) {
    const auto m = static_cast<std::size_t>(member);
    shares[m] = Memory(static_cast<std::size_t>(bytes));
    auto* words = reinterpret_cast<std::uint64_t*>(shares[m].data());
    for (std::int64_t i = 0; i < count; ++i) words[i] = static_cast<std::uint64_t>(i);
  });
  team.run(Team::Attendance::kEveryone, [&](int member) {
    const auto m = static_cast<std::size_t>(member);
    const auto* words = reinterpret_cast<const std::uint64_t*>(shares[m].data());
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
    total += static_cast<double>(bytes * passes[m]) / elapsed[m] + (sums[m] == 1 ? 1e-9 : 0.0);
  }
  return total;
}

}  // namespace ultrafast
