// The loop calls the right handler, whatever handlers do to descriptors that have events in the same moment.
#include "stream/event_loop.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <ddp/error.hpp>

namespace ddp::stream {
namespace {

struct EventPipe {
  base::UniqueFd reading, writing;
  EventPipe() {
    std::array<int, 2> fds{};
    EXPECT_EQ(::pipe2(fds.data(), O_CLOEXEC | O_NONBLOCK), 0);
    reading.reset(fds[0]);
    writing.reset(fds[1]);
  }
  void fill() const { EXPECT_EQ(::write(writing.get(), "x", 1), 1); }
  void drain() const {
    char byte = 0;
    EXPECT_EQ(::read(reading.get(), &byte, 1), 1);
  }
};

Deadline now() { return Deadline::after(0s); }
Deadline later() { return Deadline::after(30s); }

TEST(EventLoop, CallsTheHandlerWhileThereIsSomethingToRead) {
  EventLoop loop;
  EventPipe pipe;
  int calls = 0;
  loop.watch(pipe.reading.get(), [&] { ++calls; });
  loop.run_once(now());
  EXPECT_EQ(calls, 0);
  pipe.fill();
  loop.run_once(later());
  loop.run_once(later());
  EXPECT_EQ(calls, 2);
  pipe.drain();
  loop.run_once(now());
  EXPECT_EQ(calls, 2);
}

TEST(EventLoop, CallsTheHandlerWhenTheOtherEndIsGone) {
  EventLoop loop;
  EventPipe pipe;
  int calls = 0;
  loop.watch(pipe.reading.get(), [&] { ++calls; });
  pipe.writing.reset();
  loop.run_once(later());
  EXPECT_EQ(calls, 1);
}

TEST(EventLoop, CallsTheHandlerOfAWriterWhoseReaderIsGone) {
  EventLoop loop;
  EventPipe pipe;
  int calls = 0;
  loop.watch(pipe.writing.get(), [&] { ++calls; });  // only EPOLLERR can come
  pipe.reading.reset();
  loop.run_once(later());
  EXPECT_EQ(calls, 1);
}

TEST(EventLoop, WaitsUntilTheDeadlineAndNoLonger) {
  EventLoop loop;
  const auto begin = std::chrono::steady_clock::now();
  loop.run_once(Deadline::after(30ms));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 30ms);
}

TEST(EventLoop, WaitsForWritingOnlyWhileItIsWanted) {
  EventLoop loop;
  std::array<int, 2> fds{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()), 0);
  const base::UniqueFd one{fds[0]}, other{fds[1]};
  int calls = 0;
  loop.watch(one.get(), [&] { ++calls; });
  loop.run_once(now());
  EXPECT_EQ(calls, 0);
  loop.want_write(one.get(), true);
  loop.run_once(later());
  EXPECT_EQ(calls, 1);
  loop.want_write(one.get(), false);
  loop.run_once(now());
  EXPECT_EQ(calls, 1);
  loop.want_write(12345, true);  // nobody watches it
}

TEST(EventLoop, AHandlerMayForgetItself) {
  EventLoop loop;
  EventPipe pipe;
  pipe.fill();
  std::vector<int> kept{1, 2, 3};
  loop.watch(pipe.reading.get(), [&loop, &pipe, kept, copy = &kept] {
    loop.forget(pipe.reading.get());
    *copy = kept;  // what the handler owns is still there
    copy->push_back(4);
  });
  loop.run_once(later());
  loop.run_once(now());
  EXPECT_THAT(kept, ElementsAre(1, 2, 3, 4));
}

TEST(EventLoop, AHandlerMayForgetOthersOfTheSameMoment) {
  EventLoop loop;
  EventPipe one, other;
  int calls = 0;
  const auto handler = [&] {
    ++calls;
    loop.forget(one.reading.get());
    loop.forget(other.reading.get());
  };
  loop.watch(one.reading.get(), handler);
  loop.watch(other.reading.get(), handler);
  one.fill();
  other.fill();
  loop.run_once(later());
  loop.run_once(now());
  EXPECT_EQ(calls, 1);
}

TEST(EventLoop, ANewDescriptorOfTheSameNumberDoesNotInheritEvents) {
  EventLoop loop;
  EventPipe one, other, fresh;
  int wrong = 0, first = 0;
  // Whichever comes first replaces the other's file by an idle one of the same number.
  const auto replace = [&](int victim) {
    if (++first > 1) return;
    loop.forget(victim);
    ASSERT_EQ(::dup3(fresh.reading.get(), victim, O_CLOEXEC), victim);
    loop.watch(victim, [&] { ++wrong; });
  };
  loop.watch(one.reading.get(), [&] { replace(other.reading.get()); });
  loop.watch(other.reading.get(), [&] { replace(one.reading.get()); });
  one.fill();
  other.fill();
  loop.run_once(later());
  EXPECT_EQ(first, 1);
  EXPECT_EQ(wrong, 0);
  fresh.fill();  // and the new one is really watched
  loop.run_once(later());
  EXPECT_EQ(wrong, 1);
}

