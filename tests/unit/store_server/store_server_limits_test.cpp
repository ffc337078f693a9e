// Who exceeds a limit of memory is closed and named; others are served, and the process does not grow beyond it.
#include <sys/socket.h>

#include "refusal_lines.hpp"
#include "store_client.hpp"
#include "store_server/store_server.hpp"

namespace ddp::store_server {
namespace {

namespace request = test::store_request;
using request::text;
using test::next_refusal;
using test::StoreClient;

const std::string kMegabyte(kMiB, 'v');

/// 0 in sanitized programs, whose own bookkeeping takes several times as much.
std::size_t resident_bytes() {
#ifdef DDP_SANITIZED
  return 0;
#else
  std::size_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
#endif
}

/// Small, so that tests are quick; each other one is PyTorch's size or more.
StoreLimits small_limits() {
  return {.request_bytes = 10 * kMiB,
          .answer_bytes = 12 * kMiB,
          .stored_bytes = 16 * kMiB,
          .unread_bytes = 24 * kMiB,
          .large_requests = 2,
          .stall = std::chrono::seconds(1)};
}

/// For tests whose clients do all they should: one that the machine holds up for a while is not closed.
StoreLimits patient_limits() {
  StoreLimits limits = small_limits();
  limits.stall = test::kPatience;
  return limits;
}

struct StoreServerLimits : testing::Test {
  StoreServer server_{{.limits = small_limits()}};
  StoreClient bystander_{server_.port()};

