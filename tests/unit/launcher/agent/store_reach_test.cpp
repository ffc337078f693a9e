// The addresses at which the store listens, and the one at which a node finds it.
#include "agent/store_reach.hpp"

#include <gmock/gmock.h>

#include <chrono>

#include <ddp/error.hpp>

#include "base/socket.hpp"

namespace ddp::launcher {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// For documentation only (RFC 5737 and 3849): no host has them.
constexpr const char* kForeign = "192.0.2.1";
constexpr const char* kForeignV6 = "2001:db8::1";

TEST(StoreReach, TheStoreListensAtTheAddressesThatItsHostHas) {
  EXPECT_THAT(own_among({kForeign, "127.1.2.3", kForeignV6, "127.0.0.1"}), ElementsAre("127.1.2.3", "127.0.0.1"));
}

TEST(StoreReach, WithoutAnyItListensAtLoopback) {
  EXPECT_THAT(own_among({kForeign, kForeignV6}), ElementsAre("127.0.0.1"));
  EXPECT_THAT(own_among({}), ElementsAre("127.0.0.1"));
}

TEST(StoreReach, TheFirstAddressThatAnswersIsTaken) {
  const base::UniqueFd store = base::listen_tcp("127.0.0.1");
  const int port = base::local_port(store.get());
  const Deadline deadline = Deadline::after(std::chrono::seconds(60));
  EXPECT_EQ(reachable_store({"127.9.9.9", "127.0.0.1"}, port, deadline), "127.0.0.1");
  try {
    reachable_store({"127.9.9.9"}, port, deadline);
    ADD_FAILURE() << "nobody listens there";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("127.9.9.9:"));
  }
}

}  // namespace
}  // namespace ddp::launcher
