// The backends of a group that is being made: one for tensors of CPUs, and one for those of CUDA devices where all of
// its ranks can have it, which they agree on from what each says about itself.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/backend.hpp>

#include "base/message_fields.hpp"
#include "collectives/group_engine.hpp"

namespace ddp::collectives {

/// What the user wants.
struct BackendChoice {
  enum class Cuda { none, if_possible, required };
  std::string cpu;  ///< by name
  Cuda cuda = Cuda::none;
  std::string cuda_name = {};  ///< of the backend for CUDA tensors

  /// @param word of make_process_group or DDP_BACKEND. Throws Error(invalid_argument).
  static BackendChoice of(std::string_view word);
  /// That of a group, for groups of its members.
  static BackendChoice of(const GroupEngine& engine);
};

/// What a rank says of its backends.
struct BackendAddresses {
  Bytes cpu{};
  std::string obstacle{};  ///< why it has none for CUDA tensors; empty: it has, or none is wanted
  Bytes cuda{};
};
constexpr auto description(const BackendAddresses*) {
  return base::describe({"addresses of a rank's backends"},
                        base::fields<&BackendAddresses::cpu, &BackendAddresses::obstacle, &BackendAddresses::cuda>());
}

class GroupBackends {
 public:
  /// Creates them. A CUDA backend that cannot be created is known to all once they are connected.
  /// @param members, @param connect must outlive this object. Throws Error.
  GroupBackends(const BackendChoice& choice, const GroupMembers& members, const ConnectOptions& connect);

  /// What the others need in order to reach this rank's.
  Bytes addresses() const;
  /// @param addresses of each member. Throws Error; conflict if ranks have other versions of libddp, unavailable if
  /// CUDA is required, and some rank cannot have it.
  void connect(const std::vector<Bytes>& addresses, Deadline deadline);

  /// The backend for CUDA tensors, before they are connected; null if this rank has none.
  Backend* cuda() noexcept { return candidate_ ? candidate_->backend.get() : nullptr; }
  /// For a group: its backends, and what its own groups have to know.
  std::vector<GroupBackend> take() { return std::move(backends_); }
  const std::string& why_no_cuda() const noexcept { return why_no_cuda_; }

 private:
  BackendConfig config() const;
  void refuse_other_versions(const std::map<std::string, std::vector<int>>& versions) const;
  void refuse_without_cpu() const;
  void connect_one(GroupBackend& backend, const std::vector<Bytes>& addresses, Deadline deadline) const;
  void connect_cuda(const std::vector<BackendAddresses>& all, Deadline deadline);
  void do_without_cuda(ErrorDetail why, bool surprising);

  std::string cuda_name() const;

  const BackendChoice choice_;
  const GroupMembers& members_;
  const ConnectOptions& connect_;
  std::vector<GroupBackend> backends_;
  std::optional<GroupBackend> candidate_;  ///< for CUDA
  std::string obstacle_;                   ///< why this rank has none
  std::string why_no_cuda_;
};

/// Connects backends of a group that has just been made that do it by their first operation. Throws Error.
void connect_by_barriers(GroupEngine& engine, Deadline deadline);

// ---- Finds backends by name: those built in, then plugins.

/// Whether it is a part of this library. Else it is a plugin, whose calls may do what they should not.
bool is_built_in(std::string_view name) noexcept;

/// A built-in backend; else loads libddp_<name>.so from DDP_BACKEND_PATH, or else from where this library lies, or else
/// from the loader's path.
/// Throws Error: unavailable when there is none or it does not load, mismatch when it is of another version.
const BackendPlugin& load_backend(std::string_view name);

}  // namespace ddp::collectives
