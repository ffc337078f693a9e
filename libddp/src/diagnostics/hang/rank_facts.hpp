// What is known from outside of one rank of a job: facts without a judgement.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ddp/bytes.hpp>

#include "base/message_fields.hpp"
#include "diagnostics/stacks/stack_gatherer.hpp"
#include "flight/flight_view.hpp"

namespace ddp::diagnostics {

/// Where a rank's calls are known from.
enum class FlightSource : std::uint8_t {
  libddp,        ///< the memory of its flight recorder, where it has any
  torch,         ///< PyTorch's flight recorder, which may be empty
  torch_unread,  ///< nowhere: PyTorch's flight recorder could not be read
};

struct RankFacts {
  int rank = -1;
  int world_size = 0;  ///< 0: unknown
  std::string host;
  pid_t pid = 0;
  std::string program;
  char state = 'X';           ///< of the main thread, as in /proc: R S D T t Z; X: the process is gone
  std::string call;           ///< system call in which the main thread is, by name; empty: none, or not readable
  std::string kernel;         ///< kernel function in which it sleeps; empty: none, or not readable
  double cores = 0;           ///< processors' time of all threads, per second
  bool swaps = false;         ///< pages are read from disk all the time
  bool steady = false;        ///< at the same place at each look
  bool moves = false;         ///< its flight recorder went on between the looks
  bool links_libddp = false;  ///< libddp.so is mapped
  FlightSource flight_source = FlightSource::libddp;
  std::optional<flight::FlightView> flight;
};
constexpr auto description(const RankFacts*) {
  return base::describe(
      {"facts of a rank"},
      base::fields<&RankFacts::rank, &RankFacts::world_size, &RankFacts::host, &RankFacts::pid, &RankFacts::program,
                   &RankFacts::state, &RankFacts::call, &RankFacts::kernel, &RankFacts::cores, &RankFacts::swaps,
                   &RankFacts::steady, &RankFacts::moves, &RankFacts::links_libddp, &RankFacts::flight>(),
      base::fields<&RankFacts::flight_source>(base::kUpTo<FlightSource::torch_unread>));
}

/// What is wrong with a communicator of NCCL, as its RAS says.
struct NcclTrouble {
  std::string text;             ///< "communicator 0xabc of 8 ranks: rank 3 (pid 7 on 10.0.0.2) does not answer"
  std::vector<pid_t> behind{};  ///< processes that others wait for
};
constexpr auto description(const NcclTrouble*) {
  return base::describe({"trouble of NCCL"}, base::fields<&NcclTrouble::text, &NcclTrouble::behind>());
}

/// What the helper of one host found.
struct HostFacts {
  std::string host{};
  std::vector<RankFacts> ranks{};
  std::vector<std::string> notes{};
  std::vector<NcclTrouble> nccl{};  ///< of the whole job, where NCCL answers
  RankStacks stacks{};              ///< where they were asked for
};
constexpr auto description(const HostFacts*) {
  using T = HostFacts;
  return base::describe({"facts of a host", 4}, base::fields<&T::host, &T::ranks, &T::notes, &T::nccl, &T::stacks>());
}

Bytes encode(const HostFacts& facts);
/// Throws Error(protocol).
HostFacts decode_host_facts(std::span<const std::byte> bytes);

}  // namespace ddp::diagnostics
