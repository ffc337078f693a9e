// One attempt's ranks as the PMIx server knows them. Every attempt has a namespace of its own: after an unclean end,
// libpmix counts a reused one wrongly, and late messages of old ranks could be taken for those of new ones.
#pragma once

#include <string>
#include <vector>

#include "pmix_server/pmix_server.hpp"
#include "workers/worker_environment.hpp"

namespace ddp::launcher {

/// One node of the job: its ranks are consecutive.
struct NodeShape {
  std::string host;
  int num_ranks;
};

struct JobShape {
  std::string name_space;          ///< at most 255 bytes
  std::vector<NodeShape> nodes{};  ///< by node rank; rank 0 is the first of nodes[0]
  int node_rank;                   ///< this node: only its ranks may connect here
};

/// A new name, "ddp.<host>.<pid>.<128 random bits>.<attempt>". Who knows it may connect to the PMIx servers.
std::string make_namespace_name(const std::string& host, int attempt);

/// Registered from construction to destruction. All local ranks are registered at once, so they may be forked
/// afterwards.
class JobNamespace {
 public:
  /// @p server must outlive the object. Throws Error(unavailable).
  JobNamespace(PmixServer& server, const JobShape& shape);
  JobNamespace(const JobNamespace&) = delete;
  JobNamespace& operator=(const JobNamespace&) = delete;
  ~JobNamespace();

  const std::string& name() const { return name_; }
  /// What a local rank (given by its global number) needs to reach the server: PMIX_NAMESPACE, PMIX_RANK,
  /// PMIX_SERVER_URI* and more.
  EnvironmentMap client_environment(int rank) const;

 private:
  PmixServer& server_;
  std::string name_;
};

}  // namespace ddp::launcher
