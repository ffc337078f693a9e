#include <ddp/torch_store.hpp>

#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>
#include <ddp/world.hpp>

#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "base/message.hpp"
#include "base/torchrun_environment.hpp"
#include "base/unique_fd.hpp"
#include "store_server/store_server.hpp"
#include "store_server/witness.hpp"
#include "world/world_state.hpp"

namespace ddp {
namespace {

constexpr auto kAttempted = "giving the job's ranks a store of torch.distributed";
/// For a node to become known to the store, once all ranks are there.
constexpr std::chrono::seconds kWitnessLimit{30};

/// What rank 0 says, by which all act.
struct StoreOffer {
  std::string problem{};  ///< why there is no store; empty: there is
  bool of_launcher = false;
  std::string address{};
  std::uint16_t port = 0;
  std::string secret{};  ///< of the nodes' witnesses (store_server::StoreKey); empty: there is one node
};
constexpr auto description(const StoreOffer*) {
  using T = StoreOffer;
  return base::describe({"offer of a store"},
                        base::fields<&T::problem, &T::of_launcher, &T::address, &T::port, &T::secret>());
}

Error failure(ErrorCode code, std::string cause, std::vector<int> ranks, std::string hint) {
  return Error{{.code = code,
                .attempted = kAttempted,
                .cause = std::move(cause),
                .ranks = std::move(ranks),
                .hint = std::move(hint)}};
}

/// Of the launcher of these very ranks; what a rank of another job started has the other's environment.
std::optional<base::TorchrunEnvironment> launchers_store(const WorldState& state) {
  const auto environment = base::Environment::process();
  if (!base::is_torchrun_worker(environment) || !base::has_torchrun_environment(environment)) return std::nullopt;
  auto worker = base::TorchrunEnvironment::read(environment);
  const bool ours = worker.rank == state.rank && worker.world_size == state.world_size;
  return ours && worker.agent_serves_store ? std::optional(std::move(worker)) : std::nullopt;
}

/// Writes a line for each refusal.
class RefusalLog {
 public:
  explicit RefusalLog(const store_server::StoreServer& server)
      : server_(server), thread_(base::start_thread([this] { run(); })) {}
  RefusalLog(const RefusalLog&) = delete;
  RefusalLog& operator=(const RefusalLog&) = delete;
  ~RefusalLog() {
    stop_.ring();
    thread_.join();
  }

 private:
  void run() const noexcept {
    pollfd entries[] = {{.fd = server_.refusals_fd(), .events = POLLIN, .revents = 0},
                        {.fd = stop_.fd(), .events = POLLIN, .revents = 0}};
    while (entries[1].revents == 0) {
      if (::poll(entries, 2, -1) <= 0) continue;
      for (const std::string& line : server_.take_refusals())
        base::log(base::LogLevel::warning, "the job's store {}", line);
    }
  }

  const store_server::StoreServer& server_;
  const base::WakeEvent stop_;
  std::thread thread_;  ///< last: it uses the others
};

}  // namespace

struct TorchStore::Impl {
  StoreOffer offer(WorldState& state);
  void take(WorldState& state, const std::string& key, Deadline deadline);
  void be_witness(WorldState& state, const std::string& key, const store_server::StoreKey& secret, Deadline deadline);

  const pid_t process = ::getpid();
  std::string address;
  std::uint16_t port = 0;
  bool of_launcher = false;
  std::string prefix;
  std::unique_ptr<store_server::StoreServer> server;
  std::unique_ptr<RefusalLog> refusals;
  std::unique_ptr<store_server::Witness> witness;
};

StoreOffer TorchStore::Impl::offer(WorldState& state) {
  try {
    if (launchers_store(state)) return {.of_launcher = true};
    const bool several = state.nodes.num_nodes() > 1;
    store_server::StoreServerOptions options;
    options.listen_addresses = {several ? state.interface.address : "127.0.0.1"};
    if (several) options.key = store_server::StoreKey::make();
    server = std::make_unique<store_server::StoreServer>(options);
    refusals = std::make_unique<RefusalLog>(*server);
    return {.address = options.listen_addresses.front(),
            .port = server->port(),
            .secret = options.key ? options.key->text() : std::string()};
  } catch (const Error& error) {
    return {.problem = error.what()};
  }
}

void TorchStore::Impl::take(WorldState& state, const std::string& key, Deadline deadline) {
  const auto offered = base::decode<StoreOffer>(state.store().get(0, key, deadline));
  if (offered.of_launcher) {
    const auto worker = launchers_store(state);
    if (!worker) {
      throw failure(ErrorCode::conflict,
                    "rank 0 has the store of its launcher in its environment, and this rank does not", {0, state.rank},
                    "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and TORCHELASTIC_* are the launcher's; do not set or "
                    "remove them for some ranks only");
    }
    address = worker->master_address;
    port = worker->master_port;
    of_launcher = true;
    prefix = fmt::format("libddp/{}/{}/", worker->restart_count, key);
    return;
  }
  if (!offered.problem.empty())
    throw failure(ErrorCode::unavailable, fmt::format("rank 0 cannot serve it: {}", offered.problem), {0}, {});
  address = offered.address;
  port = offered.port;
  prefix = fmt::format("libddp/{}/", key);
  if (!offered.secret.empty()) {
    be_witness(state, key + ".node", store_server::StoreKey::parse(offered.secret), deadline);
  }
}

/// Returns when the store knows each node, and throws where it does not know this one.
void TorchStore::Impl::be_witness(WorldState& state, const std::string& key, const store_server::StoreKey& secret,
                                  Deadline deadline) {
  const int node = state.nodes.node_of(state.rank);
  const int speaker = state.nodes.ranks_on(node).front();
  const bool elsewhere = node != state.nodes.node_of(0);
  if (elsewhere && speaker == state.rank) {
    std::string problem;
    try {
      witness = std::make_unique<store_server::Witness>(address, port, secret,
                                                        earlier(deadline, Deadline::after(kWitnessLimit)));
    } catch (const Error& error) {
      problem = error.what();
    }
    state.store().put(key, base::to_bytes(problem));
  }
  state.store().fence(deadline);
  if (!elsewhere) return;
  const std::string problem = base::to_text(state.store().get(speaker, key, deadline));
  if (problem.empty()) return;
  throw failure(ErrorCode::unavailable, fmt::format("rank 0's does not serve this node: {}", problem), {0, speaker},
                "a firewall between the nodes? Ports above 1024 must be open between them; DDP_SOCKET_IFNAME names "
                "another interface; or let ddprun or srun --ddp serve the store");
}

TorchStore::TorchStore(World& world, Deadline deadline) : impl_(std::make_unique<Impl>()) {
  WorldState& state = WorldState::of(world);
  const std::string key = state.key(fmt::format("torch.{}", state.torch_stores++));
  if (state.rank == 0) state.store().put(key, base::encode(impl_->offer(state)));
  state.store().fence(deadline);
  impl_->take(state, key, deadline);
}

TorchStore::TorchStore(TorchStore&&) noexcept = default;
TorchStore& TorchStore::operator=(TorchStore&&) noexcept = default;

TorchStore::~TorchStore() {
  if (impl_ && impl_->process != ::getpid()) static_cast<void>(impl_.release());  // the threads are the parent's
}

const std::string& TorchStore::address() const noexcept { return impl_->address; }
std::uint16_t TorchStore::port() const noexcept { return impl_->port; }
bool TorchStore::of_launcher() const noexcept { return impl_->of_launcher; }
const std::string& TorchStore::prefix() const noexcept { return impl_->prefix; }

}  // namespace ddp
