// A process that is one rank of a group over the host backend, and dies or stops at a given point of the group's life;
// and what it reports to the test.
#pragma once

#include "collectives/group_engine.hpp"
#include "collectives/host/host_backend.hpp"
#include "multiproc/broken_send.hpp"
#include "multiproc/fault_exchange.hpp"
#include "support/sanitized.hpp"
#include "world/peer_channel.hpp"

namespace ddp::collectives::testing {

using shm::Phase;
using std::chrono::steady_clock;

inline constexpr int kRanks = 4;
inline constexpr std::uint64_t kFallsIn = 3;  // operation number
/// By this operation the victim has reached its point.
inline constexpr std::uint64_t kFallsBy = 60;

using ::ddp::test::kSanitized;
/// For operations that a stopped rank delays: enough even for starved ranks.
inline constexpr std::chrono::milliseconds kLimit{kSanitized ? 6000 : 3000};
/// Values of an operation in several parts: two or more segments between domains, dozens of blocks within one.
inline constexpr std::size_t kLargeCount = kSanitized ? 150'000 : 300'000;
/// Operations of the survivors' group.
inline constexpr std::uint64_t kLaterOperations = 6;

/// Where the victim dies or stops.
enum class Point {
  before_connecting,  // its address is known
  connecting,         // its leader knows it, but it has no memory yet
  idle,               // between two operations
  before_post,        // called, but not begun
  waiting,            // for a late rank
  before_show,
  before_reduce,
  in_copy_out,
  between_stages,  // of an operation over both parts: one is over, and the next has not begun
  in_transfer,     // half of what it sends over TCP is sent
  polled,          // somewhere in an operation, at a different place in each case
  closing,
  leaves,   // closes the group while the others wait for it, and lives on
  aborts,   // the same in the middle of an operation
  slow,     // lives, and calls nothing
  nowhere,  // the network between the domains is cut
};
/// Operations of a point.
enum class Kinds {
  sums,    ///< all_reduce
  mutual,  ///< those that no rank ends before every other has begun
  bytes,   ///< all that move any
  collectives,
  all,
};
/// A point's name, and how its fault happens.
struct PointRow {
  Point point;
  const char* name;
  Kinds kinds;
  bool killed;   ///< also as SIGKILL
  bool stopped;  ///< also as SIGSTOP
  bool large;    ///< its operations go in several parts
};

struct Case {
  PointRow at;
  int signal;
  int victim;                                                      ///< 0 leads its domain, 3 does not
  int domains;                                                     ///< the ranks are dealt to these in turn
  OperationKind kind = OperationKind::all_reduce;                  ///< as in kExchangeKinds
  int polls = 1;                                                   ///< of Point::polled
  std::array<const char*, 2> addresses{"127.0.0.1", "127.0.0.1"};  ///< of the domains
  milliseconds peer_timeout{30'000};
  std::string name() const {
    return std::string(signal == SIGKILL ? "kill " : "stop ") + at.name + (victim == 0 ? " leader" : " member") +
           (domains == 1        ? " within "
            : domains == kRanks ? " apart "
                                : " between ") +
           std::string(to_string(kind)) + (at.point == Point::polled ? " at poll " + std::to_string(polls) : "");
  }
};

/// What a rank reports to the others and the test, in shared memory.
struct Row {
  struct Address {
    std::array<std::byte, 1024> backend;
    std::size_t backend_bytes;
    std::uint16_t port;
    world::ChannelToken token;
    std::atomic<bool> there;
  };
  std::array<Address, 2> groups;
  ErrorCode code;
  std::array<char, 300> text;
  std::uint32_t blamed;  ///< one bit per rank
  steady_clock::duration at;
  steady_clock::duration called;  ///< the last operation
  std::atomic<int> rounds;
  std::array<char, 300> trouble;
  std::atomic<bool> failed;  ///< the first group has failed, or is closed
};
struct Table {
  std::array<Row, kRanks> rows;
  std::atomic<steady_clock::duration::rep> fell;
};

/// Fails at points that the host backend does not have.
class FallingBackend final : public Backend {
 public:
  FallingBackend(std::unique_ptr<Backend> inner, std::function<void(Point)> pass)
      : inner_(std::move(inner)), pass_(std::move(pass)) {}
  const BackendTraits& traits() const noexcept override { return inner_->traits(); }
  Bytes address() const override { return inner_->address(); }
  void connect(const std::vector<Bytes>& addresses, Deadline deadline) override {
    pass_(Point::before_connecting);
    inner_->connect(addresses, deadline);
  }
  Request& init(std::span<const Operation> operations, Deadline deadline) override {
    pass_(Point::before_post);
    request_.inner = &inner_->init(operations, deadline);
    return request_;
  }
  void abort() noexcept override { inner_->abort(); }
  void close(Deadline deadline) noexcept override {
    pass_(Point::closing);
    inner_->close(deadline);
  }
  void rest(std::chrono::microseconds limit) noexcept override {
    pass_(Point::waiting);
    inner_->rest(limit);
  }

