// A backend by somebody else (tests/support/example_backend.cpp), found by DDP_BACKEND_PATH: directly, and under
// groups.
#include <ddp/batch.hpp>

#include "collectives/group_backends.hpp"
#include "support/checkout.hpp"
#include "unit/collectives/backend_ranks.hpp"
#include "unit/collectives/checked_call.hpp"
#include "unit/collectives/engine/inline_backend.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp {
namespace {

constexpr int kRanks = 3;

struct ExampleBackend : testing::Test {
  ExampleBackend() { ::setenv("DDP_BACKEND_PATH", ddp::test::built_file("tests/unit/collectives/engine").c_str(), 1); }
  ~ExampleBackend() override { ::unsetenv("DDP_BACKEND_PATH"); }

  /// The same on each rank of a group, on a thread each.
  static void on_group(const std::function<void(ProcessGroup& group)>& body) {
    std::vector<std::unique_ptr<Backend>> backends;
    std::vector<Bytes> addresses;
    for (int rank = 0; rank < kRanks; ++rank) {
      BackendConfig config;
      config.rank = rank;
      config.size = kRanks;
      backends.push_back(collectives::load_backend("example").create(config));
      addresses.push_back(backends.back()->address());
    }
    std::vector<std::unique_ptr<ProcessGroup>> groups;
    for (int rank = 0; rank < kRanks; ++rank) {
      auto& backend = backends[static_cast<std::size_t>(rank)];
      backend->connect(addresses, ddp::test::soon());
      auto members = ddp::test::members_of(kRanks);
      members.rank = rank;
      std::vector<collectives::GroupBackend> its;
      its.push_back({"example", std::move(backend)});
      groups.push_back(std::make_unique<ProcessGroup>(collectives::GroupEngine::make(
          std::move(members), std::move(its), collectives::ConnectOptions{}, std::chrono::seconds(60))));
    }
    ddp::test::run_ranks(kRanks, [&](int rank) { body(*groups[static_cast<std::size_t>(rank)]); });
  }
};

TEST_F(ExampleBackend, CarriesOutAllOperations) {
  collectives::testing::BackendRanks ranks(
      {.name = "example", .create = collectives::load_backend("example").create, .size = kRanks});
  ranks.on_all([&](int rank) {
    std::uint64_t sequence = 0;
    for (int kind = 0; kind <= static_cast<int>(OperationKind::barrier); ++kind) {
      for (int dtype = 0; dtype <= static_cast<int>(DType::boolean); ++dtype) {
        const std::size_t count = static_cast<std::size_t>(dtype) * 7;
        const collectives::testing::CheckedCall call({.kind = static_cast<OperationKind>(kind),
                                                      .dtype = static_cast<DType>(dtype),
                                                      .op = dtype % 2 == 0 ? ReduceOp::sum : ReduceOp::max,
                                                      .count = count,
                                                      .root = dtype % kRanks,
                                                      .in_place = dtype % 3 == 0,
                                                      .shift = count % 2,
                                                      .seed = count},
                                                     kRanks, rank, ++sequence);
        const collectives::testing::Ended ended = collectives::testing::run(ranks.at(rank), call.operation());
        ASSERT_EQ(ended.outcome, Outcome::ok) << call.operation().description() << ": " << ended.failure.cause;
        call.check();
      }
    }
  });
}

TEST_F(ExampleBackend, CarriesGroupsAndTheirSubgroups) {
  on_group([](ProcessGroup& group) {
    std::vector<float> values(100, static_cast<float>(group.rank() + 1));
    group.all_reduce(values).wait();
    EXPECT_THAT(values, testing::Each(6.0F));
    CallOptions scaled;
    scaled.prescale = 0.5;
    group.all_reduce(values, ReduceOp::sum, scaled).wait();
    EXPECT_THAT(values, testing::Each(9.0F));
    const std::vector<int> both{2, 0};
    auto part = group.new_group(both);
    ASSERT_EQ(part.has_value(), group.rank() != 1);
    if (part) {
      part->all_reduce(values, ReduceOp::max).wait();
      EXPECT_EQ(part->backend(), "example");
    }
    group.barrier().wait();
  });
}

TEST_F(ExampleBackend, CarriesBatchesOfTransfers) {
  on_group([](ProcessGroup& group) {
    const int right = (group.rank() + 1) % kRanks;
    const int left = (group.rank() + kRanks - 1) % kRanks;
    std::vector<std::int32_t> own{group.rank(), 7};
    std::vector<std::int32_t> others(2);
    for (int round = 0; round < 5; ++round) {
      Batch(group).send(own, right, 3).recv(others, left, 3).start().wait();
      EXPECT_THAT(others, testing::ElementsAre(left, 7));
    }
    group.barrier().wait();
  });
}

TEST_F(ExampleBackend, DifferentCallsAreAMismatch) {
  on_group([](ProcessGroup& group) {
    std::vector<float> values(static_cast<std::size_t>(group.rank() == 1 ? 5 : 4));
    const Error error = ddp::test::thrown_by([&] { group.all_reduce(values).wait(); });
    EXPECT_EQ(error.code(), ErrorCode::mismatch) << error.what();
  });
}

}  // namespace
}  // namespace ddp
