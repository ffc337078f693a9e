// The PMI-1 store against a server in a thread: what must work, and every way in which the server can fail it.
#include "kvs/pmi1_store.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>

#include <fmt/format.h>

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
using testing::HasSubstr;

std::unique_ptr<Pmi1Store> join_pmi1(FakePmiServer& server, int rank, int size, int ms = 20'000) {
  return std::make_unique<Pmi1Store>(server.take_client(rank), Pmi1Identity{.rank = rank, .size = size, .port_id = {}},
                                     soon(ms));
}

std::optional<Error> pmi1_joining_error(FakePmiServer::Options options) {
  options.version = 1;
  FakePmiServer server{std::move(options)};
  const auto begin = std::chrono::steady_clock::now();
  auto error = error_of([&] { join_pmi1(server, 0, 1, 200); });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, test::kBusyMachine);
  return error;
}

TEST(Pmi1Store, CarriesValuesOfAnyBytesAndSize) {
  constexpr int kRanks = 4;
  FakePmiServer server{{.world_size = kRanks, .version = 1}};
  run_ranks(kRanks, [&](int rank) {
    auto store = join_pmi1(server, rank, kRanks);
    EXPECT_EQ(store->process_mapping(), "(vector,(0,1,4))");
    for (const std::size_t size : test::kAwkwardSizes) store->put(fmt::format("k{}", size), awkward_value(rank, size));
    store->put_on_node("node", awkward_value(rank, 9));
    store->fence(soon());
    for (int peer = 0; peer < kRanks; ++peer) {
      for (const std::size_t size : test::kAwkwardSizes)
        EXPECT_EQ(store->get(peer, fmt::format("k{}", size), soon()), awkward_value(peer, size)) << size;
      EXPECT_EQ(store->get_on_node(peer, "node", soon()), awkward_value(peer, 9));
    }
    store->fence(soon());
    EXPECT_EQ(error_of([&] { store->get(0, "other", soon()); })->code(), ErrorCode::not_found);
    EXPECT_EQ(error_of([&] { store->put("k0", {}); })->code(), ErrorCode::invalid_argument);
  });
}

TEST(Pmi1Store, APortSaysWhoATaskIs) {
  FakePmiServer server{{.world_size = 3, .version = 1}};
  const Pmi1Store store{server.take_client(2), Pmi1Identity{.rank = {}, .size = {}, .port_id = 2}, soon()};
  EXPECT_EQ(store.rank(), 2);
  EXPECT_EQ(store.world_size(), 3);
  const Error error =
      thrown_by([&] { Pmi1Store(server.take_client(1), Pmi1Identity{.rank = 0, .size = 3, .port_id = 1}, soon()); });
  EXPECT_EQ(error.code(), ErrorCode::conflict);
  FakePmiServer strange{{.version = 1, .raw = {{"initack", "cmd=initack\ncmd=set rank=0\n"}}}};
  EXPECT_EQ(thrown_by([&] {
              Pmi1Store(strange.take_client(0), Pmi1Identity{.rank = {}, .size = {}, .port_id = 0}, soon());
            }).code(),
            ErrorCode::protocol);
}

TEST(Pmi1Store, AnAbsentRankEndsTheFenceAtTheDeadline) {
  constexpr int kRanks = 3;
  FakePmiServer server{{.world_size = kRanks, .version = 1}};
  std::atomic<int> gave_up = 0;
  run_ranks(kRanks, [&](int rank) {
    auto store = join_pmi1(server, rank, kRanks);
    store->fence(soon());
    if (rank == 1) {
      while (gave_up < kRanks - 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      EXPECT_NO_THROW(store->fence(soon())) << "the others are in it";
      return;
    }
    const auto error = error_of([&] { store->fence(soon(300)); });
    ++gave_up;
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::timeout);
    EXPECT_THAT(error->what(), HasSubstr("PMI-1 does not say which"));
    EXPECT_EQ(error_of([&] { store->put("later", {}); })->code(), ErrorCode::unavailable);
    EXPECT_EQ(error_of([&] { store->fence(soon()); })->code(), ErrorCode::unavailable);
    store->close();  // though the barrier's end may come first
  });
}