  /// Sends until the server closes, or all @p rounds are sent.
  void expect_closed(StoreClient& offender, const std::string& bytes, int rounds, const std::string& words) {
    const std::size_t before = resident_bytes();
    try {
      for (int i = 0; i < rounds; ++i) offender.send(bytes);
    } catch (const Error&) {  // closed
    }
    EXPECT_TRUE(offender.is_closed());
    const std::string line = next_refusal(server_);
    EXPECT_NE(line.find("closed the connection from 127.0.0.1:"), std::string::npos) << line;
    EXPECT_NE(line.find(words), std::string::npos) << line;
    EXPECT_LT(resident_bytes(), before + 64 * kMiB);
    EXPECT_TRUE(bystander_.ping());
  }
};

TEST_F(StoreServerLimits, ValuesOf8MiBAreLegal) {
  const std::string value(8 * kMiB, 'v');
  StoreClient client{server_.port()};
  for (int i = 0; i < 5; ++i) {  // replaced, not added
    client.send(request::set("/k", value));
    EXPECT_TRUE(client.ask(request::get("/k"), text(value)) == text(value));
  }
}

TEST_F(StoreServerLimits, AllValuesTogether) {
  StoreClient offender{server_.port()};
  std::string keys;
  for (int i = 0; i < 32; ++i) keys += request::set("/k" + std::to_string(i), kMegabyte);
  expect_closed(offender, keys, 8, "do not fit into the store");
  StoreClient heir{server_.port()};
  heir.send(request::delete_key("/k0"));
  EXPECT_EQ(heir.receive(8), request::integer(std::int64_t{1}));
  heir.send(request::set("/k", std::string(kMiB / 2, 'v')));
  EXPECT_TRUE(heir.ping());
}

TEST_F(StoreServerLimits, ManySmallKeys) {
  StoreClient offender{server_.port()};
  std::string keys;
  for (int i = 0; i < 400'000; ++i) keys += request::set("/" + std::to_string(i), "");
  expect_closed(offender, keys, 1, "do not fit into the store");
}

TEST_F(StoreServerLimits, QueuesAndWaits) {
  StoreClient pusher{server_.port()};
  expect_closed(pusher, request::queue_push("/q", kMegabyte), 32, "do not fit into the store");
  StoreClient waiter{server_.port()};
  std::vector<std::string> keys;
  for (int i = 0; i < 100'000; ++i) keys.push_back("/absent" + std::to_string(i));
  expect_closed(waiter, request::wait(keys), 1, "do not fit into the store");
  StoreClient popper{server_.port()};
  popper.send(request::queue_pop("/q"));
  EXPECT_TRUE(popper.receive(16 + kMiB).ends_with('v'));
}

TEST_F(StoreServerLimits, AppendedValues) {
  StoreClient offender{server_.port()};
  expect_closed(offender, request::append("/k", kMegabyte), 32, "the limit is 8388608");
}

TEST_F(StoreServerLimits, OneRequest) {
  StoreClient offender{server_.port()};
  std::vector<std::string> pairs;
  for (int i = 0; i < 20; ++i) pairs.insert(pairs.end(), {"/k" + std::to_string(i), kMegabyte});
  expect_closed(offender, request::multi_set(pairs), 1, "more than 10485760 bytes in all");
}

TEST_F(StoreServerLimits, OneAnswer) {
  StoreClient offender{server_.port()};
  offender.send(request::set("/k", kMegabyte));
  expect_closed(offender, request::multi_get(std::vector<std::string>(13, "/k")), 1, "the answer would have");
  EXPECT_EQ(bystander_.ask(request::multi_get({"/k"}), text(kMegabyte)), text(kMegabyte));
}

TEST_F(StoreServerLimits, UnreadAnswersOfOneClient) {
  StoreClient offender{server_.port()};
  offender.send(request::set("/k", kMegabyte));
  expect_closed(offender, request::get("/k"), 100, "the limit of unread ones is");
  StoreClient small{server_.port()};
  const std::string ping = request::ping(1);
  std::string pings;
  for (int i = 0; i < 1'000'000; ++i) pings += ping;
  expect_closed(small, pings, 8, "bytes of answers unread");
}

// All get them: those that ask later wait until the first have read.
TEST(StoreServerQueue, UnreadAnswersOfAllClients) {
  StoreServer server{{.limits = patient_limits()}};
  StoreClient writer{server.port()};
  writer.send(request::set("/k", std::string(8 * kMiB, 'v')));
  EXPECT_TRUE(writer.ping());
  const std::size_t before = resident_bytes();
  std::vector<StoreClient> clients;
  for (int i = 0; i < 16; ++i) {
    clients.emplace_back(server.port());
    clients.back().send(request::get("/k"));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(resident_bytes(), before + 80 * kMiB);
  // Side by side: the server need not have seen the requests in the order in which they were sent.
  std::vector<std::thread> readers;
  for (StoreClient& client : clients) {
    readers.emplace_back([&client] { EXPECT_EQ(client.receive(8 + 8 * kMiB).size(), 8 + 8 * kMiB); });
  }
  for (std::thread& reader : readers) reader.join();
  EXPECT_TRUE(server.take_refusals().empty());
}

TEST_F(StoreServerLimits, WhoDoesNotReadWhileOthersWaitIsClosed) {
  bystander_.send(request::set("/k", std::string(8 * kMiB, 'v')));
  EXPECT_TRUE(bystander_.ping());
  std::vector<StoreClient> greedy;
  for (int i = 0; i < 8; ++i) {
    greedy.emplace_back(server_.port());
    greedy.back().send(request::get("/k"));
  }
  EXPECT_EQ(bystander_.ask(request::get("/k"), text("")).size(), 8U);
  EXPECT_NE(next_refusal(server_).find("others wait for that memory"), std::string::npos);
}

TEST(StoreServerQueue, LargeRequestsWaitForEachOther) {
  StoreServer server{{.limits = patient_limits()}};
  const std::string value(4 * kMiB, 'v');
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      StoreClient client{server.port()};
      client.send(request::set("/k", value));
      EXPECT_TRUE(client.ping());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(server.take_refusals().empty());
}

TEST_F(StoreServerLimits, WhoDoesNotSendTheRestWhileOthersWaitIsClosed) {
  const std::string whole = request::set("/slow", std::string(4 * kMiB, 'v'));
  std::vector<StoreClient> slow;
  for (int i = 0; i < 2; ++i) {
    slow.emplace_back(server_.port());
    slow.back().send(whole.substr(0, 2 * kMiB));
  }
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(bystander_.ping());  // the server has begun to read both
  bystander_.send(request::set("/k", std::string(4 * kMiB, 'v')));
  EXPECT_TRUE(bystander_.ping());
  EXPECT_NE(next_refusal(server_).find("others wait for that memory"), std::string::npos);
}

}  // namespace
}  // namespace ddp::store_server
