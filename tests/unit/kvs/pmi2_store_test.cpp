// The PMI-2 store against a server in a thread: what must work, and every way in which the server can fail it.
#include "kvs/pmi2_store.hpp"

#include <sys/socket.h>

#include "support/fake_pmi_server.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp::kvs {
namespace {

using test::awkward_value;
using test::error_of;
using test::FakePmiServer;
using test::run_ranks;
using test::soon;
using test::thrown_by;

Pmi2Identity identity(int rank, int size) { return {.job_id = "77.0", .rank = rank, .size = size}; }

std::unique_ptr<Pmi2Store> join(FakePmiServer& server, int rank, int size, int ms = 20'000) {
  return std::make_unique<Pmi2Store>(server.take_client(rank), identity(rank, size), soon(ms));
}

// The error of joining a server with these options, soon after the deadline.
std::optional<Error> joining_error(FakePmiServer::Options options) {
  FakePmiServer server{std::move(options)};
  const auto begin = std::chrono::steady_clock::now();
  auto error = error_of([&] { join(server, 0, 1, 200); });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, test::kBusyMachine);
  return error;
}

TEST(Pmi2Store, KnowsTheJob) {
  FakePmiServer server{{.world_size = 3}};
  const auto store = join(server, 1, 3);
  EXPECT_EQ(store->rank(), 1);
  EXPECT_EQ(store->world_size(), 3);
  EXPECT_EQ(store->job_id(), "77.0");
  EXPECT_EQ(store->process_mapping(), "(vector,(0,1,3))");
}

TEST(Pmi2Store, CarriesValuesOfAnyBytesAndSize) {
  constexpr int kRanks = 4;
  FakePmiServer server{{.world_size = kRanks}};
  run_ranks(kRanks, [&](int rank) {
    auto store = join(server, rank, kRanks);
    for (const std::size_t size : test::kAwkwardSizes) store->put(fmt::format("k{}", size), awkward_value(rank, size));
    store->fence(soon());
    for (int peer = 0; peer < kRanks; ++peer) {
      for (const std::size_t size : test::kAwkwardSizes) {
        EXPECT_EQ(store->get(peer, fmt::format("k{}", size), soon()), awkward_value(peer, size)) << size;
      }
    }
  });
}

TEST(Pmi2Store, ValuesForTheNodeAreNodeAttributes) {
  constexpr int kRanks = 3;
  FakePmiServer server{{.world_size = kRanks}};
  run_ranks(kRanks, [&](int rank) {
    auto store = join(server, rank, kRanks);
    if (rank == 0) {
      for (const std::size_t size : test::kAwkwardSizes) {
        store->put_on_node(fmt::format("n{}", size), awkward_value(rank, size));
      }
    }
    store->fence(soon());
    for (const std::size_t size : test::kAwkwardSizes) {
      EXPECT_EQ(store->get_on_node(0, fmt::format("n{}", size), soon()), awkward_value(0, size)) << size;
    }
    EXPECT_EQ(error_of([&] { store->get(0, "n1", soon()); })->code(), ErrorCode::not_found)
        << "they do not travel with the fence";
    EXPECT_EQ(error_of([&] { store->get_on_node(1, "n1", soon()); })->code(), ErrorCode::not_found)
        << "a server that is asked to wait would keep the question";
  });
}

TEST(Pmi2Store, CarriesManyKeysOverManyFences) {
  constexpr int kRanks = 3;
  FakePmiServer server{{.world_size = kRanks}};
  run_ranks(kRanks, [&](int rank) {
    auto store = join(server, rank, kRanks);
    for (int round = 0; round < 20; ++round) {
      for (int i = 0; i < 50; ++i) store->put(fmt::format("r{}.{}", round, i), awkward_value(rank + i, 12));
      store->fence(soon());
      for (int i = 0; i < 50; ++i) {
        const int peer = i % kRanks;
        EXPECT_EQ(store->get(peer, fmt::format("r{}.{}", round, i), soon()), awkward_value(peer + i, 12));
      }
    }
  });
}

