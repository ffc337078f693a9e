// A torch.distributed store for the ranks of a World only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ddp/deadline.hpp>

namespace ddp {

class World;

/// Where the ranks of a World find a c10d TCPStore: the one that their launcher serves (torchrun, ddprun, `srun
/// --ddp`), else one of their own, which threads of rank 0 serve until its object is destroyed.
///
/// Rank 0 serves processes of the job's user only: the kernels report the user of each connection. On another node the
/// first rank asks its kernel, in a thread of its own, until its object is destroyed; after that, new connections from
/// that node are refused, and existing ones stay. One line on rank 0's standard error names who was refused. What
/// clients send is not encrypted. In a forked child an object does nothing.
class TorchStore {
 public:
  /// Collective over the ranks of @p world, whose key-value store it uses; the World may be destroyed before the
  /// object. Throws Error: unavailable (rank 0 cannot serve, or not this node), conflict (rank 0 has a launcher's
  /// store, this rank has none), and what the key-value store throws.
  TorchStore(World& world, Deadline deadline);
  TorchStore(TorchStore&&) noexcept;             ///< @p other serves no longer
  TorchStore& operator=(TorchStore&&) noexcept;  ///< likewise
  ~TorchStore();

  const std::string& address() const noexcept;  ///< host name or numeric address, as this rank reaches it
  std::uint16_t port() const noexcept;          ///< of address()
  bool of_launcher() const noexcept;            ///< a launcher serves it: others may keep values there, too
  /// Prefix of the keys that the World's ranks use; different for each object of one process, equal on all ranks.
  const std::string& prefix() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp
