// A fixed team of threads that share out the tasks of a step. The caller of run() is member 0.
//
// Work is claimed, not assigned: a stage is over when its tasks are done, whoever did them. So a member that the system
// has given another program to run holds nobody up but for the task it has in hand, and where it comes late it finds
// its share done.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace ultrafast {

// [begin, end) of some tasks.
struct Share {
  std::int64_t begin;
  std::int64_t end;
};
// Member m's own share of n tasks.
inline Share share(std::int64_t n, int member, int members) {
  return {n * member / members, n * (member + 1) / members};
}

// A number that threads wait for: spinning for about 20 µs, then asleep on a futex; never yielding, which beside busy
// neighbours costs far more.
class Signal {
 public:
  // Returns the first value seen that `enough` accepts.
  template <class Enough>
  std::uint32_t await(const Enough& enough);
  void store(std::uint32_t value);
  void add(std::uint32_t difference);
  std::uint32_t load() const { return value_.load(std::memory_order_acquire); }

 private:
  void wake();

  alignas(64) std::atomic<std::uint32_t> value_{0};
  alignas(64) std::atomic<std::int32_t> sleepers_{0};
};

class Team {
 public:
  // Who takes part in a run: every member, or whoever is there in time.
  enum class Attendance { kEveryone, kWhoeverComes };

  // cpus: one per member to pin it to, or empty to leave placement to the system.
  Team(int members, std::vector<int> cpus);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int members() const { return members_; }

  // Runs work(member) on the members that take part, the caller always, and returns when all of them are done. work
  // must not throw. The caller's processor affinity and floating-point modes are as before afterwards.
  void run(Attendance attendance, const std::function<void(int)>& work);

  // Inside run(): does tasks [0, count), each once, with whoever is there, and returns when all are done. Every member
  // calls it equally often with equal counts. A member does what it claims from its own share first, then from others'.
  //
  // begin() comes before a member's first task, and not at all where it gets none. Only begin and the tasks may read
  // what other stages write: a late member passes here when the others are far ahead.
  template <class Begin, class Task>
  void each(int member, std::int64_t count, const Begin& begin, const Task& task) {
    if (count == 0) return;
    const std::uint64_t stage = ++seats_[static_cast<std::size_t>(member)].stage;
    std::int64_t done = 0;
    for (int turn = 0; turn < members_; ++turn) {
      Share claimed;
      while (claim(stage, (member + turn) % members_, count, turn == 0, claimed)) {
        if (done == 0) begin();
        for (std::int64_t i = claimed.begin; i < claimed.end; ++i) task(i);
        done += claimed.end - claimed.begin;
      }
    }
    finish(stage, done, count);
  }
  template <class Task>
  void each(int member, std::int64_t count, const Task& task) {
    each(member, count, [] {}, task);
  }

 private:
  // What of a member's share of the current stage is claimed: the stage's number above kTaskBits, the next task below.
  struct Claims {
    alignas(64) std::atomic<std::uint64_t> word{0};
  };
  struct Seat {
    alignas(64) std::uint64_t stage = 0;  // the member's own: stages it has entered
    std::uint32_t run = 0;                // the last it took part in
  };

  bool claim(std::uint64_t stage, int owner, std::int64_t count, bool is_own, Share& claimed);
  void finish(std::uint64_t stage, std::int64_t done, std::int64_t count);
  void member_loop(int member);
  bool join(int member);

  const int members_;
  const std::vector<int> cpus_;
  std::vector<Claims> claims_;                     // [member]
  std::vector<Seat> seats_;                        // [member]
  alignas(64) std::atomic<std::int64_t> done_{0};  // tasks of the current stage
  Signal completed_;                               // the last stage that is over, its low bits
  Signal runs_;                                    // how many have begun
  Signal left_;                                    // members that have left a run, ever
  // Of the current run: its number above 32 bits, whether it may be joined, how many have joined it.
  alignas(64) std::atomic<std::uint64_t> gate_{0};
  std::uint64_t first_stage_ = 0;
  const std::function<void(int)>* work_ = nullptr;
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
};

// Bytes a second read by `members` pinned threads, each over its share of byte_count, for about `seconds`.
double measure_read_bandwidth(Team& team, std::int64_t byte_count, double seconds);

}  // namespace ultrafast
