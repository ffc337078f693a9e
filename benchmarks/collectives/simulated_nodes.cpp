// What a rank of the backend `host` costs, up to hundreds of ranks on this machine: processes that are dealt over
// simulated nodes of 64. Prints a row of Markdown for each number of ranks: connections, bytes sent between nodes and
// memory, mean and greatest of the ranks', beside a model of the same.
//
//     bench_collectives_simulated_nodes [RANKS...]
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "collectives/host/host_backend.hpp"
#include "process_costs.hpp"

namespace {

using namespace ddp;  // NOLINT(google-build-using-namespace): a program of one file

constexpr int kPerNode = 64;
constexpr std::size_t kMostRanks = 1024;
constexpr std::size_t kLargeBytes = 1U << 20U;
// Beyond, making 115,000 connections on one host takes minutes of the kernel's time: 512 ranks on two processors did
// not end within 170 s. What they come to is the model's.
constexpr int kMostOfAllToAll = 256;
constexpr auto kPatience = std::chrono::seconds(300);

struct Row {
  std::array<std::byte, 1024> address;
  std::atomic<std::size_t> address_bytes;
  std::array<bench::Traffic, 3> after;  ///< the first all_reduce, one of 1 MiB, all_to_all
  double shared_kib, own_kib;
};
struct Table {
  std::array<Row, kMostRanks> rows;
  std::array<std::atomic<int>, 8> arrived;
  std::atomic<bool> failed;
};

class Rank {
 public:
  Rank(Table& table, int rank, int size) : table_(table), rank_(rank), size_(size) {}

  void run() {
    BackendConfig config;
    config.group = "growth";
    config.rank = rank_;
    config.size = size_;
    for (int rank = 0; rank < size_; ++rank) config.nodes.push_back(rank / kPerNode);
    config.interface_address = "127.0.0.1";
    config.connect_timeout = kPatience;
    backend_ = collectives::host::create(config, std::to_string(rank_ / kPerNode));
    Row& own = row(rank_);
    const Bytes address = backend_->address();
    std::copy(address.begin(), address.end(), own.address.begin());
    own.address_bytes = address.size();
    meet();
    std::vector<Bytes> addresses;
    for (int rank = 0; rank < size_; ++rank) {
      const Row& other = row(rank);
      addresses.emplace_back(other.address.begin(),
                             other.address.begin() + static_cast<std::ptrdiff_t>(other.address_bytes));
    }
    backend_->connect(addresses, Deadline::after(kPatience));
    const std::array<std::pair<OperationKind, std::size_t>, 3> steps{
        {{OperationKind::all_reduce, 64}, {OperationKind::all_reduce, kLargeBytes}, {OperationKind::all_to_all, 64}}};
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (i < 2 || size_ <= kMostOfAllToAll) perform(steps[i].first, steps[i].second);
      meet();  // what is on its way has been acknowledged
      own.after[i] = bench::traffic();
      meet();
    }
    own.shared_kib = bench::mapped_kib("smaps", "Pss:", {"memfd:"});
    own.own_kib = bench::mapped_kib("smaps_rollup", "Pss:");
    meet();
    backend_->close(Deadline::after(kPatience));
  }

 private:
  Row& row(int rank) { return table_.rows[static_cast<std::size_t>(rank)]; }

  /// All ranks have come so far.
  void meet() {
    std::atomic<int>& arrived = table_.arrived[barriers_++];
    for (++arrived; arrived < size_ && !table_.failed;) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }

  /// @param bytes of the whole tensor, or of each rank's part.
  void perform(OperationKind kind, std::size_t bytes) {
    const bool parts = kind == OperationKind::all_to_all;
    std::vector<float> in(bytes / sizeof(float) * static_cast<std::size_t>(parts ? size_ : 1), 1.0F);
    std::vector<float> out(in.size());
    Operation operation;
    operation.kind = kind;
    operation.count = in.size();
    operation.input = in;
    operation.output = out;
    operation.sequence = ++sequence_;
    Request& request = backend_->init({&operation, 1}, Deadline::after(kPatience));
    request.post();
    Outcome outcome = Outcome::running;
    while ((outcome = request.poll()) == Outcome::running) backend_->rest(std::chrono::milliseconds(1));
    if (outcome != Outcome::ok) throw std::runtime_error(request.failure().cause);
    request.release();
  }

  Table& table_;
  int rank_;
  int size_;
  std::size_t barriers_ = 0;
  std::uint64_t sequence_ = 0;
  std::unique_ptr<Backend> backend_;
};

/// "mean, greatest" of @p value of each rank's row.
template <class Value>
std::string spread(const Table& table, int ranks, int digits, Value&& value) {
  double sum = 0;
  double most = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const double one = value(table.rows[static_cast<std::size_t>(rank)]);
    sum += one;
    most = std::max(most, one);
  }
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f, %.*f", digits, sum / ranks, digits, most);
  return text.data();
}

bool measure(int ranks) {
  void* const memory = mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Table& table = *new (memory) Table{};
  std::vector<pid_t> pids;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      try {
        Rank(table, rank, ranks).run();
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        table.failed = true;
      }
      _exit(0);
    }
    pids.push_back(pid);
  }
  for (const pid_t pid : pids) waitpid(pid, nullptr, 0);
  const auto of = [&](int digits, auto&& value) { return spread(table, ranks, digits, value); };
  const double nodes = (ranks + kPerNode - 1) / kPerNode;
  // every leader exchanges its part of the sum with each other leader, twice: once to be combined, once as the result
  const double model_mib = 2 * (nodes - 1) / nodes * kLargeBytes / (1U << 20U);
  std::printf(
      "| %d on %.0f | %s | %.0f | %s | %d | %s | %.2f | %s | %s |\n", ranks, nodes,
      of(1, [](const Row& row) { return row.after[1].connections; }).c_str(), nodes - 1,
      ranks > kMostOfAllToAll ? "-" : of(1, [](const Row& row) { return row.after[2].connections; }).c_str(),
      std::max(ranks - kPerNode, 0),
      of(2, [](const Row& row) { return (row.after[1].sent_bytes - row.after[0].sent_bytes) / (1U << 20U); }).c_str(),
      model_mib, of(1, [](const Row& row) { return row.shared_kib / 1024; }).c_str(),
      of(1, [](const Row& row) { return row.own_kib / 1024; }).c_str());
  std::fflush(stdout);
  const bool good = !table.failed;
  munmap(memory, sizeof(Table));
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;  // all_to_all needs a connection to each rank of other nodes
  setrlimit(RLIMIT_NOFILE, &files);
  std::vector<int> worlds{8, 32, 64, 128, 256, 512};
  if (argc > 1) worlds.clear();
  for (int i = 1; i < argc; ++i) worlds.push_back(std::clamp(std::atoi(argv[i]), 1, static_cast<int>(kMostRanks)));
  std::printf(
      "| ranks on nodes | connections after all_reduce | model, leaders | after all_to_all | model | MiB sent, "
      "all_reduce "
      "of 1 MiB | model, leaders | MiB shared, share | MiB in all, share |\n"
      "|:--|--:|--:|--:|--:|--:|--:|--:|--:|\n");
  for (const int ranks : worlds) {
    if (!measure(ranks)) return 1;
  }
  return 0;
}