TEST(EventLoop, ANumberThatWasClosedWithoutAWordCanBeWatchedAgain) {
  EventLoop loop;
  int calls_before = 0, calls = 0;
  EventPipe fresh;
  EventPipe gone;
  const int number = gone.reading.get();
  loop.watch(number, [&] { ++calls_before; });
  gone.reading.reset();
  ASSERT_EQ(::dup3(fresh.reading.get(), number, O_CLOEXEC), number);
  loop.watch(number, [&] { ++calls; });
  fresh.fill();
  loop.run_once(later());
  EXPECT_EQ(calls_before, 0);
  EXPECT_EQ(calls, 1);
  ::close(number);
  loop.forget(number);  // late, but harmless
  loop.forget(number);
}

TEST(EventLoop, RefusesWhatCannotBeWatched) {
  EventLoop loop;
  EventPipe pipe;
  loop.watch(pipe.reading.get(), [] {});
  EXPECT_THROW(loop.watch(pipe.reading.get(), [] {}), Error);  // a descriptor is watched once
  EXPECT_THROW(loop.watch(-1, [] {}), Error);
  const base::UniqueFd file{::open("/proc/self/exe", O_RDONLY | O_CLOEXEC)};
  EXPECT_THROW(loop.watch(file.get(), [] {}), Error);  // epoll takes no regular files
}

TEST(EventLoop, IsReadableItselfWhenAHandlerIsDue) {
  EventLoop outer, inner;
  EventPipe pipe;
  int calls = 0;
  inner.watch(pipe.reading.get(), [&] { ++calls; });
  outer.watch(inner.fd(), [&] { inner.run_once(now()); });
  outer.run_once(now());
  EXPECT_EQ(calls, 0);
  pipe.fill();
  outer.run_once(later());
  EXPECT_EQ(calls, 1);
}

TEST(EventLoop, TellsTheHandlerWhatHasHappened) {
  EventLoop loop;
  EventPipe pipe;
  std::uint32_t seen = 0;
  loop.watch(pipe.writing.get(), EPOLLOUT, [&](std::uint32_t events) { seen = events; });
  loop.run_once(later());
  EXPECT_EQ(seen, EPOLLOUT);
  seen = 0;
  loop.change(pipe.writing.get(), 0);
  loop.run_once(now());
  EXPECT_EQ(seen, 0U);
  pipe.reading.reset();
  loop.run_once(later());
  EXPECT_EQ(seen, EPOLLERR);
}

TEST(Timer, CallsItsHandlerOnceAndNotTooEarly) {
  EventLoop outer, loop;
  outer.watch(loop.fd(), [&] { loop.run_once(now()); });  // so that it must become readable
  std::vector<int> calls;
  Timer first(loop, [&] { calls.push_back(1); });
  Timer second(loop, [&] { calls.push_back(2); });
  Timer never(loop, [&] { calls.push_back(3); });
  const auto begin = std::chrono::steady_clock::now();
  second.set(Deadline::after(60ms));
  first.set(Deadline::after(20ms));
  never.set(Deadline::after(1ms));
  never.set(std::nullopt);
  while (calls.size() < 2 && std::chrono::steady_clock::now() - begin < 60s) outer.run_once(Deadline::after(30s));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 60ms);
  EXPECT_THAT(calls, ElementsAre(1, 2));
  outer.run_once(now());
  EXPECT_THAT(calls, ElementsAre(1, 2));
}

TEST(Timer, AHandlerMaySetItAgainAndDestroyAnother) {
  EventLoop loop;
  int calls = 0;
  std::unique_ptr<Timer> other;
  Timer timer(loop, [&] {
    other.reset();
    if (++calls < 3) timer.set(now());
  });
  other = std::make_unique<Timer>(loop, [] { ADD_FAILURE() << "it is gone"; });
  timer.set(now());
  other->set(Deadline::after(1ms));
  std::this_thread::sleep_for(5ms);
  for (int i = 0; i < 100 && calls < 3; ++i) loop.run_once(Deadline::after(10ms));
  EXPECT_EQ(calls, 3);
}

TEST(EventLoop, AnExceptionOfAHandlerReachesTheCallerAndLosesNothing) {
  EventLoop loop;
  EventPipe one, other;
  int calls = 0;
  for (const EventPipe* pipe : {&one, &other}) {
    pipe->fill();
    loop.watch(pipe->reading.get(), [&, pipe] {
      pipe->drain();
      ++calls;
      throw std::runtime_error("no");
    });
  }
  EXPECT_THROW(loop.run_once(later()), std::runtime_error);
  EXPECT_THROW(loop.run_once(later()), std::runtime_error);
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace ddp::stream