TEST(Pmi2Store, ValuesAppearWithTheFenceOnly) {
  FakePmiServer server{{.world_size = 1}};
  const auto store = join(server, 0, 1);
  store->put("k", awkward_value(0, 5));
  EXPECT_EQ(error_of([&] { store->get(0, "k", soon()); })->code(), ErrorCode::not_found);
  store->fence(soon());
  EXPECT_EQ(store->get(0, "k", soon()), awkward_value(0, 5));
  EXPECT_EQ(error_of([&] { store->get(0, "other", soon()); })->code(), ErrorCode::not_found);
}

TEST(Pmi2Store, RefusesWrongArguments) {
  FakePmiServer server{{.world_size = 1}};
  const auto store = join(server, 0, 1);
  store->put("k", {});
  for (const auto& error : {error_of([&] { store->put("k", {}); }), error_of([&] { store->put("a b", {}); }),
                            error_of([&] { store->get(0, "", soon()); }), error_of([&] { store->get(1, "k", soon()); }),
                            error_of([&] { store->get(-1, "k", soon()); })}) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::invalid_argument) << error->what();
  }
}

TEST(Pmi2Store, NamesExactlyTheRanksThatDidNotArrive) {
  constexpr int kRanks = 8;
  FakePmiServer server{{.world_size = kRanks}};
  std::atomic<int> told = 0;
  run_ranks(kRanks, [&](int rank) {
    auto store = join(server, rank, kRanks);
    store->fence(soon());  // their names are known from this one, with an older number
    if (rank == 2 || rank == 5) {
      while (told < kRanks - 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return;
    }
    const Deadline deadline = soon(4000);  // a quarter of it is for asking who is absent
    const auto error = error_of([&] { store->fence(deadline); });
    EXPECT_LT(Deadline::Clock::now(), deadline.when() + test::kBusyMachine);
    ++told;
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::timeout);
    EXPECT_THAT(error->ranks(), ElementsAre(2, 5)) << error->what();
    EXPECT_EQ(error_of([&] { store->put("later", {}); })->code(), ErrorCode::unavailable);
    EXPECT_EQ(error_of([&] { store->fence(soon()); })->code(), ErrorCode::unavailable);
  });
}

TEST(Pmi2Store, WaitsForALateRankUntilTheEnd) {
  constexpr int kRanks = 3;
  FakePmiServer server{{.world_size = kRanks}};
  run_ranks(kRanks, [&](int rank) {
    auto store = join(server, rank, kRanks);
    const Deadline deadline = soon(4000);
    // Within the time in which the others already ask who is missing.
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(3300));
    EXPECT_NO_THROW(store->fence(deadline));
    EXPECT_NO_THROW(store->fence(soon()));
  });
}

TEST(Pmi2Store, SaysSoWhenItCannotFindOutWhoIsAbsent) {
  FakePmiServer server{{.world_size = 2, .silent_command = "name-lookup"}};
  const auto store = join(server, 0, 2);
  const Deadline deadline = soon(400);
  const Error error = thrown_by([&] { store->fence(deadline); });
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_TRUE(error.ranks().empty());
  EXPECT_THAT(error.what(), HasSubstr("unknown"));
  EXPECT_LT(Deadline::Clock::now(), deadline.when() + test::kBusyMachine);
}

TEST(Pmi2Store, RankAndSizeMustBeThoseOfTheEnvironment) {
  FakePmiServer server{{.world_size = 2, .rank_offset = 1}};
  const Error rank_error = thrown_by([&] { join(server, 0, 2); });
  EXPECT_EQ(rank_error.code(), ErrorCode::conflict);
  EXPECT_THAT(rank_error.what(), HasSubstr("PMI_RANK says rank 0, the PMI-2 server says 1"));
  FakePmiServer other{{.world_size = 2}};
  const Error size_error = thrown_by([&] { join(other, 0, 3); });
  EXPECT_THAT(size_error.what(), HasSubstr("PMI_SIZE says size 3, the PMI-2 server says 2"));
}

TEST(Pmi2Store, ImpossibleRankIsAProtocolError) {
  EXPECT_EQ(joining_error({.rank_offset = 7})->code(), ErrorCode::protocol);
}

