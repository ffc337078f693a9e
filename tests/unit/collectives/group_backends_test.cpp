// What ranks tell each other of their backends before they connect.
#include "collectives/group_backends.hpp"

#include <cstdlib>

#include <gtest/gtest.h>

#include <ddp/error.hpp>

#include "base/byte_stream.hpp"

namespace ddp::collectives {
namespace {

GroupMembers three_members() {
  return {.name = "world",
          .rank = 0,
          .global_ranks = {3, 5, 6},
          .endpoints = {},
          .nodes = {0, 0, 0},
          .channel = nullptr,
          .peer_timeout = std::chrono::seconds(1)};
}

TEST(GroupBackends, RefuseRanksOfAnotherVersion) {
  const GroupMembers members = three_members();
  const ConnectOptions connect{.interface_address = "127.0.0.1"};
  GroupBackends backends(BackendChoice::of("host"), members, connect);
  const Bytes other = base::ByteWriter().text("9.8.7").bytes();
  try {
    backends.connect({backends.addresses(), other, other}, Deadline::after(std::chrono::seconds(10)));
    FAIL() << "connected";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::conflict) << error.what();
    EXPECT_EQ(error.ranks(), (std::vector{3, 5, 6}));
    EXPECT_NE(error.cause().find("9.8.7"), std::string::npos) << error.cause();
  }
}

/// Which has none for barriers and for the comparison of arguments.
TEST(GroupBackends, RefuseAFirstOneThatServesNoCpuTensors) {
  const GroupMembers members = three_members();
  const ConnectOptions connect{.interface_address = "127.0.0.1"};
  ::setenv("DDP_BACKEND_PATH", TEST_PLUGIN_FOLDER, 1);
  GroupBackends backends(BackendChoice::of("test_cuda_only"), members, connect);
  ::unsetenv("DDP_BACKEND_PATH");
  const Bytes all = backends.addresses();
  try {
    backends.connect({all, all, all}, Deadline::after(std::chrono::seconds(10)));
    FAIL() << "connected";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable) << error.what();
    EXPECT_NE(error.cause().find("'test_cuda_only' serves no CPU tensors"), std::string::npos) << error.cause();
  }
}

}  // namespace
}  // namespace ddp::collectives