 private:
  /// One suffices: ranks wait for each operation.
  struct FallingRequest final : Request {
    explicit FallingRequest(const std::function<void(Point)>& passes) : pass(passes) {}
    void post() noexcept override { inner->post(); }
    Outcome poll() noexcept override {
      pass(Point::polled);
      return inner->poll();
    }
    Failure failure() const override { return inner->failure(); }
    void release() noexcept override { inner->release(); }
    Request* inner = nullptr;
    const std::function<void(Point)>& pass;
  };

  std::unique_ptr<Backend> inner_;
  const std::function<void(Point)> pass_;
  FallingRequest request_{pass_};
};

/// One rank of one case, as a process of its own.
class Rank {
 public:
  Rank(Table& table, const Case& of, int rank) : table_(table), case_(of), rank_(rank), polls_(of.polls) {
    armed_ = rank == of.victim && (of.at.point == Point::before_connecting || of.at.point == Point::connecting);
  }

  void run() {
    Row& own = table_.rows[static_cast<std::size_t>(rank_)];
    try {
      std::vector<int> all(kRanks);
      for (int rank = 0; rank < kRanks; ++rank) all[static_cast<std::size_t>(rank)] = rank;
      try {
        work(all);
      } catch (const Error& error) {
        own.at = steady_clock::now().time_since_epoch();
        own.code = error.code();
        std::strncpy(own.text.data(), error.what(), own.text.size() - 1);
        for (const int rank : error.ranks()) own.blamed |= 1U << static_cast<unsigned>(rank);
      }
      own.failed = true;
      if (rank_ == case_.victim) return;
      std::erase_if(all, [&](int rank) {
        return rank == case_.victim || (case_.at.point == Point::nowhere && domain(rank) != domain(rank_));
      });
      auto group = join(1, all, Deadline::after(std::chrono::seconds(60)));
      const int place = group->members().rank;
      for (std::uint64_t i = 1; i <= kLaterOperations; ++i) {
        Exchange(case_.kind, i % 2 == 0 ? kLargeCount : 100, place, group->members().size()).run(*group, i);
      }
    } catch (const std::exception& error) {
      std::strncpy(own.trouble.data(), error.what(), own.trouble.size() - 1);
    }
  }

