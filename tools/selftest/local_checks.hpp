// ddp-selftest --local: whether what users start is installed on this node, without a job.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "selftest/verdict.hpp"

namespace ddp::selftest {

struct LocalResult {
  Verdict verdict = Verdict::pass;
  std::string check;  ///< "plugin"
  std::string text;   ///< what was found, or what is wrong
};

/// @param expect_plugin fail where the plugin for srun is not configured. @param program of this process, beside which
/// the installation is.
std::vector<LocalResult> check_this_node(bool expect_plugin, const std::filesystem::path& program);

/// "HOST  FAIL  plugin    TEXT", a line each.
std::string format_local(const std::string& host, const std::vector<LocalResult>& results);

}  // namespace ddp::selftest
