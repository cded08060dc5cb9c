// A fixed team of threads. The caller of run() is member 0; the others wait for it, spinning briefly and then asleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace ultrafast {

// Spins for about 20 µs, then sleeps on a futex; never yields, which beside busy neighbours costs far more.
class Barrier {
 public:
  explicit Barrier(int members) : members_(members) {}
  void wait();

 private:
  const std::int32_t members_;
  alignas(64) std::atomic<std::uint32_t> generation_{0};
  alignas(64) std::atomic<std::int32_t> arrived_{0};
  alignas(64) std::atomic<std::int32_t> sleepers_{0};
};

class Team {
 public:
  // cpus: one per member to pin it to, or empty to leave placement to the system.
  Team(int members, std::vector<int> cpus);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int members() const { return members_; }
  // Runs work(member) on every member and returns when all are done. work must not throw. The caller's processor
  // affinity and floating-point modes are as before afterwards.
  void run(const std::function<void(int)>& work);
  // Called by every member from inside run().
  void barrier() { inner_.wait(); }

 private:
  void member_loop(int member);

  const int members_;
  const std::vector<int> cpus_;
  Barrier outer_;
  Barrier inner_;
  const std::function<void(int)>* work_ = nullptr;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

// Bytes a second read by `members` pinned threads, each over its share of byte_count, for about `seconds`.
double measure_read_bandwidth(Team& team, std::int64_t byte_count, double seconds);

}  // namespace ultrafast