TEST(Pmi1Store, TheEnvironmentMustSayRankAndSize) {
  FakePmiServer server{{.world_size = 2, .version = 1}};
  const Error error =
      thrown_by([&] { Pmi1Store(server.take_client(0), Pmi1Identity{.rank = 0, .size = {}, .port_id = {}}, soon()); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.what(), HasSubstr("PMI_SIZE"));
}

TEST(Pmi1Store, ErrorsNameTheCommand) {
  for (const std::string command : {"init", "get_maxes", "get_my_kvsname", "get"}) {
    const auto silent = pmi1_joining_error({.silent_command = command});
    ASSERT_TRUE(silent);
    EXPECT_EQ(silent->code(), ErrorCode::timeout);
    EXPECT_THAT(silent->what(), HasSubstr("PMI-1 command " + command));
    EXPECT_EQ(pmi1_joining_error({.fatal_command = command})->code(), ErrorCode::peer_lost);
    const auto garbage = pmi1_joining_error({.raw = {{command, "cmd=nope rc=0\n"}}});
    EXPECT_EQ(garbage->code(), ErrorCode::protocol);
    EXPECT_THAT(garbage->what(), HasSubstr("answered " + command));
    EXPECT_EQ(pmi1_joining_error({.raw = {{command, "\n"}}})->code(), ErrorCode::protocol);
    EXPECT_EQ(pmi1_joining_error({.raw = {{command, std::string(100'000, 'x')}}})->code(), ErrorCode::protocol);
  }
  EXPECT_FALSE(pmi1_joining_error({}));
}

TEST(Pmi1Store, RefusalsCarryTheNativeCode) {
  const auto error = pmi1_joining_error({.raw = {{"init", "cmd=response_to_init pmi_version=2 rc=-1\n"}}});
  EXPECT_EQ(error->code(), ErrorCode::unavailable);
  EXPECT_EQ(error->native(), "PMI_FAIL (-1)");
  EXPECT_EQ(pmi1_joining_error({.raw = {{"init", "cmd=response_to_init pmi_version=2 rc=0\n"}}})->code(),
            ErrorCode::unavailable);
  EXPECT_EQ(pmi1_joining_error({.raw = {{"get_my_kvsname", "cmd=my_kvsname\n"}}})->code(), ErrorCode::protocol);
  EXPECT_EQ(pmi1_joining_error({.raw = {{"get", "cmd=get_result rc=0\n"}}})->code(), ErrorCode::protocol);
}

TEST(Pmi1Store, AValueThatTheServerRefusesFailsThePut) {
  FakePmiServer server{{.version = 1, .raw = {{"put", "cmd=put_result rc=7 msg=value too long\n"}}}};
  const auto store = join_pmi1(server, 0, 1);
  const Error error = thrown_by([&] { store->put("k", {}); });
  EXPECT_EQ(error.native(), "PMI_ERR_INVALID_VAL_LENGTH (7)");
  EXPECT_THAT(error.what(), HasSubstr("value too long"));
}

TEST(Pmi1Store, ALostServerEndsAFence) {
  FakePmiServer server{{.world_size = 2, .version = 1, .fatal_command = "barrier_in"}};
  const auto store = join_pmi1(server, 0, 2);
  EXPECT_EQ(error_of([&] { store->fence(soon()); })->code(), ErrorCode::peer_lost);
  FakePmiServer other{{.world_size = 1, .version = 1, .raw = {{"barrier_in", "cmd=barrier_out rc=1\n"}}}};
  const auto refused = join_pmi1(other, 0, 1);
  EXPECT_EQ(error_of([&] { refused->fence(soon()); })->native(), "PMI_ERR_INIT (1)");
}

}  // namespace
}  // namespace ddp::kvs
