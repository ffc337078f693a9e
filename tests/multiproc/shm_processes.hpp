// Forked processes that share memory as ranks of a group, and a table of theirs in which they meet and count.
#pragma once

#include <sys/mman.h>

#include <ddp/error.hpp>

#include "collectives/shm/shm_backend.hpp"
#include "unit/collectives/backend_ranks.hpp"

namespace ddp::collectives::shm {

using testing::Ended;
using testing::run;
inline constexpr int kRanks = 3;

/// What the processes of a test tell each other, in memory of theirs alone.
struct Table {
  struct Row {
    std::array<std::byte, 512> address;
    std::atomic<std::size_t> address_bytes;  ///< 0: not there yet
  };
  std::array<std::array<Row, kRanks>, 2> groups;
  std::array<std::atomic<int>, 8> counters;
};

struct ShmProcesses : ::testing::Test {
  void SetUp() override {
    void* const memory = ::mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    table_ = new (memory) Table{};
  }
  void TearDown() override {
    for (const pid_t child : children_) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
    ::munmap(table_, sizeof(Table));
  }

  /// Forks a process a rank. Its exit status is 0 if @p body reports no failure.
  void start(const std::function<void(int)>& body) {
    for (int rank = 0; rank < kRanks; ++rank) {
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        try {
          body(rank);
        } catch (const std::exception& error) {
          ADD_FAILURE() << "rank " << rank << ": " << error.what();
        }
        ::_exit(HasFailure() ? 1 : 0);  // nothing of the parent's is torn down
      }
      children_.push_back(child);
    }
  }
  void expect_success(int rank) {
    int status = 0;
    ASSERT_EQ(::waitpid(children_[static_cast<std::size_t>(rank)], &status, 0),
              children_[static_cast<std::size_t>(rank)]);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank " << rank << ", status " << status;
  }

  /// In a child: a backend with the given ranks, addresses exchanged, not connected.
  std::unique_ptr<Backend> make(int group, const std::vector<int>& members, int rank, std::vector<Bytes>& addresses,
                                const Settings& settings = {}) {
    BackendConfig config;
    config.group = "processes";
    config.size = static_cast<int>(members.size());
    config.rank = static_cast<int>(std::find(members.begin(), members.end(), rank) - members.begin());
    auto backend = create(config, Endpoint{}, settings);
    auto& rows = table_->groups[static_cast<std::size_t>(group)];
    const Bytes own = backend->address();
    Table::Row& row = rows[static_cast<std::size_t>(rank)];
    std::copy(own.begin(), own.end(), row.address.begin());
    row.address_bytes = own.size();
    for (const int member : members) {
      const Table::Row& other = rows[static_cast<std::size_t>(member)];
      wait_until([&] { return other.address_bytes != 0; });
      addresses.emplace_back(other.address.begin(),
                             other.address.begin() + static_cast<std::ptrdiff_t>(other.address_bytes));
    }
    return backend;
  }
  std::unique_ptr<Backend> connected(int group, const std::vector<int>& members, int rank,
                                     const Settings& settings = {}) {
    std::vector<Bytes> addresses;
    auto backend = make(group, members, rank, addresses, settings);
    backend->connect(addresses, testing::soon());
    return backend;
  }

  static void wait_until(const std::function<bool()>& condition) {
    const Deadline deadline = testing::soon();
    while (!condition()) {
      ASSERT_FALSE(deadline.expired());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  /// The process's own end or halt, noted before.
  void fall(int signal) {
    ++counter(0);
    ::raise(signal);
  }
  std::atomic<int>& counter(std::size_t which) { return table_->counters[which]; }

  Table* table_ = nullptr;
  std::vector<pid_t> children_;
};

inline Operation sum_of(std::vector<float>& values, std::uint64_t sequence) {
  Operation operation;
  operation.kind = OperationKind::all_reduce;
  operation.count = values.size();
  operation.input = operation.output = values;
  operation.sequence = sequence;
  return operation;
}

inline Ended all_reduce(Backend& backend, std::size_t count, std::uint64_t sequence, Deadline deadline) {
  std::vector<float> values(count, 1.0F);
  const Ended ended = run(backend, sum_of(values, sequence), deadline);
  if (ended.outcome == Outcome::ok) {
    for (const float value : values) {
      if (value != values[0]) ADD_FAILURE() << "the result is not the same everywhere";
    }
  }
  return ended;
}

}  // namespace ddp::collectives::shm
