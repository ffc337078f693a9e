// A job over several nodes on one host: each node is a process with ddprun's PMIx server and real clients, and the test
// is the coordinator between them, which can hold answers back, spoil them, and kill ranks.
#pragma once

#include <sys/types.h>

#include <ddp/bytes.hpp>
#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"
#include "coordinator/absence_inquiries.hpp"
#include "pmix_server/job_namespace.hpp"

namespace ddp::test {

/// What nodes and coordinator tell each other.
struct NodeMessage {
  enum class Kind : std::uint8_t {
    fence,       ///< from a node: id, ranks, data
    call,        ///< from a node: id, rank
    found,       ///< from a node, to `fetch`: id, status, data
    rank_ended,  ///< from a node: rank, exit code or minus the signal as status, output as data
    absence,     ///< both ways: a control::FindAbsent or AbsentFound, encoded as data
    failed,      ///< from a node: what was thrown, as data
    answer,      ///< to a node, to `fence` and `call`: id, status, data
    fetch,       ///< to a node: id, rank
    signal,      ///< to a node: rank, signal number as status
    over,        ///< to a node: the attempt is over, status for all that is open
    quit         ///< to a node: take down namespace and server; status 1: clients have died
  };
  Kind kind = Kind::quit;
  std::uint64_t id = 0;
  int rank = 0;
  int status = 0;
  std::vector<int> ranks{};
  Bytes data{};
};

struct RankEnd {
  bool ended = false;
  int exit_code = -1;
  int signal = 0;
  std::string output;
};

/// Not thread-safe. Nodes, and with them their ranks, are killed in the destructor.
class PmixNodes {
 public:
  /// @param node_names what clients are told to expect (TEST_NODE_NAMES).
  PmixNodes(std::vector<launcher::NodeShape> nodes, const std::string& node_names,
            const std::vector<std::string>& command, const std::vector<std::string>& extra_environment = {});
  PmixNodes& operator=(PmixNodes&&) = delete;
  ~PmixNodes();

  // What the coordinator does; to be set before the first run_until().
  int fence_status = 0;      ///< of all answers to fences
  bool hold_fences = false;  ///< answers wait until release_fences()
  bool hold_calls = false;   ///< questions are not passed on
  std::function<void(const NodeMessage&, int node)> observe = [](const NodeMessage&, int) {};

  /// Relays until @p condition holds; false at the deadline.
  bool run_until(const std::function<bool()>& condition, Deadline deadline);
  void release_fences();
  void signal(int rank, int number);
  /// The attempt is over on all nodes: what is open ends with @p status.
  void end_attempt(int status);
  void send(int node, const NodeMessage& message);

  bool all_ended() const;
  int num_ranks() const { return static_cast<int>(ranks_.size()); }
  const RankEnd& rank(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  int node_of(int rank) const { return node_of_[static_cast<std::size_t>(rank)]; }
  std::size_t fences() const { return fences_; }  ///< upcalls of all nodes together
  std::size_t calls() const { return calls_; }
  std::size_t absences() const { return absences_; }         ///< messages about absent ranks, both ways
  const std::string& failures() const { return failures_; }  ///< of the node processes

  /// Lets the nodes take down their servers. Returns what went wrong; empty if nothing did.
  std::string take_down(Deadline deadline);

 private:
  struct Node {
    pid_t pid = -1;
    base::UniqueFd socket;
    Bytes received{};
  };
  /// The nodes' contributions to fences of the same ranks, in the order in which they were made.
  using Contributions = std::vector<std::vector<NodeMessage>>;

  void receive(int node);
  void handle(int node, NodeMessage message);
  void complete_fences(const std::vector<int>& ranks);
  void send_absences(const launcher::AbsenceInquiries::Outgoing& outgoing);
  void find_absent(int node, const Bytes& message);

  std::vector<int> node_of_;
  std::vector<Node> nodes_;
  std::vector<RankEnd> ranks_;
  std::map<std::vector<int>, Contributions> open_fences_;
  std::map<std::uint64_t, std::pair<int, std::uint64_t>> open_calls_;  ///< own id: asking node and its id
  std::uint64_t next_call_ = 1;
  std::size_t fences_ = 0;
  std::size_t calls_ = 0;
  std::size_t absences_ = 0;
  std::optional<launcher::AbsenceInquiries> inquiries_;
  std::string failures_;
};

}  // namespace ddp::test
