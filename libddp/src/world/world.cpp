#include <ddp/world.hpp>

#include <cerrno>
#include <cstdlib>
#include <exception>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "diagnostics/environment/environment_dump.hpp"
#include "world/world_state.hpp"

namespace ddp {

World::World(std::unique_ptr<WorldState> state) : state_(std::move(state)) {}
World::World(World&&) noexcept = default;
World& World::operator=(World&&) noexcept = default;
World::~World() = default;

World World::init(const InitOptions& options) { return World(std::make_unique<WorldState>(options)); }

int World::rank() const noexcept { return state_->rank; }
int World::world_size() const noexcept { return state_->world_size; }
int World::local_rank() const noexcept { return state_->nodes.local_rank_of(rank()); }
int World::local_world_size() const noexcept { return static_cast<int>(state_->nodes.ranks_on(node_rank()).size()); }
int World::node_rank() const noexcept { return state_->nodes.node_of(rank()); }
int World::num_nodes() const noexcept { return state_->nodes.num_nodes(); }
int World::node_of(int other) const {
  state_->check_rank(other);
  return state_->nodes.node_of(other);
}
int World::local_rank_of(int other) const {
  state_->check_rank(other);
  return state_->nodes.local_rank_of(other);
}
const std::vector<int>& World::ranks_on_node(int node) const {
  if (node >= 0 && node < num_nodes()) return state_->nodes.ranks_on(node);
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = "asking about a node of the job",
               .cause = "there is no node " + std::to_string(node) + " of " + std::to_string(num_nodes())}};
}
const std::string& World::hostname(int other) { return state_->record(other).hostname; }

LaunchSource World::source() const noexcept { return state_->source; }
const std::string& World::source_reason() const noexcept { return state_->source_reason; }
const std::string& World::interface_name() const noexcept { return state_->interface.name; }
const std::string& World::interface_address() const noexcept { return state_->interface.address; }
const std::string& World::interface_reason() const noexcept { return state_->interface.reason; }

const std::optional<Placement>& World::placement() const noexcept { return state_->placement; }
const std::optional<RankDevice>& World::device() const { return state_->device(); }
const std::vector<EnvironmentSetting>& World::settings() const noexcept { return state_->settings; }
void World::export_settings() const {
  for (const EnvironmentSetting& setting : settings()) {
    if (::setenv(setting.name.c_str(), setting.value.c_str(), 0) == 0) continue;
    throw base::system_error("setting the environment variable " + setting.name, errno);
  }
}

void World::dump_environment(const std::string& destination) {
  const auto report = EnvironmentReport::gather(state_->store(), Deadline::after(state_->timeout()));
  if (report) diagnostics::write_report(*report, destination);
}

KeyValueStore& World::key_value_store() { return state_->store(); }
void World::leave_session() noexcept {
  try {
    state_->secret();
  } catch (const std::exception&) {  // left already, or the service is broken: job_secret() says so
  }
  state_->leave_session();
}

}  // namespace ddp
