// Interface of the communication libraries that carry process groups. Implementations are plugins: shared objects named
// libddp_<name>.so that export `ddp_backend_plugin`, loaded when a group asks for them by name.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/bytes.hpp>

#include <ddp/operation.hpp>

namespace ddp::collectives {

/// How the ranks of a world connect.
struct ConnectOptions {
  std::string interface_address;              ///< of this rank, numeric
  std::chrono::milliseconds timeout{60'000};  ///< of a single connection
};

/// What a backend is told at creation.
struct BackendConfig {
  int rank = 0;  ///< in the group
  int size = 1;
  ConnectOptions connect;
};

/// A posted send or receive.
class Transfer {
 public:
  virtual ~Transfer() = default;
  /// Returns when the memory may be used again; throws when it fails or the group is aborted.
  virtual void wait(Deadline deadline) = 0;
};

/// One rank's end of a group. All members are called from one thread at a time, except abort().
/// Throws any exception; the group turns it into an Error that names ranks.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual bool serves(DeviceType device) const noexcept = 0;

  /// What the other ranks need in order to connect to this one.
  virtual Bytes address() const = 0;
  /// Connects to all; @p addresses by rank. Called once.
  virtual void connect(const std::vector<Bytes>& addresses, Deadline deadline) = 0;

  /// Executes a collective and returns when its output is complete.
  virtual void run(const Operation& operation, Deadline deadline) = 0;
  /// Posts a send or receive; those with the same peer match in the order in which they are posted.
  virtual std::unique_ptr<Transfer> start(const Operation& operation) = 0;

  /// Makes current and later operations fail soon. From any thread; idempotent.
  virtual void abort() noexcept = 0;
};

/// Changes with this header; a plugin of another version is refused.
inline constexpr int kBackendInterfaceVersion = 2;

struct BackendPlugin {
  int interface_version;
  const char* name;
  std::unique_ptr<Backend> (*create)(const BackendConfig& config);
};

/// Loads libddp_<name>.so from DDP_BACKEND_PATH, or else from where this library lies, or else from the loader's path.
/// Throws Error: unavailable when there is none or it does not load, mismatch when it is of another version.
const BackendPlugin& load_backend(std::string_view name);

/// The backend of groups of one rank: everything is a copy.
std::unique_ptr<Backend> make_local_backend();

}  // namespace ddp::collectives
