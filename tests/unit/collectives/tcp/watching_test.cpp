// Connections that epoll refuses to watch for a while, as for lack of memory: they work, and are watched again later.
#include <dlfcn.h>
#include <sys/epoll.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include "unit/collectives/tcp/tcp_ranks.hpp"

namespace {

/// How many additions of connections between ranks, open or opening, have been; negative: none is.
std::atomic<int> refused{-1};

/// How many additions of what only listens or has just been accepted will be refused.
std::atomic<int> refuse_readers{0};

}  // namespace

/// In the place of the C library's, for all of this program.
extern "C" int epoll_ctl(int poller, int operation, int descriptor, epoll_event* event) noexcept {
  if (operation == EPOLL_CTL_ADD && (event->events & (EPOLLRDHUP | EPOLLET)) != 0 && refused >= 0) {
    ++refused;
    errno = ENOMEM;
    return -1;
  }
  if (operation == EPOLL_CTL_ADD && event->events == EPOLLIN && refuse_readers.fetch_sub(1) > 0) {
    errno = ENOMEM;
    return -1;
  }
  static auto* const real = reinterpret_cast<decltype(&epoll_ctl)>(::dlsym(RTLD_NEXT, "epoll_ctl"));
  return real(poller, operation, descriptor, event);
}

namespace ddp::collectives::tcp {
namespace {

using std::chrono::seconds;
using testing::soon;

TEST(TcpWatching, WhatEpollHasRefusedIsWatchedLater) {
  testing::BackendRanks group(subject(2));
  refused = 0;
  group.on_all([&](int rank) { all_reduce(group.at(rank), 2, rank, 1, 10); });
  EXPECT_GT(refused, 0);
  refused = -1;
  std::atomic<bool> resting{false};
  group.on_all([&](int rank) {
    std::vector<float> values(10, 1);
    const Operation operation = message(rank == 0 ? OperationKind::recv : OperationKind::send, 1 - rank, 1, values);
    Request& request = group.at(rank).init({&operation, 1}, soon());
    if (rank == 0) {
      request.post();
      for (int i = 0; i < 10; ++i) EXPECT_EQ(request.poll(), Outcome::running);
      const auto begin = std::chrono::steady_clock::now();
      resting = true;
      group.at(rank).rest(seconds(30));
      EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(15)) << "nothing has woken it";
    } else {
      while (!resting) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      request.post();
    }
    Outcome outcome = Outcome::running;
    for (const Deadline limit = soon(); outcome == Outcome::running && !limit.expired();) outcome = request.poll();
    EXPECT_EQ(outcome, Outcome::ok);
    request.release();
  });
}

TEST(TcpWatching, AConnectionThatCannotBeWatchedIsMadeAgain) {
  testing::BackendRanks group(subject(2));
  refuse_readers = 2;
  group.on_all([&](int rank) { all_reduce(group.at(rank), 2, rank, 1, 10); });
  EXPECT_LE(refuse_readers, 0) << "none has been refused";
  refuse_readers = 0;
}

TEST(TcpWatching, ARankThatCannotListenSaysSo) {
  refuse_readers = 1;
  try {
    testing::BackendRanks group(subject(2));
    ADD_FAILURE() << "it has come to be";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::system);
    EXPECT_EQ(error.detail().native, "ENOMEM (12)");
  }
  refuse_readers = 0;
}

}  // namespace
}  // namespace ddp::collectives::tcp
