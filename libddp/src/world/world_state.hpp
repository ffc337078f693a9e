// State of a World, for other components of libddp.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ddp/placement.hpp>
#include <ddp/world.hpp>

#include "base/env_table.hpp"
#include "base/running_clock.hpp"
#include "topology/network/interface_agreement.hpp"
#include "topology/network/interface_candidates.hpp"
#include "world/endpoint_record.hpp"
#include "world/job_connection.hpp"
#include "world/peer_channel.hpp"
#include "world/peer_questions.hpp"

namespace ddp {

class WorldState {
 public:
  explicit WorldState(const InitOptions& options);
  /// Of ranks that have met over a store of the program's. Binds nothing; @p ranks: of each in the job, empty: as in
  /// the store.
  WorldState(std::unique_ptr<KeyValueStore> store, std::optional<std::chrono::milliseconds> timeout,
             std::vector<int> ranks);
  WorldState(const WorldState&) = delete;
  WorldState& operator=(const WorldState&) = delete;
  ~WorldState();

  static WorldState& of(const World& world) { return *world.state_; }

  /// The record of any rank; read from the store once.
  const world::EndpointRecord& record(int rank);
  /// The bytes of a rank's record have come by another way than its own key. Throws Error(protocol).
  void learn(int rank, std::span<const std::byte> record);
  /// Throws Error(invalid_argument) unless there is such a rank.
  void check_rank(int other) const;
  /// How any other rank's peer channel is reached.
  world::PeerEndpoint endpoint(int rank);
  /// What messages call a rank.
  int job_rank(int other) const { return ranks_.empty() ? other : ranks_[static_cast<std::size_t>(other)]; }
  /// "ddp.<n>.<name>": a key of libddp's own, different for each World of this process.
  std::string key(std::string_view name) const;
  KeyValueStore& store();
  void leave_session() noexcept;
  /// As job_secret().
  const Bytes& secret();
  std::chrono::milliseconds timeout() const noexcept { return timeout_; }
  std::chrono::milliseconds peer_timeout() const noexcept { return peer_timeout_; }
  bool keep_session() const noexcept { return keep_session_; }
  /// As World::device(). Any thread.
  const std::optional<RankDevice>& device();

  const base::RunningClockGuard running_clock{};  ///< first: the launcher may stop the job while its ranks meet
  int rank = 0;
  int world_size = 1;
  LaunchSource source = LaunchSource::single;
  std::string source_reason;
  world::NodeMap nodes{std::vector<int>{0}};
  topology::SocketInterface interface;
  std::shared_ptr<world::PeerChannel> channel;  ///< null in a world of one
  std::shared_ptr<void> group;                  ///< null until make_process_group(), which knows its type
  std::optional<Placement> placement;           ///< what this process was bound to, if DDP_BIND asked for it
  std::vector<EnvironmentSetting> settings;     ///< as World::settings()
  unsigned torch_stores = 0;                    ///< how many TorchStores were made

 private:
  void read_limits(std::optional<std::chrono::milliseconds> timeout, const base::Environment& environment);
  void wire_up(world::JobConnection connection, const base::Environment& environment, Deadline deadline);
  void put_secret();
  /// DDP_DUMP_ENV on rank 0. A failure is logged: it must not end the job.
  void dump_environments(const std::string& destination, Deadline deadline);
  world::NodeMap node_map_from_records(Deadline deadline);
  topology::CandidateSearch find_interfaces(const base::Environment& environment,
                                            const std::vector<std::string>& peer_hosts, topology::JobSpan span);
  void choose_interface(topology::CandidateSearch search, const base::Environment& environment);
  /// The network that the nodes agree on. The first call reads one record of each node.
  const topology::Agreement& agreement();

  std::chrono::milliseconds timeout_{};
  std::chrono::milliseconds peer_timeout_{};  ///< DDP_PEER_TIMEOUT
  const bool guest_ = false;                  ///< over a store of the program's
  const std::vector<int> ranks_;              ///< a guest's, in the job
  bool keep_session_ = true;
  unsigned generation_ = 0;
  bool session_open_ = false;
  std::unique_ptr<KeyValueStore> store_;
  std::vector<std::optional<world::EndpointRecord>> records_;
  std::optional<topology::Agreement> agreement_;
  Bytes secret_;  ///< empty: not read yet
  std::once_flag device_known_;
  std::optional<RankDevice> device_;
};

}  // namespace ddp
