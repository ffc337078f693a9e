// Job descriptions that make no sense are refused before the library sees them, and namespaces come and go.
#include "pmix_server/job_namespace.hpp"

#include "unit/kvs/rank_threads.hpp"

namespace ddp::launcher {
namespace {

JobShape two_nodes() {
  return {.name_space = "ddp.test",
          .nodes = {{.host = "n0", .num_ranks = 2}, {.host = "n1", .num_ranks = 3}},
          .node_rank = 1};
}

struct Namespaces : testing::Test {
  static void SetUpTestSuite() { server = new PmixServer("/tmp"); }  // the library has one per process
  static void TearDownTestSuite() {
    delete server;
    server = nullptr;
  }
  static PmixServer* server;
};
PmixServer* Namespaces::server = nullptr;

TEST_F(Namespaces, GiveEachLocalRankItsIdentity) {
  const JobNamespace job{*server, two_nodes()};
  EXPECT_EQ(job.name(), "ddp.test");
  for (int rank = 2; rank < 5; ++rank) {
    const EnvironmentMap environment = job.client_environment(rank);
    EXPECT_EQ(environment.at("PMIX_NAMESPACE"), "ddp.test");
    EXPECT_EQ(environment.at("PMIX_RANK"), std::to_string(rank));
  }
}

TEST_F(Namespaces, FollowEachOther) {
  for (int attempt = 0; attempt < 3; ++attempt) {
    JobShape shape = two_nodes();
    shape.name_space = make_namespace_name("host", attempt);
    const JobNamespace job{*server, shape};
    EXPECT_EQ(job.client_environment(2).at("PMIX_NAMESPACE"), shape.name_space);
  }
}

TEST_F(Namespaces, TheEndOfOneCompletesWhatIsOpen) {
  int status = 0;
  {
    const JobNamespace job{*server, two_nodes()};
    server->modex().post_call(
        0, std::nullopt,
        [](pmix_status_t given, const char*, std::size_t, void* status_object, pmix_release_cbfunc_t, void*) {
          *static_cast<int*>(status_object) = given;
        },
        &status);
  }
  EXPECT_EQ(status, PMIX_ERR_JOB_ABORTED);
}

TEST_F(Namespaces, ShapesWithoutSenseAreRefused) {
  const auto refused = [](const JobShape& shape) {
    const auto error = ddp::test::error_of([&] { JobNamespace{*server, shape}; });
    return error && error->code() == ErrorCode::invalid_argument;
  };
  JobShape shape = two_nodes();
  shape.node_rank = 2;
  EXPECT_TRUE(refused(shape));
  shape.node_rank = -1;
  EXPECT_TRUE(refused(shape));
  shape = two_nodes();
  shape.nodes[0].num_ranks = 0;
  EXPECT_TRUE(refused(shape));
  shape = two_nodes();
  shape.nodes.clear();
  EXPECT_TRUE(refused(shape));
  shape = two_nodes();
  shape.name_space = "";
  EXPECT_TRUE(refused(shape));
  shape.name_space = std::string(256, 'x');
  EXPECT_TRUE(refused(shape));
  shape.name_space = std::string(200, 'x');
  EXPECT_FALSE(refused(shape));
}

TEST_F(Namespaces, LargeJobsAreRegistered) {
  JobShape shape{.name_space = "ddp.large", .node_rank = 511};
  for (int node = 0; node < 512; ++node) shape.nodes.push_back({.host = "n" + std::to_string(node), .num_ranks = 8});
  const JobNamespace job{*server, shape};
  EXPECT_EQ(job.client_environment(4095).at("PMIX_RANK"), "4095");
}

}  // namespace
}  // namespace ddp::launcher
