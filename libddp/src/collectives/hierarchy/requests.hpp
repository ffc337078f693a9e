// What a hierarchical backend lends its group: started collectives, and sends and receives.
#pragma once

#include "collectives/hierarchy/hierarchical_backend.hpp"

namespace ddp::collectives::hierarchy {

/// Collectives that start as one: their tasks follow one another.
class HierarchicalBackend::Collectives final : public Request {
 public:
  explicit Collectives(HierarchicalBackend& backend) : backend_(backend) {}

  Request& begin(std::span<const Operation> operations, Deadline deadline);
  bool idle() const { return !used_; }

  void post() noexcept override;
  Outcome poll() noexcept override;
  Failure failure() const override { return backend_.failure_; }
  void release() noexcept override;

 private:
  HierarchicalBackend& backend_;
  std::vector<std::unique_ptr<Task>> tasks_;  ///< the first count_ are used
  std::size_t count_ = 0;
  bool used_ = false;
};

/// Sends and receives that start as one: some by the inner part, some by the flat one.
class HierarchicalBackend::Messages final : public Request {
 public:
  explicit Messages(HierarchicalBackend& backend) : backend_(backend) {}

  Request& begin(std::span<const Operation> operations, Deadline deadline);
  bool idle() const { return !used_; }

  void post() noexcept override;
  Outcome poll() noexcept override;
  Failure failure() const override;
  bool waits(std::size_t operation) const noexcept override;
  void release() noexcept override;
  /// Lets the parts see what has come, before they are ended.
  void look() noexcept;

 private:
  struct Share {
    Lane lane;
    std::vector<Operation> operations{};  ///< with ranks of the part
    Request* request = nullptr;           ///< null: none, or over
    std::vector<bool> late{};             ///< by operation: whether it waited when the time ran out
  };
  void end(Share& share);

  HierarchicalBackend& backend_;
  std::array<Share, 2> shares_{Share{.lane = Lane::inner}, Share{.lane = Lane::flat}};
  /// Of each operation: its share, and where in that.
  std::vector<std::pair<std::size_t, std::size_t>> places_;
  bool refused_ = false;  ///< the program uses the hierarchy's own tag
  bool broken_ = false;   ///< a share has failed
  bool used_ = false;
};

/// One of @p requests that is not lent, or a new one.
template <class Each>
Each& take_idle(std::vector<std::unique_ptr<Each>>& requests, HierarchicalBackend& backend) {
  for (const auto& each : requests) {
    if (each->idle()) return *each;
  }
  return *requests.emplace_back(std::make_unique<Each>(backend));
}

}  // namespace ddp::collectives::hierarchy
