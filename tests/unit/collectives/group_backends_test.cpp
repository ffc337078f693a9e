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

TEST(GroupBackends, AreNamedByDeviceAsInTorch) {
  const auto expect = [](std::string_view word, const char* cpu, const char* cuda, BackendChoice::Cuda how) {
    const BackendChoice choice = BackendChoice::of(word);
    EXPECT_EQ(choice.cpu, cpu) << word;
    EXPECT_EQ(choice.cuda_name, cuda) << word;
    EXPECT_EQ(choice.cuda, how) << word;
  };
  using Cuda = BackendChoice::Cuda;
  expect("cpu:gloo,cuda:nccl", "host", "nccl", Cuda::required);
  expect("cuda:mine,cpu:other", "other", "mine", Cuda::required);
  expect("cuda:mine", "host", "mine", Cuda::required);
  expect("cpu:mine", "mine", "", Cuda::none);
  expect("auto", "host", "nccl", Cuda::if_possible);
  expect("mine", "mine", "", Cuda::none);
  for (const char* word : {"", "cpu:", "cpu:a,", "cpu:a,cpu:b", "cuda:a,cuda:b", "xpu:a", "cpu:a;cuda:b", "cpu:auto",
                           "cuda:../x", ",cpu:a", "cpu:a,cuda"}) {
    try {
      BackendChoice::of(word);
      ADD_FAILURE() << word;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << word;
    }
  }
}

/// A group of one rank, over the backends of @p word; the plugins are the tests'.
std::vector<GroupBackend> backends_of_one(const char* word) {
  GroupMembers members = three_members();
  members.global_ranks = {3};
  members.nodes = {0};
  const ConnectOptions connect{.interface_address = "127.0.0.1"};
  ::setenv("DDP_BACKEND_PATH", TEST_PLUGIN_FOLDER, 1);
  GroupBackends backends(BackendChoice::of(word), members, connect);
  ::unsetenv("DDP_BACKEND_PATH");
  backends.connect({backends.addresses()}, Deadline::after(std::chrono::seconds(10)));
  return backends.take();
}

TEST(GroupBackends, AnyPluginThatServesThemCanHaveTheCudaTensors) {
  const auto backends = backends_of_one("cpu:host,cuda:test_cuda_only");
  ASSERT_EQ(backends.size(), 2U);
  EXPECT_EQ(backends[0].name, "host");
  EXPECT_EQ(backends[1].name, "test_cuda_only");
  EXPECT_TRUE(backends[1].backend->traits().serves_cuda);
}

TEST(GroupBackends, RefuseASecondOneThatServesNoCudaTensors) {
  try {
    backends_of_one("cuda:host");
    FAIL() << "connected";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable) << error.what();
    EXPECT_NE(error.cause().find("'host' serves no CUDA tensors"), std::string::npos) << error.cause();
  }
}

}  // namespace
}  // namespace ddp::collectives
