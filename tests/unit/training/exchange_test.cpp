// What ranks exchange around a training loop, among real ranks that are threads.
#include <ddp/broadcast_state.hpp>
#include <ddp/early_stop.hpp>
#include <ddp/elastic_sampler.hpp>
#include <ddp/metric_set.hpp>
#include <ddp/object_collectives.hpp>
#include <ddp/rank_log.hpp>

#include "training/object_collectives.hpp"
#include "unit/training/thread_groups.hpp"

namespace ddp {
namespace {

using test::error_of;
using test::run_group;
using test::soon;
using test::thrown_by;

TEST(ObjectCollectives, BringBytesOfAnySizes) {
  for (const int size : {1, 3}) {
    run_group(size, [&](ProcessGroup& group) {
      const int root = size - 1;
      for (std::size_t round = 0; round < test::kAwkwardSizes.size(); ++round) {
        // of another size on each rank, and of none on some
        const auto object = [&](int rank) {
          const std::size_t which = (round + static_cast<std::size_t>(rank)) % test::kAwkwardSizes.size();
          return test::awkward_value(rank, test::kAwkwardSizes[which]);
        };
        std::vector<Bytes> all;
        for (int rank = 0; rank < size; ++rank) all.push_back(object(rank));
        const Bytes own = object(group.rank());
        const bool is_root = group.rank() == root;
        EXPECT_EQ(broadcast_object(group, own, root), all.back());
        EXPECT_EQ(all_gather_object(group, own), all);
        EXPECT_EQ(gather_object(group, own, root, soon()), is_root ? all : std::vector<Bytes>{});
        EXPECT_EQ(scatter_object(group, is_root ? all : std::vector<Bytes>{}, root, soon()), own);
      }
    });
  }
}

TEST(ObjectCollectives, RefuseOnAllRanksWhatRootCannotScatter) {
  run_group(3, [](ProcessGroup& group) {
    const std::vector<Bytes> two(group.rank() == 1 ? 2 : 3);
    const auto error = error_of([&] { scatter_object(group, two, 1); });
    ASSERT_TRUE(error) << "rank " << group.rank();
    EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
    EXPECT_EQ(error->cause(), "rank 1 gives 2 for 3 ranks");
    EXPECT_TRUE(error_of([&] { broadcast_object(group, {}, 3); }));
    EXPECT_EQ(all_gather_object(group, {}).size(), 3U) << "the group goes on";
  });
}

TEST(BroadcastState, BringsAllTensorsOrNamesTheOneThatDiffers) {
  run_group(3, [](ProcessGroup& group) {
    const bool is_root = group.rank() == 2;
    std::vector<float> weight(1000, is_root ? 0.5F : -1.0F);
    std::vector<double> average(3, is_root ? 2.0 : 0.0);
    std::int64_t step = is_root ? 77 : 0;
    const std::vector<NamedTensor> state{{.name = "weight", .tensor = {weight.data(), DType::float32, {10, 100}}},
                                         {.name = "weight.exp_avg", .tensor = average},
                                         {.name = "step", .tensor = {&step, DType::int64, {}}}};
    broadcast_state(group, state, 2);
    EXPECT_THAT(weight, testing::Each(0.5F));
    EXPECT_THAT(average, testing::Each(2.0));
    EXPECT_EQ(step, 77);

    std::vector<NamedTensor> other = state;
    if (group.rank() == 1) other[1].tensor = {average.data(), DType::float64, {3, 1}};
    weight[0] = static_cast<float>(group.rank());
    const Error error = thrown_by([&] { broadcast_state(group, other, 2); });
    EXPECT_EQ(error.code(), ErrorCode::mismatch);
    EXPECT_EQ(error.ranks(), std::vector{10});
    EXPECT_THAT(error.cause(), HasSubstr("'weight.exp_avg' float64[3, 1]"));
    EXPECT_EQ(weight[0], static_cast<float>(group.rank())) << "copied all the same";
  });
}

TEST(MetricSet, CombinesTheRanksValuesByKindAndWeight) {
  run_group(3, [](ProcessGroup& group) {
    MetricSet metrics({{.name = "loss"},
                       {.name = "samples", .kind = MetricKind::sum},
                       {.name = "fastest", .kind = MetricKind::min},
                       {.name = "slowest", .kind = MetricKind::max},
                       {.name = "accuracy"},
                       {.name = "some", .kind = MetricKind::max}});
    for (int round = 0; round < 2; ++round) {
      const int rank = group.rank();
      metrics.add("loss", 1.0, 1.0);
      metrics.add("loss", rank, 3.0 * rank);                                                 // rank 0's without weight
      metrics.add("loss", rank == 0 ? std::numeric_limits<double>::quiet_NaN() : 0.0, 0.0);  // of no samples
      metrics.add("accuracy", std::numeric_limits<double>::infinity(), 0.0);
      metrics.add("samples", 10.0 + rank);
      for (const char* time : {"fastest", "slowest"}) {
        metrics.add(time, -1.0 - rank);
        metrics.add(time, 4.0 - rank);
      }
      if (rank == 1) metrics.add("some", -5.0);
      // (3 * 1 + 3 * 1 + 6 * 2) / (3 + 0 + 3 + 6)
      EXPECT_THAT(metrics.reduce(group), ElementsAre(1.5, 33.0, -3.0, 4.0, std::nullopt, -5.0)) << "round " << round;
    }
    metrics.add("slowest", group.rank() == 1 ? std::numeric_limits<double>::quiet_NaN() : 1.0);
    const auto with_nan = metrics.reduce(group);
    ASSERT_TRUE(with_nan[3]);
    EXPECT_TRUE(std::isnan(*with_nan[3])) << *with_nan[3];
    EXPECT_FALSE(with_nan[0]) << "started anew";

    MetricSet other({{.name = group.rank() == 2 ? "accuracy" : "loss"}});
    const Error error = thrown_by([&] { other.reduce(group); });
    EXPECT_EQ(error.code(), ErrorCode::mismatch);
    EXPECT_EQ(error.ranks(), std::vector{20});
    EXPECT_FALSE(metrics.reduce(group)[0]) << "the group goes on";
    EXPECT_TRUE(error_of([&] { metrics.add("los", 1.0); }));
    EXPECT_TRUE(error_of([&] { metrics.add("loss", 1.0, -1.0); }));
    EXPECT_TRUE(error_of([] { MetricSet({{.name = "a"}, {.name = "a"}}); }));
  });
}

TEST(Samplers, OfAGroupHaveEqualArguments) {
  run_group(3, [](ProcessGroup& group) {
    const int rank = group.rank();
    const auto refused = [&](std::int64_t samples, SamplerOptions options) {
      const auto one = error_of([&] { DistributedSampler(samples, group, options); });
      const auto other = error_of([&] { ElasticSampler(samples, group, options); });
      EXPECT_TRUE(one && other);
      if (!one || !other) return std::string{};
      EXPECT_EQ(one->code(), ErrorCode::mismatch);
      EXPECT_EQ(one->cause(), other->cause());
      EXPECT_EQ(one->ranks(), std::vector{20}) << one->what();
      return one->cause();
    };
    EXPECT_THAT(refused(10, {.seed = rank == 2 ? 8 : 7}), HasSubstr("different seeds: 7 on ranks 0, 10; 8 on rank 20"));
    EXPECT_THAT(refused(rank == 2 ? 9 : 10, {}), HasSubstr("different numbers of samples: 9 on rank 20; 10 on"));
    EXPECT_THAT(refused(10, {.shuffle = rank != 2}), HasSubstr("shuffle: false on rank 20; true on"));
    EXPECT_THAT(refused(10, {.remainder = rank == 2 ? Remainder::drop : Remainder::pad}),
                HasSubstr("remainders: pad on ranks 0, 10; drop on rank 20"));
    const auto negative = error_of([&] { DistributedSampler(-1, group); });
    ASSERT_TRUE(negative) << "of all ranks";
    EXPECT_EQ(negative->code(), ErrorCode::invalid_argument);
    EXPECT_EQ(DistributedSampler(10, group, {.seed = 3}).indices(),
              DistributedSampler(10, 3, rank, {.seed = 3}).indices());
  });
}

TEST(EarlyStop, IsOnAllRanksInTheSameStep) {
  run_group(3, [](ProcessGroup& group) {
    EarlyStop by_patience({.patience = 3, .least_gain = 0.1});
    const double nan = std::numeric_limits<double>::quiet_NaN();
    int steps = 0;
    for (const double loss : {1.0, 0.5, 0.45, nan, 0.3, 0.35, 0.3, 0.29, 0.0}) {
      ++steps;
      // ranks whose losses get better alone have to stop with the others
      if (by_patience.update(group, group.rank() == 0 ? loss : -steps)) break;
    }
    EXPECT_EQ(steps, 8);
    EXPECT_EQ(by_patience.best(), group.rank() == 0 ? 0.3 : -8.0);

    EarlyStop accuracy({.patience = 1, .least_gain = 0, .larger_is_better = true});
    EXPECT_FALSE(accuracy.update(group, 0.5));
    EXPECT_FALSE(accuracy.update(group, 0.6));
    EXPECT_TRUE(accuracy.update(group, 0.6));

    EarlyStop by_request;
    EXPECT_FALSE(by_request.agree(group));
    if (group.rank() == 2) by_request.request();
    EXPECT_TRUE(by_request.agree(group));
  });
}

TEST(RankLog, WritesOneRanksLinesNoMoreOftenThanAsked) {
  run_group(2, [](ProcessGroup& group) {
    std::vector<std::string> lines;
    const auto keep = [&](std::string_view line) { lines.emplace_back(line); };
    RankLog log(group, {.rank = 1, .interval = seconds(10), .sink = keep});
    const RankLog::Clock::time_point start{};
    const bool writes = group.rank() == 1;
    EXPECT_EQ(log.due(start), writes);
    EXPECT_EQ(log.write("first", start), writes);
    EXPECT_FALSE(log.due(start + seconds(9)));
    EXPECT_FALSE(log.write("early", start + seconds(1)));
    EXPECT_FALSE(log.write("early", start + seconds(9)));
    EXPECT_EQ(log.write("second", start + seconds(10)), writes);
    EXPECT_EQ(log.write_always("at once", start + seconds(10)), writes);
    if (writes) {
      EXPECT_THAT(lines, ElementsAre("first", "second (2 lines left out before)", "at once"));
    } else {
      EXPECT_THAT(lines, ElementsAre());
    }
  });
}

TEST(JointAction, FailsOnAllRanksWhenItHasFailedOnOne) {
  run_group(3, [](ProcessGroup& group) {
    const auto bytes = [](int value) { return Bytes{static_cast<std::byte>(value)}; };
    const auto results = training::act_jointly(group, soon(), [&] { return bytes(group.rank()); });
    EXPECT_THAT(results, ElementsAre(bytes(0), bytes(1), bytes(2)));
    const auto error = error_of([&] {
      training::act_jointly(group, soon(), [&]() -> Bytes {
        if (group.rank() == 0) return {};
        if (group.rank() == 2) throw std::bad_alloc();
        throw Error{{.code = ErrorCode::not_found,
                     .attempted = "looking",
                     .cause = "nothing there",
                     .native = "ENOENT (2)",
                     .hint = "look elsewhere"}};
      });
    });
    ASSERT_TRUE(error) << "rank " << group.rank();
    EXPECT_EQ(error->code(), ErrorCode::not_found);
    EXPECT_STREQ(error->what(), "looking: nothing there [ENOENT (2)] (ranks 10, 20); look elsewhere");
  });
}

}  // namespace
}  // namespace ddp
