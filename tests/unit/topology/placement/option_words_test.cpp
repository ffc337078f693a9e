#include "topology/placement/option_words.hpp"

#include <ddp/error.hpp>

#include "unit/kvs/rank_threads.hpp"

namespace ddp::topology {
namespace {

TEST(OptionWords, AreReadBack) {
  for (const BindPolicy policy : {BindPolicy::numa, BindPolicy::core, BindPolicy::socket, BindPolicy::none}) {
    EXPECT_EQ(parse_bind_policy(to_string(policy)), policy);
  }
  for (const GpuVisibility visibility : {GpuVisibility::all, GpuVisibility::one, GpuVisibility::none}) {
    EXPECT_EQ(read_gpu_visibility({}, to_string(visibility)), visibility);
  }
  EXPECT_EQ(to_string(BindPolicy::socket), "socket");
  EXPECT_EQ(to_string(GpuVisibility::one), "one");
}

TEST(OptionWords, OthersAreRefusedWithTheAcceptedOnes) {
  for (const std::string word : {"", "NUMA", "cores", "numa "}) {
    const auto error = ddp::test::error_of([&] { read_bind_policy("reading --bind", word); });
    ASSERT_TRUE(error) << word;
    EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
    EXPECT_EQ(error->attempted(), "reading --bind");
    EXPECT_EQ(error->cause(), "'" + word + "' is not one of numa, core, socket, none");
    EXPECT_EQ(error->hint(), word.empty() ? "" : word == "cores" ? "did you mean 'core'?" : "did you mean 'numa'?");
  }
  const Error error = ddp::test::thrown_by([] { read_gpu_visibility("reading --gpus", "All"); });
  EXPECT_THAT(error.what(), AllOf(HasSubstr("'All'"), HasSubstr("all, one, none"), HasSubstr("did you mean 'all'?")));
}

TEST(OptionWords, VariablesGiveDefaults) {
  EXPECT_EQ(bind_policy_of(base::Environment{{}}), std::nullopt);
  EXPECT_EQ(bind_policy_of(base::Environment{{{"DDP_BIND", ""}}}), std::nullopt) << "empty is unset";
  EXPECT_EQ(bind_policy_of(base::Environment{{{"DDP_BIND", "none"}}}), BindPolicy::none);
  EXPECT_EQ(gpu_visibility_of(base::Environment{{{"DDP_GPUS", ""}}}), GpuVisibility::all);
  EXPECT_EQ(gpu_visibility_of(base::Environment{{{"DDP_GPUS", "one"}}}), GpuVisibility::one);
}

TEST(OptionWords, AWrongVariableIsNamed) {
  const Error bind = ddp::test::thrown_by([] { bind_policy_of(base::Environment{{{"DDP_BIND", "nuna"}}}); });
  EXPECT_THAT(bind.what(), AllOf(HasSubstr("DDP_BIND"), HasSubstr("'nuna'"), HasSubstr("did you mean 'numa'?")));
  const Error gpus = ddp::test::thrown_by([] { gpu_visibility_of(base::Environment{{{"DDP_GPUS", "some"}}}); });
  EXPECT_THAT(gpus.what(), AllOf(HasSubstr("DDP_GPUS"), HasSubstr("'some'")));
}

}  // namespace
}  // namespace ddp::topology