 private:
  int domain(int rank) const { return rank % case_.domains; }
  std::string address(int rank) const { return case_.addresses[static_cast<std::size_t>(domain(rank) % 2)]; }
  bool is_victim() const { return rank_ == case_.victim; }
  bool stops() const { return case_.signal == SIGSTOP; }
  /// Limit of operations and of connecting; for stopped ranks it has to expire.
  milliseconds limit() const { return stops() ? kLimit : milliseconds(60'000); }

  void fall() {
    armed_ = false;
    table_.fell = steady_clock::now().time_since_epoch().count();
    ::kill(::getpid(), case_.signal);
  }
  void pass(Point point) {
    if (!armed_ || point != case_.at.point) return;
    if (point != Point::polled || --polls_ <= 0) fall();
  }

  void work(const std::vector<int>& all) {
    auto group = join(0, all, Deadline::after(limit()));
    const Point point = case_.at.point;
    Row& own = table_.rows[static_cast<std::size_t>(rank_)];
    Exchange exchange(case_.kind, case_.at.large ? kLargeCount : 100, rank_, kRanks);
    if (is_victim() && point == Point::in_transfer) {
      after_half_a_message = [this] { pass(Point::in_transfer); };
    }
    for (std::uint64_t i = 1; point != Point::closing || i <= kFallsIn; ++i) {
      if (is_victim() && i == kFallsIn) {
        armed_ = true;
        pass(Point::idle);
        if (point == Point::slow) {
          table_.fell = steady_clock::now().time_since_epoch().count();
          std::this_thread::sleep_for(limit() * 5 / 4);
        }
        if (point == Point::leaves || point == Point::aborts) {
          table_.fell = steady_clock::now().time_since_epoch().count();
          std::vector<float> values(100);  // the others may have them before this rank leaves
          for (std::size_t place = 0; place < values.size(); ++place) values[place] = Exchange::value(rank_, place);
          if (point == Point::aborts) static_cast<void>(group->submit(sum_of(values), {}));
          group.reset();
          wait_for_others();
          return;
        }
      }
      const bool awaited = point == Point::waiting || point == Point::aborts;
      // repeatedly: a victim that the machine delays for longer waits for no rank
      if (awaited && rank_ == 1 && i % kFallsIn == 0) std::this_thread::sleep_for(milliseconds(200));
      if (is_victim() && point != Point::nowhere && i > kFallsBy)
        throw std::logic_error("it has not come to its point");
      own.called = steady_clock::now().time_since_epoch();
      exchange.run(*group, i);
      ++own.rounds;
    }
    armed_ = is_victim();
    group.reset();
  }

  void wait_for_others() const {
    for (const Row& row : table_.rows) {
      while (&row != &table_.rows[static_cast<std::size_t>(rank_)] && !row.failed) {
        std::this_thread::sleep_for(milliseconds(1));
      }
    }
  }

  /// @param number of the group within the case.
  std::shared_ptr<GroupEngine> join(std::size_t number, const std::vector<int>& ranks, Deadline deadline) {
    const auto place = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
    if (!channel_) channel_ = std::make_shared<world::PeerChannel>(address(rank_));
    GroupMembers members{.name = "group " + std::to_string(number),
                         .rank = static_cast<int>(place),
                         .global_ranks = ranks,
                         .channel = channel_,
                         .peer_timeout = case_.peer_timeout};
    BackendConfig config;
    config.group = members.name;
    config.rank = members.rank;
    config.size = members.size();
    for (const int rank : ranks) config.nodes.push_back(domain(rank));
    members.nodes = config.nodes;
    config.interface_address = address(rank_);
    config.connect_timeout = limit();
    const shm::PhaseHook hook{.call = [](Phase phase, void* rank) { static_cast<Rank*>(rank)->pass(point_of(phase)); },
                              .context = this};
    auto backend = std::make_unique<FallingBackend>(host::create(config, std::to_string(domain(rank_)), hook),
                                                    [this](Point point) { pass(point); });
    publish(number, *backend);
    std::vector<Bytes> addresses;
    for (const int rank : ranks) {
      const Row::Address& theirs = table_.rows[static_cast<std::size_t>(rank)].groups[number];
      while (!theirs.there) std::this_thread::sleep_for(milliseconds(1));
      addresses.emplace_back(theirs.backend.begin(),
                             theirs.backend.begin() + static_cast<std::ptrdiff_t>(theirs.backend_bytes));
      members.endpoints.push_back({.rank = rank, .address = address(rank), .port = theirs.port, .token = theirs.token});
    }
    try {
      backend->connect(addresses, deadline);
    } catch (const Error& error) {  // as for World's group: a backend knows only ranks of the group
      ErrorDetail detail = error.detail();
      for (int& rank : detail.ranks) rank = members.global(rank);
      throw Error{std::move(detail)};
    }
    std::vector<GroupBackend> backends;
    backends.push_back({.name = "host", .backend = std::move(backend)});
    return GroupEngine::make(std::move(members), std::move(backends), ConnectOptions{},
                             number == 0 ? limit() : milliseconds(60'000));
  }

  static Point point_of(Phase phase) {
    switch (phase) {
      case Phase::connecting: return Point::connecting;
      case Phase::before_copy: return Point::before_post;
      case Phase::before_show: return Point::before_show;
      case Phase::before_reduce: return Point::before_reduce;
      case Phase::between_stages: return Point::between_stages;
      default: return Point::in_copy_out;
    }
  }

  void publish(std::size_t number, const Backend& backend) {
    Row::Address& own = table_.rows[static_cast<std::size_t>(rank_)].groups[number];
    const Bytes address = backend.address();
    if (address.size() > own.backend.size()) throw std::length_error("no room for the address");
    std::copy(address.begin(), address.end(), own.backend.begin());
    own.backend_bytes = address.size();
    own.port = channel_->port();
    own.token = channel_->token();
    own.there = true;
  }

  static Operation sum_of(std::vector<float>& values) {
    Operation operation;
    operation.kind = OperationKind::all_reduce;
    operation.count = values.size();
    operation.input = operation.output = values;
    return operation;
  }

  Table& table_;
  const Case case_;
  int rank_;
  std::atomic<bool> armed_;
  std::atomic<int> polls_;  ///< until it dies or stops
  std::shared_ptr<world::PeerChannel> channel_;
};

}  // namespace ddp::collectives::testing
