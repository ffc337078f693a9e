// The job as this process sees it: its rank, how many ranks there are, and where they run.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/key_value_store.hpp>
#include <ddp/placement.hpp>
#include <ddp/rank_device.hpp>

namespace ddp {

class WorldState;

/// Where rank and size come from, in the order in which World::init looks for them.
enum class LaunchSource {
  pmix,      ///< PMIX_NAMESPACE: srun --mpi=pmix, mpirun, ddprun
  pmi2,      ///< PMI_FD and PMI_JOBID: srun --mpi=pmi2
  pmi1,      ///< PMI_FD alone, or PMI_PORT: mpiexec of MPICH and Intel MPI, flux run
  torchrun,  ///< RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT
  openmpi,   ///< OMPI_COMM_WORLD_*: only a single rank, since there is nothing to exchange addresses over
  slurm,     ///< SLURM_PROCID of a step with one task
  single,    ///< none of them: one process alone
};
std::string_view to_string(LaunchSource source) noexcept;  ///< the enumerator's name: "pmix"

/// How World::init() joins the job.
struct InitOptions {
  /// Limit for the rendezvous of all ranks. Default: DDP_INIT_TIMEOUT (120 s).
  std::optional<std::chrono::milliseconds> timeout{};
  /// Take rank and size from this source only. Default: DDP_LAUNCH, else the first one found.
  std::optional<LaunchSource> launch{};
  /// false: leave the launcher's key-value service as soon as the first process group is connected, so that the death
  /// of a peer does not make the launcher kill the whole step (Slurm's mpi/pmix does that to any connected client's
  /// step).
  bool keep_session = true;
};

/// Rank, sizes and node map of the job. Move-only; the destructor leaves the launcher's service.
///
/// Construction is collective: all ranks of the job call init. Facts come from the launcher (PMIx job data, the PMI-2
/// process mapping), never from arithmetic on ranks: uneven and cyclic placements are normal.
/// Thread-safety: const members from any thread; the rest from one thread at a time.
class World {
 public:
  /// Finds how the process was launched, joins the other ranks and exchanges a small endpoint record with each.
  /// Throws Error: invalid_argument (a malformed variable), conflict (two sources disagree; names both values),
  /// unavailable (no launcher service), timeout (names the absent ranks).
  static World init(const InitOptions& options = {});

  World(World&&) noexcept;             ///< @p other may only be destroyed or assigned to
  World& operator=(World&&) noexcept;  ///< leaves this object's job
  ~World();

  int rank() const noexcept;              ///< in the job, from 0
  int world_size() const noexcept;        ///< ranks of the job
  int local_rank() const noexcept;        ///< position among the ranks of this node, by ascending rank
  int local_world_size() const noexcept;  ///< ranks on this node
  int node_rank() const noexcept;         ///< this node's number, in [0, num_nodes()); torch's GROUP_RANK
  int num_nodes() const noexcept;         ///< nodes that have ranks of the job
  int node_of(int rank) const;            ///< node number of any rank
  int local_rank_of(int rank) const;      ///< local rank of any rank
  const std::vector<int>& ranks_on_node(int node) const;  ///< ascending
  /// Host name of any rank. The first call for a foreign rank reads its endpoint record from the key-value
  /// store, within the init timeout.
  const std::string& hostname(int rank);

  LaunchSource source() const noexcept;               ///< where rank and size came from
  const std::string& source_reason() const noexcept;  ///< one sentence: what was found and why it was chosen

  const std::string& interface_name() const noexcept;     ///< "eth0"; how this rank is reached
  const std::string& interface_address() const noexcept;  ///< "10.0.0.7"
  const std::string& interface_reason() const noexcept;   ///< one sentence: why this interface

  /// What World::init has bound this process to; nothing unless DDP_BIND asked for it, and nothing if ddprun has bound
  /// it.
  const std::optional<Placement>& placement() const noexcept;

  /// The CUDA device that this rank should use; nothing without an NVIDIA GPU that it may use. Its UUID shows whether
  /// two ranks mean the same one. Follows what ddprun and srun --ddp arranged (--gpus all, one), what DDP_BIND placed,
  /// or what programs choose that know only their local rank: the device of that number, evenly shared if there are too
  /// few. Needs neither CUDA nor a group. The first call inspects the machine, which takes some 10 ms, and the
  /// environment as it is then. Throws Error(system).
  const std::optional<RankDevice>& device() const;

  /// Variables that suit placement(), by name; empty without one. Leaves out those that were set when init began, and
  /// those that GPU runtimes may have read by then (CUDA_VISIBLE_DEVICES and the like).
  ///
  /// init does not set them: setenv(3) is undefined behaviour while any other thread reads the environment, and only
  /// the program knows its threads. ddprun and srun --ddp set them before the program starts.
  const std::vector<EnvironmentSetting>& settings() const noexcept;

  /// Sets those of settings() that are still unset, with setenv(3). Call it right after init, before the program starts
  /// threads and before NCCL or UCX are used; World's threads do not read the environment meanwhile. The OpenMP runtime
  /// read its variables when the program was loaded: for it, they take effect in child processes only.
  /// Throws Error(system).
  void export_settings() const;

  /// Writes the environment variables of all ranks, where they came from and what is wrong with them, to @p
  /// destination: "stderr" (a table) or a file (JSON). Collective, with one fence; rank 0 writes. DDP_DUMP_ENV does the
  /// same in init. For a report as a value: EnvironmentReport::gather. Throws Error: what the store throws, system
  /// (the file).
  void dump_environment(const std::string& destination);

  /// The job's store, for exchanges before there is a process group.
  /// Keys that begin with "ddp." are libddp's own. Throws unavailable once the session is closed.
  KeyValueStore& key_value_store();

  /// Leaves the launcher's service now (PMIx_Finalize); facts that were read remain available. Idempotent.
  void leave_session() noexcept;

 private:
  friend class WorldState;
  explicit World(std::unique_ptr<WorldState> state);
  std::unique_ptr<WorldState> state_;
};

}  // namespace ddp
