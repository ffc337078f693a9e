// The command line of `ddp-info flight`.
#include "flight/options.hpp"

#include <gmock/gmock.h>

#include <vector>

#include "command/usage_error.hpp"

namespace ddp::tools::flight {
namespace {

FlightOptions parse(const std::vector<std::string>& words) { return parse_flight_options(words); }

std::string problem(const std::vector<std::string>& words) {
  try {
    parse(words);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "nothing";
}

TEST(FlightOptions, AreAFolderAndFlags) {
  EXPECT_EQ(parse({"dir"}).folder, "dir");
  EXPECT_FALSE(parse({"dir"}).json);
  EXPECT_TRUE(parse({"--js", "dir"}).json);
  EXPECT_TRUE(parse({"dir", "--json"}).json);
  EXPECT_TRUE(parse({"-h"}).help);
  EXPECT_TRUE(parse({"--help"}).help);
  EXPECT_EQ(parse({"--", "--json"}).folder, "--json");
}

TEST(FlightOptions, MistakesAreNamed) {
  using testing::HasSubstr;
  EXPECT_THAT(problem({}), HasSubstr("no folder is given"));
  EXPECT_THAT(problem({""}), HasSubstr("no folder is given"));
  EXPECT_THAT(problem({"a", "b"}), HasSubstr("'b' is one folder too many"));
  EXPECT_THAT(problem({"a", "--jsn"}), HasSubstr("did you mean '--json'?"));
  EXPECT_THAT(problem({"a", "--json=yes"}), HasSubstr("option '--json' takes no value"));
}

}  // namespace
}  // namespace ddp::tools::flight
