// A rank that has run out of memory: the peer channel drops what it cannot serve, and goes on. By itself, because
// operator new is this file's.
#include <new>

#include "world/peer_channel.hpp"
#include "world/peer_questions.hpp"

namespace {

// From this size on there is no memory for threads other than the test's own.
std::atomic<std::size_t> scarce_from{SIZE_MAX};
thread_local bool exempt = false;

}  // namespace

void* operator new(std::size_t size) {
  if (!exempt && size >= scarce_from) throw std::bad_alloc();
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*size*/) noexcept { std::free(memory); }

namespace ddp::world {
namespace {

PeerReply ask(const PeerChannel& channel, std::size_t size) {
  const PeerEndpoint endpoint{.rank = 0, .address = "127.0.0.1", .port = channel.port(), .token = channel.token()};
  return ask_peers({endpoint}, "echo", Bytes(size), Deadline::after(std::chrono::seconds(10))).at(0);
}

TEST(PeerChannelMemory, WhatDoesNotFitIsDroppedAndOthersAreServed) {
  exempt = true;
  PeerChannel channel{"127.0.0.1"};
  channel.serve("echo", [](std::span<const std::byte> body) { return Bytes(body.begin(), body.end()); });
  for (const std::size_t scarce : {std::size_t{100'000}, std::size_t{1}}) {
    scarce_from = scarce;
    EXPECT_EQ(ask(channel, 500'000).kind, PeerReply::Kind::hung_up) << scarce;
    scarce_from = SIZE_MAX;
    EXPECT_EQ(ask(channel, 500'000).kind, PeerReply::Kind::answered) << scarce;
  }
}

}  // namespace
}  // namespace ddp::world
