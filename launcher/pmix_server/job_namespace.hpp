// One attempt's ranks as the PMIx server knows them. Every attempt has a namespace of its own: after an unclean end,
// libpmix counts a reused one wrongly, and late messages of old ranks could be taken for those of new ones.
#pragma once

#include <string>

#include "pmix_server/pmix_server.hpp"
#include "workers/worker_environment.hpp"

namespace ddp::launcher {

struct JobShape {
  std::string name_space;  ///< at most 255 bytes
  std::string host;
  int num_ranks;  ///< all on this host
};

/// A new, unpredictable name: "ddp.<host>.<pid>.<random>.<attempt>".
std::string make_namespace_name(const std::string& host, int attempt);

/// Registered from construction to destruction. All ranks are registered at once, so they may be forked afterwards.
class JobNamespace {
 public:
  /// @p server must outlive the object. Throws Error(unavailable).
  JobNamespace(PmixServer& server, const JobShape& shape);
  JobNamespace(const JobNamespace&) = delete;
  JobNamespace& operator=(const JobNamespace&) = delete;
  ~JobNamespace();

  const std::string& name() const { return name_; }
  /// What a rank needs to reach the server: PMIX_NAMESPACE, PMIX_RANK, PMIX_SERVER_URI* and more.
  EnvironmentMap client_environment(int rank) const;

 private:
  PmixServer& server_;
  std::string name_;
};

}  // namespace ddp::launcher
