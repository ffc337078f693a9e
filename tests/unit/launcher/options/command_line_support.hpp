// Reads command lines for the tests of the groups of options.
#pragma once

#include "options/command_line.hpp"
#include "outcome/exit_error.hpp"

namespace ddp::launcher {

using Words = std::vector<std::string>;
using Variables = std::map<std::string, std::string, std::less<>>;

inline LaunchOptions parse(const Words& words, const Variables& variables = {}) {
  return std::get<LaunchOptions>(parse_command_line(words, base::Environment{variables}));
}

/// The error of a command line that is refused, which must be one line and have the exit status of wrong usage.
inline std::string complaint(const Words& words, const Variables& variables = {}) {
  try {
    parse(words, variables);
  } catch (const ExitError& error) {
    EXPECT_EQ(error.exit_status(), kExitUsage);
    EXPECT_THAT(error.what(), testing::Not(testing::HasSubstr("\n")));
    return error.what();
  }
  return "no complaint";
}

}  // namespace ddp::launcher
