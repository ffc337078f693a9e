// The files from which NCCL takes variables that the environment does not have (NCCL's misc/param.cc): the user's, then
// the node's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/env_table.hpp"

namespace ddp::base {

struct NcclConf {
  std::string path;
  std::uint64_t digest = 0;  ///< of the settings, in order
  std::vector<std::pair<std::string, std::string>> settings;

  friend bool operator==(const NcclConf&, const NcclConf&) = default;
};

inline constexpr const char* kNodeConf = "/etc/nccl.conf";

/// As NCCL reads it: NAME=VALUE, with spaces and quotes as they are; only '#' as the very first character makes a
/// comment.
std::vector<std::pair<std::string, std::string>> parse_nccl_conf(std::string_view text);

/// Those that exist, the strongest first: NCCL_CONF_FILE, else .nccl.conf in @p home; then @p node_file.
/// @param root before these paths, but not in the answer
std::vector<NcclConf> read_nccl_conf(const Environment& environment, const std::string& home,
                                     const std::string& node_file = kNodeConf, const std::string& root = "");

/// HOME, else what the password file says of this process's user; empty: neither.
std::string home_folder(const Environment& environment);

/// What the password file says of this process's user.
std::optional<std::string> home_by_password_file();

struct NcclConfValue {
  const NcclConf* file = nullptr;      ///< nothing: none has the variable
  const std::string* value = nullptr;  ///< in it
};

/// The strongest file's value: of several lines in one file the first counts, since none overwrites.
NcclConfValue value_in(const std::vector<NcclConf>& files, std::string_view name);

}  // namespace ddp::base
