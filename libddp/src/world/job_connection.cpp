#include "world/job_connection.hpp"

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/host_name.hpp"
#include "kvs/memory_store.hpp"
#include "kvs/pmi2_store.hpp"
#include "kvs/pmix_store.hpp"
#include "kvs/tcp_store_client.hpp"
#include "world/inherited_rank.hpp"
#include "world/process_mapping.hpp"

namespace ddp::world {
namespace {

std::optional<NodeMap> node_map_from(const std::optional<std::string>& process_mapping, int world_size) {
  if (world_size == 1) return NodeMap{{0}};
  if (process_mapping) return NodeMap{parse_process_mapping(*process_mapping, world_size)};
  return std::nullopt;
}

void connect_pmix(JobConnection& connection, const base::Environment& environment, Deadline deadline) {
  auto store = std::make_unique<kvs::PmixStore>(std::make_unique<kvs::PmixSession>(environment, deadline));
  const kvs::JobFacts& facts = store->facts();
  connection.nodes = node_map_from(facts.process_mapping, facts.world_size);
  connection.local_rank = facts.local_rank;
  connection.single_node = facts.node_names.size() == 1;
  const std::string self = base::host_name();
  for (const std::string& node : facts.node_names) {
    if (node != self) connection.launch.peer_hosts.push_back(node);
  }
  connection.store = std::move(store);
}

void connect_pmi2(JobConnection& connection, const base::Environment& environment, Deadline deadline) {
  auto store = std::make_unique<kvs::Pmi2Store>(environment.number("PMI_FD").value(), deadline);
  connection.nodes = node_map_from(store->process_mapping(), store->world_size());
  connection.store = std::move(store);
}

void connect_torchrun(JobConnection& connection, Deadline deadline, std::string_view store_name) {
  const base::TorchrunEnvironment& facts = *connection.launch.torchrun;
  connection.local_rank = facts.local_rank;
  connection.node_rank = facts.node_rank;
  connection.single_node = facts.num_nodes == 1;
  try {
    connection.store =
        std::make_unique<kvs::TcpStoreClient>(facts.master_address, facts.master_port, facts.rank, facts.world_size,
                                              fmt::format("{}/{}", store_name, facts.restart_count), deadline);
  } catch (const Error& error) {
    if (facts.agent_serves_store) throw;
    // torch.distributed lets rank 0 serve the store itself when no agent does
    ErrorDetail detail = error.detail();
    detail.hint =
        "nothing serves a store at MASTER_ADDR:MASTER_PORT because no torchrun agent started this process; "
        "start with torchrun, ddprun or srun --mpi=pmix";
    throw Error(std::move(detail));
  }
}

}  // namespace

JobConnection connect_job(const base::Environment& environment, std::optional<LaunchSource> forced, Deadline deadline,
                          std::string_view store_name) {
  if (!forced) {
    const std::string name = environment.text("DDP_LAUNCH");
    for (const LaunchSource source : {LaunchSource::pmix, LaunchSource::pmi2, LaunchSource::torchrun,
                                      LaunchSource::openmpi, LaunchSource::slurm, LaunchSource::single}) {
      if (name == to_string(source)) forced = source;
    }
  }
  JobConnection connection;
  connection.launch = detect_launch(environment, forced);
  refuse_inherited_rank(environment, connection.launch.source);
  switch (connection.launch.source) {
    case LaunchSource::pmix: connect_pmix(connection, environment, deadline); break;
    case LaunchSource::pmi2: connect_pmi2(connection, environment, deadline); break;
    case LaunchSource::torchrun: connect_torchrun(connection, deadline, store_name); break;
    case LaunchSource::openmpi:
    case LaunchSource::slurm:
    case LaunchSource::single:
      connection.store = std::make_unique<kvs::MemoryStore>(std::make_shared<kvs::MemoryHub>(1), 0);
      break;
  }
  if (connection.store->world_size() == 1) connection.nodes = NodeMap{{0}};
  if (connection.nodes && connection.nodes->num_nodes() == 1) connection.single_node = true;
  try {
    check_agreement(connection.launch, connection.store->transport(), connection.store->rank(),
                    connection.store->world_size());
  } catch (...) {
    connection.store->close();
    throw;
  }
  return connection;
}

}  // namespace ddp::world
