// The addresses at which the store listens, and the one at which a node finds it.
#include "agent/store_reach.hpp"

#include <ddp/error.hpp>

#include "base/socket.hpp"
#include "store_server/store_server.hpp"

namespace ddp::launcher {
namespace {

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

const store_server::StoreKey kKey = store_server::StoreKey::make();
constexpr std::chrono::seconds kPatience{60};

/// A store for which this process is another host's.
store_server::StoreServer foreign_store() {
  return store_server::StoreServer{
      {.listen_addresses = {"127.0.0.1"}, .key = kKey, .is_own_host = [](const auto&) { return false; }}};
}

std::string error_of(const std::vector<std::string>& addresses, int port, std::chrono::milliseconds limit = kPatience) {
  try {
    reach_store(addresses, port, kKey, Deadline::after(limit));
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(StoreReach, TheFirstAddressThatServesIsTaken) {
  const store_server::StoreServer store = foreign_store();
  const ReachableStore found = reach_store({"127.9.9.9", "127.0.0.1"}, store.port(), kKey, Deadline::after(kPatience));
  EXPECT_EQ(found.address, "127.0.0.1");
  EXPECT_THAT(error_of({"127.9.9.9"}, store.port()), HasSubstr("127.9.9.9:"));
  EXPECT_THAT(error_of({}, store.port()), HasSubstr("no address but loopback"));
}

TEST(StoreReach, AnotherJobsStoreIsNotTaken) {
  const store_server::StoreServer other{{.listen_addresses = {"127.0.0.1"}, .key = store_server::StoreKey::make()}};
  EXPECT_THAT(error_of({"127.0.0.1"}, other.port()), HasSubstr("does not know this job's secret"));
  const base::UniqueFd silent = base::listen_tcp("127.0.0.1");
  EXPECT_THAT(error_of({"127.0.0.1"}, base::local_port(silent.get()), std::chrono::milliseconds(300)),
              HasSubstr("no answer"));
}

TEST(StoreReach, AddressesThatThisHostHasTooAreNotTried) {
  const base::UniqueFd someone = base::listen_tcp("127.0.0.1");
  EXPECT_THAT(error_of({"127.0.0.1", kForeign}, base::local_port(someone.get()), std::chrono::milliseconds(300)),
              HasSubstr("127.0.0.1: this node has that address, too"));
  EXPECT_FALSE(base::client_waits(someone.get()));
}

}  // namespace
}  // namespace ddp::launcher
