// The command line of ddp-info doctor.
#include "doctor/options.hpp"

#include <gmock/gmock.h>

#include "command/usage_error.hpp"

namespace ddp::tools::doctor {
namespace {

using testing::HasSubstr;

std::string refusal(const std::vector<std::string>& words) {
  try {
    parse_doctor_options(words);
  } catch (const UsageError& error) {
    return error.what();
  }
  return {};
}

TEST(DoctorOptions, ChooseRulesAndWhatCounts) {
  const DoctorOptions all = parse_doctor_options({});
  EXPECT_EQ(all.fail_on, Severity::warning);
  EXPECT_FALSE(all.json || all.no_job || all.help || all.rules);
  const std::vector<std::string> words{"--json",    "--rule", "shm-size,memlock", "--rule=one-core", "--skip=memlock",
                                       "--fail-on", "error"};
  const DoctorOptions some = parse_doctor_options(words);
  EXPECT_TRUE(some.json);
  EXPECT_EQ(some.fail_on, Severity::error);
  std::string wanted;
  for (const Family& family : families()) {
    for (const Rule& rule : family.rules) {
      EXPECT_TRUE(all.wants(rule));
      if (some.wants(rule)) wanted += std::string(rule.id) + " ";
    }
  }
  EXPECT_EQ(wanted, "shm-size one-core ");
  EXPECT_EQ(parse_doctor_options(std::vector<std::string>{"--fail-on=never"}).fail_on, std::nullopt);
  EXPECT_EQ(parse_doctor_options(std::vector<std::string>{"--expl", "iommu"}).explain->id, "iommu");
}

TEST(DoctorOptions, WrongOnesAreRefused) {
  EXPECT_THAT(refusal({"--rule", "shm-sice"}), HasSubstr("did you mean 'shm-size'"));
  EXPECT_THAT(refusal({"--rule="}), HasSubstr("there is no rule ''"));
  EXPECT_THAT(refusal({"--fail-on", "all"}), HasSubstr("'all' is not one of"));
  EXPECT_THAT(refusal({"--json=1"}), HasSubstr("takes no value"));
  EXPECT_THAT(refusal({"--skip"}), HasSubstr("needs a value"));
  EXPECT_THAT(refusal({"n0"}), HasSubstr("is no option"));
}

}  // namespace
}  // namespace ddp::tools::doctor
