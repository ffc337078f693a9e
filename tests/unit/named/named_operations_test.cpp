// Named operations of ranks that are threads: order, results, errors after which the set lives on, and what is learned.
#include "unit/named/named_ranks.hpp"

namespace ddp {
namespace {

using test::end_of;
using test::error_of;
using test::expect_success;
using test::reduction;
using test::run_named;
using test::thrown_by;

template <class T>
std::vector<T> values_of(const NamedResult& result) {
  const auto* const first = reinterpret_cast<const T*>(result.memory.get());
  return {first, first + result.bytes / sizeof(T)};
}

TEST(NamedOperations, MatchInWhateverOrderRanksSubmitThem) {
  run_named(3, {}, [](int rank, NamedOperations& named) {
    std::vector<float> a(5, static_cast<float>(rank + 1));
    std::vector<float> b(7, 10.0F);
    std::vector<NamedHandle> handles;
    const auto submit_a = [&] { handles.push_back(named.submit(reduction("a", a))); };
    const auto submit_b = [&] { handles.push_back(named.submit(reduction("b", b))); };
    rank == 1 ? (submit_b(), submit_a()) : (submit_a(), submit_b());
    for (const NamedHandle& handle : handles) expect_success(handle);
    EXPECT_EQ(a, std::vector<float>(5, 6.0F));
    EXPECT_EQ(b, std::vector<float>(7, 30.0F));
  });
}

TEST(NamedOperations, EachKindGivesWhatItSays) {
  run_named(3, {}, [](int rank, NamedOperations& named) {
    std::vector<std::int64_t> broadcast{rank, rank};
    expect_success(named.submit({.kind = NamedKind::broadcast, .name = "b", .tensors = {broadcast}, .root = 2}));
    EXPECT_THAT(broadcast, ElementsAre(2, 2));

    std::vector<std::int32_t> rows(static_cast<std::size_t>(rank) * 2, rank);  // none of rank 0
    const TensorView gathered(rows.data(), DType::int32, {rank, 2});
    const NamedHandle gather = named.submit({.kind = NamedKind::all_gather, .name = "g", .tensors = {gathered}});
    expect_success(gather);
    EXPECT_THAT(gather.results().front().rows, ElementsAre(0, 1, 2));
    EXPECT_THAT(values_of<std::int32_t>(gather.results().front()), ElementsAre(1, 1, 2, 2, 2, 2));

    std::vector<std::int32_t> sent{0, 1, 2, 3};
    const std::vector<std::int64_t> splits{rank == 0 ? 0 : 1, 1, rank == 2 ? 2 : 0};
    const NamedHandle all =
        named.submit({.kind = NamedKind::all_to_all, .name = "x", .tensors = {sent}, .splits = splits});
    expect_success(all);
    const std::vector<std::vector<std::int32_t>> expected{{0, 0}, {0, 1, 1}, {2, 3}};
    EXPECT_EQ(values_of<std::int32_t>(all.results().front()), expected[static_cast<std::size_t>(rank)]);

    std::vector<float> uneven{1, 2, 3, 4, 5};  // parts of 2, 2 and 1
    const NamedHandle scatter = named.submit({.kind = NamedKind::reduce_scatter, .name = "s", .tensors = {uneven}});
    expect_success(scatter);
    const std::vector<std::vector<float>> parts{{3, 6}, {9, 12}, {15}};
    EXPECT_EQ(values_of<float>(scatter.results().front()), parts[static_cast<std::size_t>(rank)]);
    EXPECT_THAT(scatter.results().front().rows, ElementsAre(rank == 2 ? 1 : 2));

    expect_success(named.submit({.kind = NamedKind::barrier, .name = "#1"}));
  });
}

TEST(NamedOperations, TensorsOfAGroupOfUnlikeTypesAndWithoutElementsRunTogether) {
  run_named(2, {}, [](int rank, NamedOperations& named) {
    std::vector<float> floats(3, 1.5F);
    std::vector<double> doubles(300'000, 2.0);
    std::vector<std::int32_t> integers{rank, 7};
    std::vector<float> more(2, 4.0F);
    std::vector<float> none;
    expect_success(
        named.submit({.kind = NamedKind::all_reduce, .name = "", .tensors = {floats, doubles, integers, more, none}}));
    EXPECT_EQ(floats.front(), 3.0F);
    EXPECT_EQ(doubles.back(), 4.0);
    EXPECT_THAT(integers, ElementsAre(1, 14));
    EXPECT_EQ(more.back(), 8.0F);
  });
}

TEST(NamedOperations, WhatDiffersFailsOnAllRanksAndTheNextOneWorks) {
  run_named(3, {}, [](int rank, NamedOperations& named) {
    for (int round = 0; round < 3; ++round) {
      std::vector<float> values(rank == 2 ? 4 : 3, 1.0F);
      const Error error = end_of(named.submit(reduction("gradient", values))).value();
      EXPECT_EQ(error.code(), ErrorCode::mismatch);
      EXPECT_THAT(error.what(), HasSubstr("all_reduce 'gradient': ranks 0, 1 have float32[3]"));
      EXPECT_THAT(error.what(), HasSubstr("rank 2 has float32[4]"));
      std::vector<float> right(3, 1.0F);
      expect_success(named.submit(reduction("gradient", right)));
      EXPECT_EQ(right.front(), 3.0F);
    }
  });
}

TEST(NamedOperations, RefusesWhatOneRankCanSee) {
  run_named(2, {}, [](int rank, NamedOperations& named) {
    std::vector<float> values(4, 1.0F);
    const auto refused = [&](NamedCall call) {
      const auto error = error_of([&] { static_cast<void>(named.submit(std::move(call))); });
      return error && error->code() == ErrorCode::invalid_argument ? error->what() : std::string("accepted");
    };
    EXPECT_THAT(refused({.kind = NamedKind::broadcast, .name = "b", .tensors = {values}, .root = 2}),
                HasSubstr("root rank 2"));
    EXPECT_THAT(refused({.kind = NamedKind::all_to_all, .name = "x", .tensors = {values}, .splits = {5, 0}}),
                HasSubstr("more than"));
    EXPECT_THAT(refused({.kind = NamedKind::all_to_all, .name = "x", .tensors = {values}, .splits = {-1, 1}}),
                HasSubstr("negative"));
    EXPECT_THAT(refused({.kind = NamedKind::all_to_all, .name = "x", .tensors = {values}, .splits = {1}}),
                HasSubstr("1 splits for 2"));
    EXPECT_THAT(
        refused(
            {.kind = NamedKind::all_gather, .name = "g", .tensors = {TensorView(values.data(), DType::float32, {})}}),
        HasSubstr("no dimension"));
    EXPECT_THAT(refused({.kind = NamedKind::barrier, .name = std::string(4097, 'n')}), HasSubstr("4097 bytes"));
    EXPECT_THAT(refused({.kind = NamedKind::barrier, .set = 7}), HasSubstr("process set 7"));
    std::vector<float> first(1, 1.0F);
    std::vector<float> second(1, 1.0F);
    if (rank == 0) {
      const NamedHandle waiting = named.submit(reduction("twice", first));
      EXPECT_THAT(refused(reduction("twice", second)), HasSubstr("under way"));
      EXPECT_FALSE(waiting.done());
      expect_success(named.submit({.name = "now"}));
      expect_success(waiting);
    } else {
      expect_success(named.submit({.name = "now"}));
      expect_success(named.submit(reduction("twice", second)));
    }
  });
}

/// A step of a training loop: @p names in the order that @p shuffle makes of them.
void run_step(NamedOperations& named, std::vector<std::vector<float>>& values, const std::vector<std::size_t>& order) {
  std::vector<NamedHandle> handles;
  for (const std::size_t i : order)
    handles.push_back(named.submit(reduction("gradient" + std::to_string(i), values[i])));
  for (const NamedHandle& handle : handles) expect_success(handle);
}

TEST(NamedOperations, ARepeatedOrderIsLearnedAndThenNothingIsNegotiated) {
  run_named(3, {}, [](int rank, NamedOperations& named) {
    std::vector<std::vector<float>> values(20, std::vector<float>(3));
    std::vector<std::size_t> order(values.size());
    std::iota(order.begin(), order.end(), 0);
    std::rotate(order.begin(), order.begin() + rank * 5, order.end());  // another one on each rank
    const auto step = [&] {
      for (auto& each : values) std::fill(each.begin(), each.end(), 1.0F);
      run_step(named, values, order);
      for (const auto& each : values) ASSERT_EQ(each.front(), 3.0F);
    };
    for (int i = 0; i < 5; ++i) step();
    const NamedCounts before = named.counts();
    for (int i = 0; i < 20; ++i) step();
    const NamedCounts after = named.counts();
    EXPECT_EQ(after.negotiated, before.negotiated);
    EXPECT_EQ(after.messages, before.messages);
    EXPECT_EQ(after.learned, before.learned + 20 * values.size());
    expect_success(named.submit({.name = "end"}));
  });
}

/// Counts operations without a name, as libddp.horovod does.
struct Unnamed {
  NamedOperations& named;
  std::uint64_t reductions = 0;
  std::uint64_t barriers = 0;
  NamedHandle reduce(std::vector<float>& values) {
    std::fill(values.begin(), values.end(), 1.0F);
    NamedCall call = reduction("#", values);
    call.number = ++reductions;
    return named.submit(std::move(call));
  }
  void barrier() { expect_success(named.submit({.kind = NamedKind::barrier, .name = "#", .number = ++barriers})); }
};

TEST(NamedOperations, AStepWithOperationsWithoutNamesIsLearned) {
  for (const bool with_names : {true, false}) {
    run_named(3, {}, [&](int rank, NamedOperations& named) {
      Unnamed unnamed{named};
      std::vector<float> a(3);
      std::vector<float> b(5);
      std::vector<float> gradient(7);
      const auto step = [&] {
        const std::vector<NamedHandle> together{unnamed.reduce(a), unnamed.reduce(b)};
        for (const NamedHandle& handle : together) expect_success(handle);
        ASSERT_EQ(a.back() + b.back(), 6.0F);
        if (with_names) expect_success(named.submit(reduction("gradient", gradient)));
        expect_success(unnamed.reduce(a));
        ASSERT_EQ(a.back(), 3.0F);
        unnamed.barrier();
      };
      const auto learn = [&] {  // whether operations are learned is the same on all ranks
        for (int round = 0; round < 200; ++round) {
          const auto before = named.counts();
          step();
          if (named.counts().negotiated == before.negotiated) return;
        }
        FAIL() << "not learned";
      };
      learn();
      const NamedCounts before = named.counts();
      for (int i = 0; i < 20; ++i) step();
      EXPECT_EQ(named.counts().negotiated, before.negotiated);
      EXPECT_EQ(named.counts().messages, before.messages);
      EXPECT_EQ(named.counts().learned, before.learned + 20 * (with_names ? 5U : 4U));
      // a name like theirs is another operation, and one rank is late with it
      std::vector<float> other(1, 1.0F);
      const std::string alike = "#" + std::to_string(unnamed.reductions + 1);
      const NamedHandle first = rank == 1 ? unnamed.reduce(a) : named.submit(reduction(alike, other));
      const NamedHandle second = rank == 1 ? named.submit(reduction(alike, other)) : unnamed.reduce(a);
      expect_success(second);
      expect_success(first);
      EXPECT_EQ(a.back() + other.back(), 6.0F);
      step();
      learn();
      // another shape in the place of what was learned
      std::vector<float> uneven(rank == 2 ? 4 : 3);
      const Error error = end_of(unnamed.reduce(uneven)).value();
      EXPECT_EQ(error.code(), ErrorCode::mismatch);
      EXPECT_THAT(error.what(), HasSubstr("all_reduce '#" + std::to_string(unnamed.reductions) + "': ranks 0, 1 have"));
      step();
      expect_success(named.submit({.name = "end"}));
    });
  }
}

TEST(NamedOperations, OperationsWithoutNamesMayBeManyAtATimeAndOvertakeEachOther) {
  run_named(2, {}, [](int /*rank*/, NamedOperations& named) {
    Unnamed unnamed{named};
    std::vector<std::vector<float>> values(40, std::vector<float>(3));
    for (int round = 0; round < 30; ++round) {
      std::vector<NamedHandle> handles;
      for (auto& each : values) handles.push_back(unnamed.reduce(each));
      for (const NamedHandle& handle : handles) expect_success(handle);
      for (const auto& each : values) ASSERT_EQ(each.back(), 2.0F);
    }
    EXPECT_GT(named.counts().learned, 0U);
    for (int round = 0; round < 30; ++round) {  // later ones first
      std::vector<float> late(3, 1.0F);
      std::vector<float> early(3, 1.0F);
      NamedCall behind = reduction("#", late);
      behind.number = unnamed.reductions + 2;
      const NamedHandle second = named.submit(std::move(behind));
      const NamedHandle first = unnamed.reduce(early);
      ++unnamed.reductions;
      expect_success(first);
      expect_success(second);
      ASSERT_EQ(early.back() + late.back(), 4.0F);
    }
    expect_success(named.submit({.name = "end"}));
  });
}

TEST(NamedOperations, WhatIsReadyTogetherInTheLearnedOrderIsFusedUpToTheThreshold) {
  for (const std::size_t threshold : {std::size_t{1} << 20U, std::size_t{1}}) {
    run_named(3, {.fusion_bytes = threshold}, [&](int /*rank*/, NamedOperations& named) {
      std::vector<std::vector<float>> values(20, std::vector<float>(2000));
      std::vector<std::size_t> order(values.size());
      std::iota(order.begin(), order.end(), 0);
      const auto fill = [&] {
        for (std::size_t i = 0; i < values.size(); ++i)
          std::fill(values[i].begin(), values[i].end(), static_cast<float>(i));
      };
      for (int round = 0; round < 5; ++round) {  // learned as exchanges of one each
        fill();
        for (std::size_t i : order) expect_success(named.submit(reduction("gradient" + std::to_string(i), values[i])));
      }
      const NamedCounts before = named.counts();
      EXPECT_EQ(before.fused, 0U);
      EXPECT_GT(before.learned, 0U);
      // all ranks agree on what is ready, so that they come to the same numbers
      for (int round = 0; round < 200 && named.counts().fused == 0 && (round < 5 || threshold > 1); ++round) {
        fill();
        run_step(named, values, order);
        for (std::size_t i = 0; i < values.size(); ++i) {
          ASSERT_EQ(values[i].front(), 3.0F * static_cast<float>(i));
          ASSERT_EQ(values[i].back(), 3.0F * static_cast<float>(i));
        }
      }
      EXPECT_EQ(named.counts().fused > 0, threshold > 1);
      EXPECT_EQ(named.counts().negotiated, before.negotiated);
      expect_success(named.submit({.name = "end"}));
    });
  }
}

/// Small ones go with what ranks tell each other, which has no room for more.
TEST(NamedOperations, RowsInTheLearnedOrderMayBecomeMoreAndFewer) {
  run_named(3, {}, [](int rank, NamedOperations& named) {
    std::uint64_t negotiated = 0;
    for (int round = 0; round < 60; ++round) {
      const int most = round >= 20 && round < 40 ? 300 : round % 4;  // rows of the last rank; 126 have room
      std::vector<std::int32_t> expected;
      for (int each = 0; each < 3; ++each)
        expected.insert(expected.end(), static_cast<std::size_t>(each == 2 ? most : each), 10 * round + each);
      std::vector<std::int32_t> rows(static_cast<std::size_t>(rank == 2 ? most : rank), 10 * round + rank);
      const NamedHandle gather = named.submit({.kind = NamedKind::all_gather, .name = "g", .tensors = {rows}});
      expect_success(gather);
      EXPECT_THAT(gather.results().front().rows, ElementsAre(0, 1, most));
      EXPECT_EQ(values_of<std::int32_t>(gather.results().front()), expected);
      if (round == 10) negotiated = named.counts().negotiated;
    }
    EXPECT_EQ(named.counts().negotiated, negotiated);
    expect_success(named.submit({.name = "end"}));
  });
}

TEST(NamedOperations, RanksThatLeaveTheLearnedOrderNegotiateAgain) {
  run_named(2, {}, [](int rank, NamedOperations& named) {
    std::vector<float> a(1);
    std::vector<float> b(1);
    std::vector<float> other(1);
    const auto blocking = [&](const char* name, std::vector<float>& values) {
      values.front() = 1;
      expect_success(named.submit(reduction(name, values)));
      EXPECT_EQ(values.front(), 2.0F) << name;
    };
    for (int round = 0; round < 12; ++round) {
      blocking("a", a);
      blocking("b", b);
      if (round == 5) blocking("other", other);
      if (round == 8) {  // one rank waits for what comes later on the other
        a.front() = b.front() = 1;
        if (rank == 0) {
          const NamedHandle first = named.submit(reduction("a", a));
          const NamedHandle second = named.submit(reduction("b", b));
          expect_success(second);
          expect_success(first);
        } else {
          blocking("b", b);
          blocking("a", a);
        }
      }
    }
    EXPECT_GT(named.counts().learned, 0U);
    // a mismatch of what has been learned
    for (int round = 0; round < 200; ++round) blocking("a", a);
    std::vector<float> longer(2, 1.0F);
    const auto error = end_of(named.submit(reduction("a", rank == 0 ? a : longer)));
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::mismatch);
    blocking("a", a);
  });
}

TEST(NamedOperations, AThreadThatWaitsForNothingStillGetsItsResults) {
  run_named(2, {}, [](int /*rank*/, NamedOperations& named) {
    std::vector<float> values(1);
    for (int i = 0; i < 8; ++i) {  // negotiated, then learned
      values.front() = 1;
      const NamedHandle handle = named.submit(reduction("a", values));
      const Deadline limit = test::soon();
      while (!handle.done() && !limit.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      expect_success(handle);
      ASSERT_EQ(values.front(), 2.0F);
    }
  });
}

TEST(NamedOperations, NothingWakesWhileNothingIsUnderWay) {
  run_named(2, {}, [](int /*rank*/, NamedOperations& named) {
    std::vector<float> values(1, 1.0F);
    for (int i = 0; i < 10; ++i) expect_success(named.submit(reduction("a", values)));
    expect_success(named.submit({.name = "end"}));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const auto before = named.counts().wake_ups;
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    EXPECT_LE(named.counts().wake_ups, before + 1);
    expect_success(named.submit({.name = "end"}));
  });
}

TEST(NamedOperations, AJoinedRankTakesPartWithZerosUntilAllHaveJoined) {
  run_named(3, {}, [](int rank, NamedOperations& named) {
    std::vector<float> values(2);
    for (int step = 0; step < 4 + 3 * rank; ++step) {  // the first steps are learned
      std::fill(values.begin(), values.end(), 1.0F);
      expect_success(named.submit(reduction("a", values)));
      EXPECT_EQ(values.front(), step < 4 ? 3.0F : step < 7 ? 2.0F : 1.0F) << step;
    }
    if (rank > 0) {
      std::vector<std::int32_t> mine{rank};
      const NamedHandle gather =
          named.submit({.kind = NamedKind::all_gather, .name = "g" + std::to_string(rank), .tensors = {mine}});
      if (rank == 2) {
        expect_success(gather);
        EXPECT_THAT(gather.results().front().rows, ElementsAre(0, 0, 1));
        const Error error =
            end_of(named.submit({.kind = NamedKind::broadcast, .name = "b", .tensors = {mine}, .root = 0})).value();
        EXPECT_THAT(error.what(), HasSubstr("join()"));
      } else {
        const NamedHandle last = named.join();  // its own gather needs the others' names, which never come
        expect_success(last);
        expect_success(gather);
        EXPECT_THAT(gather.results().front().rows, ElementsAre(0, 1, 0));
        expect_success(named.submit({.name = "behind"}));
        return;
      }
    }
    const NamedHandle joined = named.join();
    expect_success(joined);
    expect_success(named.submit({.name = "behind"}));
  });
}

TEST(NamedOperations, SetsOfRanksGoOnBesideEachOther) {
  run_named(4, {}, [](int rank, NamedOperations& named) {
    const Deadline limit = test::soon();
    const int even = named.add_set({0, 2}, limit);
    const int odd = named.add_set({3, 1}, limit);
    EXPECT_EQ(even, 1);
    EXPECT_EQ(odd, 2);
    EXPECT_EQ(error_of([&] { named.add_set({0, 0}, limit); })->code(), ErrorCode::invalid_argument);
    const int own = rank % 2 == 0 ? even : odd;
    const int other = rank % 2 == 0 ? odd : even;
    std::vector<float> values(1);
    for (int i = 0; i < 6; ++i) {
      values.front() = static_cast<float>(rank);
      expect_success(named.submit(reduction("a", values, own)));
      EXPECT_EQ(values.front(), rank % 2 == 0 ? 2.0F : 4.0F);
    }
    EXPECT_TRUE(error_of([&] { static_cast<void>(named.submit(reduction("a", values, other))); }));
    EXPECT_THAT(named.ranks_of(own), rank % 2 == 0 ? ElementsAre(0, 2) : ElementsAre(1, 3));
    named.remove_set(even, limit);
    EXPECT_EQ(error_of([&] { named.remove_set(even, limit); })->code(), ErrorCode::invalid_argument);
    const Error different = thrown_by([&] { named.add_set(rank == 0 ? std::vector{0, 1} : std::vector{0, 2}, limit); });
    EXPECT_EQ(different.code(), ErrorCode::mismatch);
    EXPECT_THAT(different.what(), HasSubstr("rank 0 has ranks [0, 1], ranks 1-3 have ranks [0, 2]"));
    expect_success(named.submit({.name = "end"}));
  });
}

TEST(NamedOperations, ARankThatLeavesEndsWhatOthersWaitFor) {
  for (const int leaving : {0, 1}) {
    run_named(2, {}, [leaving](int rank, NamedOperations& named) {
      std::vector<float> values(1, 1.0F);
      for (int i = 0; i < 6; ++i) expect_success(named.submit(reduction("a", values)));
      if (rank == leaving) return named.shutdown();
      std::optional<Error> error;
      try {
        error = end_of(named.submit({.name = "never"}));
      } catch (const Error& known) {  // already
        error = known;
      }
      ASSERT_TRUE(error);
      EXPECT_EQ(error->code(), ErrorCode::aborted);
      EXPECT_THAT(error->ranks(), ElementsAre(leaving));
      EXPECT_EQ(error_of([&] { static_cast<void>(named.submit({.name = "later"})); })->code(), ErrorCode::aborted);
    });
  }
}

TEST(NamedOperations, WhatRanksDoNotSubmitInTimeFailsOnAllAndNamesThem) {
  run_named(2, {.stall_check = std::chrono::milliseconds(50), .stall_shutdown = std::chrono::milliseconds(200)},
            [](int rank, NamedOperations& named) {
              if (rank == 1) {
                const Deadline limit = test::soon();
                std::optional<Error> error;
                while (!error && !limit.expired()) {
                  std::this_thread::sleep_for(std::chrono::milliseconds(5));
                  error = error_of([&] { static_cast<void>(named.ranks_of(0)); });
                }
                ASSERT_TRUE(error);
                EXPECT_EQ(error->code(), ErrorCode::timeout);
                return;
              }
              const Error error = end_of(named.submit({.name = "alone"})).value();
              EXPECT_EQ(error.code(), ErrorCode::timeout);
              EXPECT_THAT(error.what(), HasSubstr("barrier 'alone': rank 1 did not submit it in time; rank 1 has "
                                                  "submitted no named operation"));
            });
}

TEST(NamedOperations, WhatIsMissingInTheLearnedOrderFailsAsWell) {
  run_named(2, {.stall_check = std::chrono::milliseconds(400), .stall_shutdown = std::chrono::milliseconds(800)},
            [](int rank, NamedOperations& named) {
              std::vector<float> values(1, 1.0F);
              std::vector<float> other(1, 1.0F);
              for (int i = 0; i < 10; ++i) {
                expect_success(named.submit(reduction("a", values)));
                expect_success(named.submit(reduction("b", other)));
              }
              EXPECT_GT(named.counts().learned, 0U);
              if (rank == 1) {
                const Deadline limit = test::soon();
                while (!limit.expired() && !error_of([&] { static_cast<void>(named.ranks_of(0)); }))
                  std::this_thread::sleep_for(std::chrono::milliseconds(5));
                return;
              }
              const Error error = end_of(named.submit(reduction("a", values))).value();
              EXPECT_EQ(error.code(), ErrorCode::timeout);
              EXPECT_THAT(error.what(), HasSubstr("all_reduce 'a': rank 1 did not submit it in time; rank 1 submitted "
                                                  "all_reduce 'b' last"));
            });
}

TEST(NamedOperations, AJoinedRankKnowsWhatOthersHaveAgreedOn) {
  run_named(3, {}, [](int rank, NamedOperations& named) {
    std::vector<float> other(1);
    std::vector<float> small(2);
    std::vector<float> large(20'000);
    const auto reduce = [&](const char* name, std::vector<float>& values, float sum) {
      std::fill(values.begin(), values.end(), 1.0F);
      expect_success(named.submit(reduction(name, values)));
      ASSERT_EQ(values.back(), sum);
    };
    for (int i = 0; i < 6; ++i) {
      reduce("b", other, 3.0F);
      reduce("a", large, 3.0F);
    }
    for (int i = 0; i < 6 && rank != 2; ++i) {
      reduce("b", other, 2.0F);
      reduce("a", small, 2.0F);
    }
    expect_success(named.join());
    reduce("b", other, 3.0F);  // with which the order of the two others is learned
    const auto error = end_of(named.submit(reduction("a", rank == 2 ? large : small)));
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::mismatch);
    for (int i = 0; i < 12; ++i) {
      reduce("b", other, 3.0F);
      reduce("a", small, 3.0F);
    }
  });
}

TEST(NamedOperations, JoinsBehindWhatARankHasSubmittedInTheLearnedOrder) {
  run_named(2, {}, [](int rank, NamedOperations& named) {
    std::vector<float> a(1, 1.0F);
    for (int i = 0; i < 8; ++i) expect_success(named.submit(reduction("a", a)));
    a.front() = 1;
    const NamedHandle last = named.submit(reduction("a", a));
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const NamedHandle joined = named.join();
    expect_success(last);
    EXPECT_EQ(a.front(), 2.0F);
    expect_success(joined);
  });
}

TEST(NamedOperations, ASetThatGoesEndsWhatWaitsInItsLearnedOrder) {
  run_named(2, {}, [](int rank, NamedOperations& named) {
    const Deadline limit = test::soon();
    const int set = named.add_set({0, 1}, limit);
    std::vector<float> values(1, 1.0F);
    for (int i = 0; i < 8; ++i) expect_success(named.submit(reduction("a", values, set)));
    std::optional<NamedHandle> waiting;
    if (rank == 0) waiting = named.submit(reduction("a", values, set));
    named.remove_set(set, limit);
    if (waiting) {
      const Error error = end_of(*waiting).value();
      EXPECT_THAT(error.what(), HasSubstr("removed"));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(500));  // the set's group has ended by then
    expect_success(named.submit(reduction("behind", values)));
  });
}

TEST(NamedOperations, NamesOfAllBytesStayReadable) {
  run_named(1, {}, [](int /*rank*/, NamedOperations& named) {
    for (const auto& [name, shown] :
         std::vector<std::pair<std::string, std::string>>{{"gr\xc3\xb6\xc3\x9f"
                                                           "e",
                                                           "'gr\xc3\xb6\xc3\x9f"
                                                           "e'"},
                                                          {"a\xff\xed\xa0\x80", "'a\\xff\\xed\\xa0\\x80'"},
                                                          {std::string(119, 'n') + "\xc3\xb6"
                                                                                   "more",
                                                           "n\xc3\xb6...'"},
                                                          {"\xc3", "'\\xc3'"}}) {
      std::vector<float> values(1);
      const NamedCall call{.kind = NamedKind::broadcast, .name = name, .tensors = {values}, .root = 9};
      const Error error = thrown_by([&] { static_cast<void>(named.submit(call)); });
      EXPECT_THAT(error.what(), HasSubstr(shown));
    }
  });
}

TEST(NamedOperations, OneRankAloneAndManyNames) {
  run_named(1, {}, [](int /*rank*/, NamedOperations& named) {
    std::vector<float> values(2, 3.0F);
    for (int i = 0; i < test::cases(100'000); ++i) {
      const NamedHandle handle = named.submit(reduction("name" + std::to_string(i), values));
      expect_success(handle);  // done already, but for a moment in which the engine's own thread looks after it
    }
    EXPECT_EQ(values.front(), 3.0F);
    const NamedHandle joined = named.join();
    expect_success(joined);
    EXPECT_EQ(joined.last_joined(), 0);
  });
}

}  // namespace
}  // namespace ddp
