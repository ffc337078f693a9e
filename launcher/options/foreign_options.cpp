#include "options/foreign_options.hpp"

#include <algorithm>
#include <array>

namespace ddp::launcher {
namespace {

struct ForeignOption {
  std::string_view name;
  std::string_view hint;
};

constexpr std::string_view kTotal =
    "ddprun counts the ranks of a node: --nproc-per-node N, or -H n0:2,n1:2 for each host";
constexpr std::string_view kPerNode = "it is --nproc-per-node here";
constexpr std::string_view kNodes = "it is --nnodes here";
constexpr std::string_view kEnvironment =
    "ddprun hands on the whole environment: 'env NAME=VALUE ddprun ...' sets more";
constexpr std::string_view kHosts = "it is -H (--host) or --hostfile here";
constexpr std::string_view kIdentity = "write --ssh-command 'ssh -i FILE'";
constexpr std::string_view kPlacement = "ddprun places and binds ranks by --bind";

// Of mpirun (Open MPI, MPICH), horovodrun, srun, accelerate and deepspeed.
constexpr std::array kForeign{
    ForeignOption{"-n", kTotal},
    ForeignOption{"-np", kTotal},
    ForeignOption{"-c", kTotal},
    ForeignOption{"--ntasks", kTotal},
    ForeignOption{"--num-proc", kTotal},
    ForeignOption{"--num-processes", kTotal},
    ForeignOption{"-N", "mpirun's is --nproc-per-node here, srun's is --nnodes"},
    ForeignOption{"-npernode", kPerNode},
    ForeignOption{"--npernode", kPerNode},
    ForeignOption{"-ppn", kPerNode},
    ForeignOption{"--ppn", kPerNode},
    ForeignOption{"--ntasks-per-node", kPerNode},
    ForeignOption{"--num-gpus", kPerNode},
    ForeignOption{"--nodes", kNodes},
    ForeignOption{"--num-nodes", kNodes},
    ForeignOption{"--num-machines", kNodes},
    ForeignOption{"--machine-rank", "it is --node-rank here"},
    ForeignOption{"--main-process-ip", "it is --master-addr here"},
    ForeignOption{"--main-process-port", "it is --master-port here"},
    ForeignOption{"-host", kHosts},
    ForeignOption{"-hosts", kHosts},
    ForeignOption{"-hostfile", kHosts},
    ForeignOption{"-machinefile", kHosts},
    ForeignOption{"-f", kHosts},
    ForeignOption{"--include", kHosts},
    ForeignOption{"-x", kEnvironment},
    ForeignOption{"-genv", kEnvironment},
    ForeignOption{"-genvlist", kEnvironment},
    ForeignOption{"--export", kEnvironment},
    ForeignOption{"-p", "it is --ssh-port here"},
    ForeignOption{"-i", kIdentity},
    ForeignOption{"--ssh-identity-file", kIdentity},
    ForeignOption{"--bind-to", kPlacement},
    ForeignOption{"-bind-to", kPlacement},
    ForeignOption{"--map-by", kPlacement},
    ForeignOption{"-map-by", kPlacement},
    ForeignOption{"--cpu-bind", kPlacement},
    ForeignOption{"--oversubscribe", "leave it out: ddprun starts as many ranks as you say"},
    ForeignOption{"--allow-run-as-root", "leave it out: root may start ddprun"},
    ForeignOption{"--tag-output", "it is -t 3 (--tee) here"},
    ForeignOption{"--output-filename", "it is -r 3 --log-dir FOLDER here"},
    ForeignOption{"--start-timeout", "it is --rdzv-conf join_timeout=SECONDS here"},
};

}  // namespace

std::string hint_for_foreign_option(std::string_view name) {
  const auto found = std::find_if(kForeign.begin(), kForeign.end(), [&](const auto& one) { return one.name == name; });
  return found != kForeign.end() ? std::string(found->hint) : std::string{};
}

}  // namespace ddp::launcher
