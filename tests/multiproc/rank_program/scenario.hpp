// What a rank of a test job can be told to do. Each scenario checks its own results and throws when something is wrong.
#pragma once

#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include <ddp/ddp.hpp>

namespace ddp::test {

/// A check failed; exit status 1. A ddp::Error that leaves a scenario is printed as "ERROR <code> ranks=<ranks> <text>"
/// and gives exit status 3, so that tests tell the two apart.
class CheckFailed : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void check(bool holds, std::string_view what) {
  if (!holds) throw CheckFailed(std::string(what));
}

using Arguments = std::span<const std::string>;

void print_world(World& world);                        ///< one line of JSON
void print_binding(World& world);                      ///< the processors of this rank, and those it was placed on
void make_traffic(World& world, Arguments arguments);  ///< MIB: one all_reduce of so many MiB
void run_collectives(World& world);                    ///< every operation, type and reduction against a plain loop
void run_subgroups(World& world);                      ///< groups of some ranks, and wrong lists of members
void run_ordering(World& world);                       ///< asynchronous work, issue order, crossing transfers
void run_misuse(World& world);                         ///< wrong arguments are refused before anything is sent
void run_kvs(World& world);                            ///< values of many sizes through the job's store
void make_fewer_stores(World& world);                  ///< the last rank makes one World, the others two
void loop_all_reduce(World& world,
                     Arguments arguments);  ///< SECONDS SIZE [child]: until it fails; with a child process
void hang_on_purpose(World& world, Arguments arguments);       ///< sleep|stop|spin|elsewhere RANK
void call_differently(World& world, Arguments arguments);      ///< size|dtype|op|root|kind|order|absent RANK SECONDS
void exchange_differently(World& world, Arguments arguments);  ///< message|rows|nothing RANK SECONDS
void differ_in_parameters(
    World& world,
    Arguments arguments);        ///< count|shape|dtype|name|gradient|strides|requires|option RANK: Reducer must refuse
void run_reducer(World& world);  ///< buckets, order, stats, misuse
void take_steps(World& world, Arguments arguments);             ///< SECONDS: steps whose last rank is the straggler
void fail_in_reducer(World& world, Arguments arguments);        ///< PHASE RANK SIGNAL: the rank gets it there
void miss_a_gradient(World& world);                             ///< all ranks must name it, and go on
void run_comm_hooks(World& world);                              ///< each against a reference in double precision
void lose_a_rank_in_a_hook(World& world, Arguments arguments);  ///< HOOK: hooks must not keep anything of that step
void train_exactly(World& world);                               ///< prints "EXACT <hash of the replica's bits>"
void train_on_uneven_inputs(World& world);                      ///< ranks with different numbers of steps
void train_in_all_modes(World& world);                          ///< equals one process with the whole batch
void keep_in_memory(World& world, Arguments arguments);         ///< FOLDER whole|shards: saves and waits, or restores
void save_checkpoints(World& world, Arguments arguments);       ///< FOLDER STEPS [VICTIM]: goes on from what is there
void fill_the_disk(World& world, Arguments arguments);          ///< FOLDER: in the midst of a save

}  // namespace ddp::test
