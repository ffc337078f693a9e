// The environment of one rank, as far as it matters for training: values, where they came from, whether they are read,
// and what is wrong with them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/diagnostics.hpp>

#include "base/library_search.hpp"
#include "base/nccl_conf.hpp"
#include "diagnostics/environment/nccl_file.hpp"

namespace ddp::diagnostics {

using Variables = std::map<std::string, std::string, std::less<>>;

/// What a process has, before it is judged.
struct EnvironmentSource {
  Variables now;
  std::optional<Variables> at_exec{};  ///< as the program was started; nothing: the process has overwritten it
  NcclFile nccl{};
  std::vector<base::NcclConf> files{};  ///< that NCCL reads or would read, the strongest first

  /// Of this process. @p nccl_path a library to use in place of the one that would be loaded; empty: that.
  /// @param surroundings by which the one that would be loaded is found: another program's, where this process is about
  /// to become that or is asked about it
  static EnvironmentSource process(const std::string& nccl_path = {},
                                   const base::NcclSurroundings& surroundings = base::NcclSurroundings::process());
  /// Of another process of this user, by what it was started with. Throws Error(system).
  static EnvironmentSource of_process(int pid, const std::string& nccl_path = {});
};

/// "A=1\0B=2\0" as in /proc/PID/environ. What is no assignment is left out; of equal names the first counts, as in
/// getenv.
Variables parse_environ(std::string_view block);

struct RankVariable {
  std::string name;
  std::string value;           ///< to be shown
  std::string origin;          ///< "environment", "/etc/nccl.conf", "changed after the start, from 'x'"
  std::optional<bool> read{};  ///< by the NCCL of this rank; nothing: not a question

  friend bool operator==(const RankVariable&, const RankVariable&) = default;
};

struct RankFile {
  std::string path;
  std::uint64_t digest = 0;

  friend bool operator==(const RankFile&, const RankFile&) = default;
};

struct RankEnvironment {
  int rank = 0;
  std::string host;
  EnvironmentReport::Library nccl{};  ///< without ranks
  std::vector<RankFile> files{};
  std::vector<RankVariable> variables{};       ///< by name
  std::vector<EnvironmentFinding> findings{};  ///< without ranks

  friend bool operator==(const RankEnvironment&, const RankEnvironment&) = default;
};

/// @param all also variables that have nothing to do with training
RankEnvironment describe(const EnvironmentSource& source, int rank, const std::string& host, bool all);

/// What is wrong with the variables of one process.
std::vector<EnvironmentFinding> judge(const Variables& values, const NcclFile& nccl);

}  // namespace ddp::diagnostics