TEST(Pmi2Store, SilentServerEndsAtTheDeadline) {
  EXPECT_EQ(joining_error({.greeting = ""})->code(), ErrorCode::timeout);
  EXPECT_EQ(joining_error({.greeting = "cmd=response_to_init rc=0"})->code(), ErrorCode::timeout);
  EXPECT_EQ(joining_error({.silent_command = "fullinit"})->code(), ErrorCode::timeout);
  EXPECT_EQ(joining_error({.raw = {{"fullinit", "70    cmd=fullinit-resp"}}})->code(), ErrorCode::timeout);
  EXPECT_FALSE(joining_error({}));
}

TEST(Pmi2Store, GarbageIsAProtocolError) {
  EXPECT_EQ(joining_error({.greeting = std::string(5000, 'x')})->code(), ErrorCode::protocol);
  EXPECT_EQ(joining_error({.greeting = "hello\n"})->code(), ErrorCode::protocol);
  EXPECT_EQ(joining_error({.raw = {{"fullinit", "garbage garbage"}}})->code(), ErrorCode::protocol);
  EXPECT_EQ(joining_error({.raw = {{"fullinit", "9     cmd=nope;"}}})->code(), ErrorCode::protocol);
  EXPECT_EQ(joining_error({.raw = {{"fullinit", encode_pmi2({.command = "kvs-fence-response"})}}})->code(),
            ErrorCode::protocol);
}

TEST(Pmi2Store, ServerThatClosesIsLost) {
  EXPECT_EQ(joining_error({.fatal_command = "fullinit"})->code(), ErrorCode::peer_lost);
  FakePmiServer server{{.world_size = 2, .fatal_command = "kvs-fence"}};
  const auto store = join(server, 0, 2);
  EXPECT_EQ(error_of([&] { store->fence(soon()); })->code(), ErrorCode::peer_lost);
}

TEST(Pmi2Store, SecondUseInATaskIsExplained) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  ::close(ends[1]);
  const Error error = thrown_by([&] { Pmi2Store(base::UniqueFd{ends[0]}, identity(0, 1), soon(200)); });
  EXPECT_EQ(error.code(), ErrorCode::peer_lost);
  EXPECT_THAT(error.hint(), HasSubstr("second time"));
}

TEST(Pmi2Store, RefusalCarriesTheNativeCode) {
  const std::string refusal =
      encode_pmi2({.command = "fullinit-response", .fields = {{"rc", "3"}, {"errmsg", "no such job"}}});
  const auto error = joining_error({.raw = {{"fullinit", refusal}}});
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::unavailable);
  EXPECT_EQ(error->native(), "PMI2_ERR_INVALID_ARG (3)");
  EXPECT_THAT(error->what(), HasSubstr("no such job"));
}

TEST(Pmi2Store, DescriptorThatIsNoSocketIsLeftAlone) {
  const int closed = ::open("/dev/null", O_RDONLY);
  ::close(closed);
  const Error gone = thrown_by([&] { Pmi2Store(base::UniqueFd{closed}, identity(0, 1), soon(200)); });
  EXPECT_EQ(gone.code(), ErrorCode::unavailable);
  EXPECT_EQ(gone.native(), "EBADF (9)");
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const Error pipe_error = thrown_by([&] { Pmi2Store(base::UniqueFd{ends[0]}, identity(0, 1), soon(200)); });
  EXPECT_EQ(pipe_error.native(), "ENOTSOCK (88)");
  EXPECT_EQ(::close(ends[0]), 0) << "the store closed a descriptor that is not PMI's";
  ::close(ends[1]);
}

TEST(Pmi2Store, CloseIsIdempotentAndFinal) {
  FakePmiServer server{{.world_size = 1}};
  const auto store = join(server, 0, 1);
  store->close();
  store->close();
  for (const auto& error : {error_of([&] { store->put("k", {}); }), error_of([&] { store->fence(soon()); }),
                            error_of([&] { store->get(0, "k", soon()); })}) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::unavailable);
  }
}

TEST(Pmi2Store, CloseGivesUpOnASilentServer) {
  FakePmiServer server{{.world_size = 1, .silent_command = "finalize"}};
  const auto store = join(server, 0, 1);
  const auto begin = std::chrono::steady_clock::now();
  store->close();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

}  // namespace
}  // namespace ddp::kvs
