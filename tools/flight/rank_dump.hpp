// What one rank's flight recorder has written: the calls of its process, and what it knew of its groups. And the dumps
// of one job, out of a folder that may have other files, damaged ones and those of other jobs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/operation.hpp>

namespace ddp::tools::flight {

enum class CallState : std::uint8_t { queued, started, done, failed };

/// One operation that a rank has called. Times are nanoseconds since 1970 by that host's clock; 0: not yet.
struct Call {
  std::uint64_t number = 0;  ///< among all of the process
  std::size_t group = 0;     ///< in RankDump::groups
  OperationKind kind = OperationKind::barrier;
  std::uint64_t sequence = 0;  ///< among the collectives, or the transfers, of the group
  DType dtype = DType::float32;
  std::uint64_t count = 0;
  ReduceOp reduce_op = ReduceOp::sum;
  int root = -1;
  std::uint32_t tag = 0;
  std::uint64_t fingerprint = 0;
  CallState state = CallState::queued;
  std::int64_t queued_ns = 0;
  std::int64_t started_ns = 0;
  std::int64_t finished_ns = 0;
  std::string label;

  bool is_transfer() const { return kind == OperationKind::send || kind == OperationKind::recv; }
  bool unfinished() const { return state != CallState::done; }
  /// "all_reduce #17 of float32 x 1000, avg", with the label if there is one.
  std::string description() const;
};

struct RankDump {
  struct Group {
    std::string name;
    int rank = 0;                   ///< own, in the group
    std::vector<int> ranks;         ///< of each member in the world
    std::uint64_t last_queued = 0;  ///< sequence of the last collective; 0: none
  };

  std::string file;  ///< that it was read from
  std::string job;
  int attempt = 0;
  int rank = 0;  ///< in the world
  std::string host;
  std::string reason;
  std::vector<int> lost;  ///< ranks that the group's error calls lost
  std::int64_t begun_ns = 0;
  std::int64_t written_ns = 0;
  std::vector<Group> groups;
  std::vector<Call> calls;  ///< by number
};

/// Throws Error(protocol), whose cause says what is wrong: no JSON, no dump of libddp, or a part that is missing or
/// senseless. @param file for messages.
RankDump parse_rank_dump(std::string_view text, const std::string& file);

struct DumpFolder {
  std::string job;                      ///< "job17.0"; with ", attempt 1" after a restart
  std::vector<RankDump> dumps{};        ///< by rank, one of each
  std::vector<std::string> left_out{};  ///< what was not used, and why: a line each
};

/// Reads all *.json in @p path. Of several jobs the one that wrote last is meant. Throws Error: system where the folder
/// cannot be read, not_found where it has no dump.
DumpFolder read_dump_folder(const std::string& path);

/// What belongs to one job, of all dumps that were read.
DumpFolder choose_job(std::vector<RankDump> dumps);

}  // namespace ddp::tools::flight
