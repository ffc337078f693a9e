#include "collectives/host/host_backend.hpp"

#include <atomic>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/env_table.hpp"
#include "base/log.hpp"
#include "base/message.hpp"
#include "collectives/backend.hpp"
#include "collectives/hierarchy/hierarchical_backend.hpp"
#include "collectives/host/rank_address.hpp"
#include "collectives/shm/shm_backend.hpp"
#include "collectives/tcp/tcp_backend.hpp"

namespace ddp::collectives::host {
namespace {

// Numbers of the mesh's contexts.
constexpr std::uint16_t kFlat = 0;
constexpr std::uint16_t kOuter = 1;

/// Forwards to what it has chosen.
class HostBackend final : public Backend {
 public:
  HostBackend(const BackendConfig& config, std::string domain, shm::PhaseHook hook, std::uint64_t first_number)
      : config_(config),
        domain_(std::move(domain)),
        hook_(hook),
        first_number_(first_number),
        endpoint_(std::in_place),
        mesh_(tcp::make_mesh(config, first_number)) {}

  const BackendTraits& traits() const noexcept override { return chosen_ ? chosen_->traits() : kCpuTraits; }
  Bytes address() const override {
    const RankAddress own{.domain = domain_,
                          .memory_left = shm::budget_left(),
                          .shared_memory = endpoint_->address(),
                          .tcp = mesh_->address()};
    return base::encode(own);
  }
  void connect(const std::vector<Bytes>& addresses, Deadline deadline) override;
  Request& init(std::span<const Operation> operations, Deadline deadline) override {
    return chosen_->init(operations, deadline);
  }
  void abort() noexcept override {
    aborted_.store(true);
    if (Backend* const backend = connected_.load()) backend->abort();
  }
  void close(Deadline deadline) noexcept override {
    if (chosen_) chosen_->close(deadline);
  }
  void rest(std::chrono::microseconds limit) noexcept override {
    Backend* const backend = connected_.load();
    backend != nullptr ? backend->rest(limit) : Backend::rest(limit);
  }

 private:
  std::unique_ptr<Backend> choose(const std::vector<Bytes>& addresses, Deadline deadline);
  std::unique_ptr<Backend> share_memory(const std::vector<RankAddress>& addresses, const std::vector<int>& members,
                                        Deadline deadline);

  const BackendConfig config_;
  const std::string domain_;
  const shm::PhaseHook hook_;
  const std::uint64_t first_number_;
  std::optional<shm::Endpoint> endpoint_;  ///< until connected
  std::shared_ptr<tcp::TcpMesh> mesh_;     ///< null where nobody needs it
  std::unique_ptr<Backend> chosen_;
  std::atomic<Backend*> connected_{nullptr};
  std::atomic<bool> aborted_{false};
};

void HostBackend::connect(const std::vector<Bytes>& addresses, Deadline deadline) {
  chosen_ = choose(addresses, deadline);
  endpoint_.reset();
  connected_.store(chosen_.get());
  if (aborted_.load()) chosen_->abort();
}

std::unique_ptr<Backend> HostBackend::choose(const std::vector<Bytes>& packed, Deadline deadline) {
  std::vector<RankAddress> addresses;
  std::vector<Bytes> tcp_addresses;
  for (const Bytes& each : packed) {
    addresses.push_back(base::decode<RankAddress>(each));
    tcp_addresses.push_back(addresses.back().tcp);
  }
  const Domains domains = find_domains(addresses, config_.nodes);
  const std::string& reason = domains.reasons[static_cast<std::size_t>(config_.rank)];
  static std::atomic<bool> said{false};  // the same holds for all of a process's groups
  if (!reason.empty() && !said.exchange(true)) {
    base::log(base::LogLevel::warning, "group '{}': {}", config_.group, reason);
  }

  hierarchy::Layout layout(config_.rank, domains.leaders);
  base::log(base::LogLevel::info, "group '{}': {} ranks in {} memory domains; this one shares memory with {} others",
            config_.group, layout.size(), layout.domains(), layout.neighbours() - 1);
  if (layout.domains() == 1) {
    mesh_.reset();
    return share_memory(addresses, layout.members(0), deadline);
  }
  mesh_->connect(tcp_addresses);
  std::vector<int> all(static_cast<std::size_t>(config_.size));
  std::iota(all.begin(), all.end(), 0);
  auto flat = tcp::make_backend(mesh_, kFlat, std::move(all));
  if (layout.domains() == layout.size()) return flat;

  hierarchy::Parts parts;
  parts.flat = std::move(flat);
  if (layout.neighbours() > 1) parts.inner = share_memory(addresses, layout.members(layout.domain()), deadline);
  if (layout.leads()) {
    std::vector<int> leaders;
    for (int domain = 0; domain < layout.domains(); ++domain) leaders.push_back(layout.leader(domain));
    parts.outer = tcp::make_backend(mesh_, kOuter, std::move(leaders));
  }
  parts.tell_domains = [mesh = mesh_](const Failure& failure) { mesh->report(failure.ranks, failure.cause); };
  parts.hook = hook_;
  return std::make_unique<hierarchy::HierarchicalBackend>(std::move(layout), std::move(parts));
}

std::unique_ptr<Backend> HostBackend::share_memory(const std::vector<RankAddress>& addresses,
                                                   const std::vector<int>& members, Deadline deadline) {
  BackendConfig config = config_;
  config.size = static_cast<int>(members.size());
  config.nodes.clear();
  std::vector<Bytes> memory;
  for (std::size_t index = 0; index < members.size(); ++index) {
    if (members[index] == config_.rank) config.rank = static_cast<int>(index);
    memory.push_back(base::encode(addresses[static_cast<std::size_t>(members[index])].shared_memory));
  }
  auto backend = shm::create(config, std::move(*endpoint_), {.first_step = first_number_, .hook = hook_});
  try {
    backend->connect(memory, deadline);
  } catch (const Error& error) {
    ErrorDetail detail = error.detail();
    for (int& rank : detail.ranks) rank = members[static_cast<std::size_t>(rank)];
    throw Error{std::move(detail)};
  }
  return backend;
}

}  // namespace

std::unique_ptr<Backend> create(const BackendConfig& config) {
  return create(config, base::Environment::process().text("DDP_MEMORY_DOMAIN"));
}

std::unique_ptr<Backend> create(const BackendConfig& config, const std::string& domain, shm::PhaseHook hook,
                                std::uint64_t first_number) {
  return std::make_unique<HostBackend>(config, domain, hook, first_number);
}

extern const BackendPlugin kBackend{kBackendVersion, "host", &create};

}  // namespace ddp::collectives::host
