// Hosts that failed in the same way are named together.
#include "launch/host_failures.hpp"

#include <gmock/gmock.h>

namespace ddp::launcher {
namespace {

TEST(HostFailuresTest, OneLineForAll) {
  const HostFailure one{
      .host = "n1", .cause = "ssh ended with exit code 255: connect to host n1: refused", .hint = "is n1 up?"};
  const HostFailure two{
      .host = "n22", .cause = "ssh ended with exit code 255: connect to host n22: refused", .hint = "is n22 up?"};
  const HostFailure other{.host = "n3", .cause = "it did not join within 60 s", .hint = ""};
  EXPECT_EQ(describe(std::vector{one}),
            "starting ddprun on n1: ssh ended with exit code 255: connect to host n1: refused; is n1 up?");
  EXPECT_EQ(describe(std::vector{one, other, two}),
            "starting ddprun on n1, n22: ssh ended with exit code 255: connect to host n1: refused; is n1 up?; "
            "on n3: it did not join within 60 s");
}

TEST(HostFailuresTest, ManyNamesAreCounted) {
  std::vector<HostFailure> many;
  for (int i = 100; i < 130; ++i) many.push_back({.host = "n" + std::to_string(i), .cause = "down", .hint = ""});
  EXPECT_THAT(describe(many), testing::EndsWith(", n115 and 14 more: down"));
}

}  // namespace
}  // namespace ddp::launcher
