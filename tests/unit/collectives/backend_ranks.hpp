// All ranks of a group in one process, each with its own ddp::Backend on its own thread: addresses are exchanged in
// memory, operations driven as a group does it.
#pragma once

#include <ddp/backend.hpp>

namespace ddp::collectives::testing {

/// A kind of backend under test, and how many ranks.
struct Subject {
  std::string name;  ///< of the test's instance: letters, digits, _
  std::function<std::unique_ptr<Backend>(const BackendConfig&)> create;
  int size = 2;
  std::vector<int> nodes{};      ///< empty: all on node 0
  bool flat_bits = true;         ///< floats are combined as (((r0 + r1) + r2) + ...), half types in float, rounded once
  bool reports_mismatch = true;  ///< different calls end with Outcome::mismatch
  std::size_t many = 3000;       ///< operations of the test of many small ones
  std::size_t large_bytes = 3'000'004;
};
inline void PrintTo(const Subject& subject, std::ostream* out) { *out << subject.name; }

/// For machines that are busy with other things.
inline Deadline soon() { return Deadline::after(std::chrono::seconds(60)); }

/// How a request ended.
struct Ended {
  Outcome outcome = Outcome::running;
  Failure failure;
};

/// Posts and polls requests to their ends as a group's caller does: polls, yields, rests.
inline std::vector<Ended> drive(Backend& backend, std::span<Request* const> requests) {
  std::vector<Ended> ends(requests.size());
  for (Request* request : requests) request->post();
  std::size_t left = requests.size();
  for (int round = 0; left > 0; ++round) {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (ends[i].outcome != Outcome::running) continue;
      ends[i].outcome = requests[i]->poll();
      if (ends[i].outcome == Outcome::running) continue;
      if (ends[i].outcome != Outcome::ok) ends[i].failure = requests[i]->failure();
      --left;
    }
    if (round > 400) {
      backend.rest(std::chrono::microseconds(500));
    } else if (round > 50) {
      std::this_thread::yield();
    }
  }
  for (Request* request : requests) request->release();
  return ends;
}

inline Ended run(Backend& backend, std::span<const Operation> operations, Deadline deadline = soon()) {
  Request* const request = &backend.init(operations, deadline);
  return drive(backend, {&request, 1}).front();
}
inline Ended run(Backend& backend, const Operation& operation, Deadline deadline = soon()) {
  return run(backend, {&operation, 1}, deadline);
}

class BackendRanks {
 public:
  explicit BackendRanks(const Subject& subject, const std::string& group = "contract") {
    for (int rank = 0; rank < subject.size; ++rank) {
      BackendConfig config;
      config.group = group;
      config.rank = rank;
      config.size = subject.size;
      config.nodes = subject.nodes.empty() ? std::vector<int>(static_cast<std::size_t>(subject.size)) : subject.nodes;
      config.interface_address = "127.0.0.1";
      backends_.push_back(subject.create(config));
    }
    std::vector<Bytes> addresses;
    for (const auto& backend : backends_) {
      addresses.push_back(backend->address());
      EXPECT_LE(addresses.back().size(), 4096U);
    }
    on_all([&](int rank) { at(rank).connect(addresses, soon()); });
  }
  ~BackendRanks() {
    on_all([&](int rank) {
      if (backends_[static_cast<std::size_t>(rank)]) at(rank).close(soon());
    });
  }
  BackendRanks& operator=(BackendRanks&&) = delete;

  int size() const { return static_cast<int>(backends_.size()); }
  Backend& at(int rank) { return *backends_[static_cast<std::size_t>(rank)]; }

  /// Ends @p rank without a goodbye, as the death of its process does.
  void kill(int rank) { backends_[static_cast<std::size_t>(rank)].reset(); }

  /// Runs body(rank) on one thread a rank and waits for all; what one throws is a failure of the test.
  void on_all(const std::function<void(int)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size(); ++rank) {
      threads.emplace_back([&body, rank] {
        try {
          body(rank);
        } catch (const std::exception& error) {
          ADD_FAILURE() << "rank " << rank << ": " << error.what();
        }
      });
    }
    for (auto& thread : threads) thread.join();
  }

 private:
  std::vector<std::unique_ptr<Backend>> backends_;
};

}  // namespace ddp::collectives::testing
