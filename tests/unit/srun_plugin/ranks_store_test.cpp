// Where the nodes of a step find the ranks' store. That rank 0's node serves it where srun is on another host is tested
// on a cluster (tests/cluster/spank.bats): on one host srun is always here.
#include "step_program/ranks_store.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ddp/error.hpp>

#include "base/socket.hpp"
#include "base/unique_fd.hpp"
#include "store_server/store_server.hpp"

namespace ddp::srun_plugin {
namespace {

using namespace std::chrono_literals;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

TEST(StorePlaceTest, ComesBackAsItWas) {
  for (const StorePlace& place : {StorePlace{}, StorePlace{.address = "10.0.0.1", .port = 4711}}) {
    EXPECT_EQ(decode_place(encode(place)), place);
    const Bytes whole = encode(place);
    for (std::size_t size = 0; size < whole.size(); ++size)
      EXPECT_THROW(decode_place(std::span{whole}.first(size)), Error) << size;
  }
  EXPECT_THROW(decode_place(encode(StorePlace{.address = "n0", .port = 1})), Error);
  EXPECT_THROW(decode_place(encode(StorePlace{.address = "::1", .port = 0})), Error);
}

class RanksStoreTest : public ::testing::Test {
 protected:
  RanksStoreTest() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    read_.reset(ends[0]);
    write_.reset(ends[1]);
  }
  RanksStore find(bool has_rank_0, std::chrono::milliseconds patience = 60s) {
    return {{.srun_address = "127.0.0.1",
             .srun_port = step_.port(),
             .key = key_,
             .node = "n0",
             .has_rank_0 = has_rank_0,
             .patience = patience},
            write_.get()};
  }
  std::string answer() {
    write_.reset();
    std::string text;
    char letter = 0;
    while (base::wait_for(read_.get(), POLLIN, Deadline::after(60s)) && ::read(read_.get(), &letter, 1) == 1)
      text += letter;
    return text;
  }
  StepStore client() { return {"127.0.0.1", step_.port()}; }
  std::string besides_srun() const { return "store 127.0.0.1 " + std::to_string(step_.port()) + "\n"; }

  store_server::StoreKey key_ = store_server::StoreKey::make();
  store_server::StoreServer step_{{.listen_addresses = {"127.0.0.1"}, .key = key_}};
  base::UniqueFd read_;
  base::UniqueFd write_;
};

TEST_F(RanksStoreTest, IsBesideSrunWhereRank0IsToo) {
  RanksStore store = find(true);
  EXPECT_EQ(answer(), besides_srun());
  EXPECT_EQ(decode_place(client().get({kPlaceKey}).front()), StorePlace{});
  store.wait();
}

TEST_F(RanksStoreTest, OtherNodesWaitForRank0sAndCheckThatItServesThem) {
  const store_server::StoreServer ranks({.listen_addresses = {"127.0.0.1"}, .key = key_});
  RanksStore store = find(false);
  client().set_first(kPlaceKey, encode(StorePlace{.address = "127.0.0.1", .port = ranks.port()}));
  EXPECT_EQ(answer(), "store 127.0.0.1 " + std::to_string(ranks.port()) + "\n");
}

TEST_F(RanksStoreTest, OneThatIsOutOfReachIsNamedWithTheReason) {
  std::uint16_t nobodys = 0;
  { nobodys = store_server::StoreServer({.listen_addresses = {"127.0.0.1"}, .key = key_}).port(); }
  client().set_first(kPlaceKey, encode(StorePlace{.address = "127.0.0.1", .port = nobodys}));
  RanksStore store = find(false);
  EXPECT_THAT(answer(), MatchesRegex("store 127.0.0.1 " + std::to_string(nobodys) + " error [^\n]*refused[^\n]*\n"));
  store.wait();
}

TEST_F(RanksStoreTest, ASilentRank0LeavesTheOneBesideSrunForAll) {
  RanksStore first = find(false, 100ms);
  EXPECT_EQ(answer(), besides_srun());
  EXPECT_EQ(decode_place(client().get({kPlaceKey}).front()), StorePlace{});
}

TEST_F(RanksStoreTest, AStepThatIsBeingEndedIsNotWaitedFor) {
  const auto begin = Deadline::Clock::now();
  RanksStore store = find(false, 3600s);
  StepStore other = client();
  give_up_place(other);
  EXPECT_EQ(answer(), besides_srun());
  EXPECT_LT(Deadline::Clock::now() - begin, 60s);
}

TEST_F(RanksStoreTest, WithoutAStoreBesideSrunThereIsOnlyAnError) {
  std::optional<RanksStore> store;
  store.emplace(RanksStoreOptions{.srun_address = "127.0.0.1", .srun_port = 1, .key = key_, .node = "n0"},
                write_.get());
  EXPECT_THAT(answer(), StartsWith("error "));
  store->wait();
}

}  // namespace
}  // namespace ddp::srun_plugin
