// What ranks tell each other of their backends before they connect.
#include <ddp/error.hpp>

#include "base/byte_stream.hpp"
#include "collectives/backend.hpp"
#include "collectives/group_backends.hpp"
#include "support/checkout.hpp"
#include "unit/kvs/rank_threads.hpp"

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

std::string plugin_folder() { return ddp::test::built_file("tests/unit/collectives/plugins"); }

TEST(GroupBackends, RefuseRanksOfAnotherVersion) {
  const GroupMembers members = three_members();
  const ConnectOptions connect{.interface_address = "127.0.0.1"};
  GroupBackends backends(BackendChoice::of("host"), members, connect);
  const Bytes other = base::ByteWriter().text("9.8.7").blob({}).bytes();
  const Error error = ddp::test::thrown_by([&] {
    backends.connect({backends.addresses(), other, other}, Deadline::after(std::chrono::seconds(10)));
  });
  EXPECT_EQ(error.code(), ErrorCode::conflict) << error.what();
  EXPECT_EQ(error.ranks(), (std::vector{3, 5, 6}));
  EXPECT_NE(error.cause().find("9.8.7"), std::string::npos) << error.cause();
}

/// Which has none for barriers and for the comparison of arguments.
TEST(GroupBackends, RefuseAFirstOneThatServesNoCpuTensors) {
  const GroupMembers members = three_members();
  const ConnectOptions connect{.interface_address = "127.0.0.1"};
  ::setenv("DDP_BACKEND_PATH", plugin_folder().c_str(), 1);
  GroupBackends backends(BackendChoice::of("test_cuda_only"), members, connect);
  ::unsetenv("DDP_BACKEND_PATH");
  const Bytes all = backends.addresses();
  const Error error = ddp::test::thrown_by([&] {
    backends.connect({all, all, all}, Deadline::after(std::chrono::seconds(10)));
  });
  EXPECT_EQ(error.code(), ErrorCode::unavailable) << error.what();
  EXPECT_NE(error.cause().find("'test_cuda_only' serves no CPU tensors"), std::string::npos) << error.cause();
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
  ::setenv("DDP_BACKEND_PATH", plugin_folder().c_str(), 1);
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
  const Error error = ddp::test::thrown_by([&] { backends_of_one("cuda:host"); });
  EXPECT_EQ(error.code(), ErrorCode::unavailable) << error.what();
  EXPECT_NE(error.cause().find("'host' serves no CUDA tensors"), std::string::npos) << error.cause();
}

}  // namespace

// Loading backends by name: what is found, and the error for each kind of wrong file.

namespace {

struct BackendLoader : ::testing::Test {
  BackendLoader() { ::setenv("DDP_BACKEND_PATH", plugin_folder().c_str(), 1); }
  ~BackendLoader() override { ::unsetenv("DDP_BACKEND_PATH"); }

  static Error refusal(const std::string& name) {
    const auto error = ddp::test::error_of([&] { load_backend(name); });
    if (error) return *error;
    ADD_FAILURE() << name << " was loaded";
    return Error{{.code = ErrorCode::aborted}};
  }
};

TEST_F(BackendLoader, LoadsAPluginOnce) {
  const BackendPlugin& plugin = load_backend("test_good");
  EXPECT_STREQ(plugin.name, "test_good");
  EXPECT_EQ(plugin.version, kBackendVersion);
  EXPECT_NE(plugin.create, nullptr);
  EXPECT_EQ(&load_backend("test_good"), &plugin);
}

TEST_F(BackendLoader, ABackendThatIsNotThere) {
  const Error error = refusal("no_such");
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_THAT(error.what(), HasSubstr("'no_such'"));
  EXPECT_THAT(error.what(), HasSubstr(plugin_folder() + "/libddp_no_such.so"));
  EXPECT_THAT(error.hint(), HasSubstr("DDP_BACKEND_PATH"));
  EXPECT_THAT(error.hint(), HasSubstr("host (also called cpu or gloo), nccl"));
  EXPECT_THAT(error.what(), testing::ContainsRegex("/libddp_no_such.so.*; libddp_no_such.so"))
      << "the folder of one plugin must not hide others";
}

TEST_F(BackendLoader, WithoutAPathItLooksBesideTheLibraryAndWhereTheLoaderDoes) {
  ::unsetenv("DDP_BACKEND_PATH");
  const Error error = refusal("no_such");
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_THAT(error.what(), testing::ContainsRegex("/libddp_no_such.so.*; libddp_no_such.so"));
}

TEST_F(BackendLoader, NamesThatArePathsAreRefused) {
  for (const std::string name : {"", "/tmp/x", "../x", "a/b", "NCCL", "a b"}) {
    EXPECT_EQ(refusal(name).code(), ErrorCode::invalid_argument) << name;
  }
}

TEST_F(BackendLoader, ALibraryThatIsNoPlugin) {
  const Error error = refusal("test_no_symbol");
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_THAT(error.what(), HasSubstr("ddp_backend_plugin"));
}

TEST_F(BackendLoader, AFileThatIsNoLibrary) {
  const Error error = refusal("test_text");
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_THAT(error.what(), HasSubstr("libddp_test_text.so"));
  EXPECT_THAT(error.what(), testing::Not(HasSubstr("; libddp_test_text.so")))
      << "another of its name must not take its place";
}

TEST_F(BackendLoader, APluginOfAnotherVersion) {
  const Error error = refusal("test_other_version");
  EXPECT_EQ(error.code(), ErrorCode::mismatch);
  EXPECT_THAT(error.what(), HasSubstr("interface version " + std::to_string(kBackendVersion + 1)));
  EXPECT_EQ(refusal("test_other_version").code(), ErrorCode::mismatch) << "a failure must not be remembered as success";
}

TEST_F(BackendLoader, APluginOfAnotherNameThanItsFile) {
  const Error error = refusal("test_other_name");
  EXPECT_EQ(error.code(), ErrorCode::mismatch);
  EXPECT_THAT(error.what(), HasSubstr("'example'"));
  EXPECT_THAT(error.hint(), HasSubstr("libddp_test_other_name.so"));
}

TEST_F(BackendLoader, WhatIsBuiltInNeedsNoLibrary) { EXPECT_EQ(&load_backend("local"), &kLocalBackend); }

TEST(LocalBackend, CopiesInputToOutput) {
  const auto backend = kLocalBackend.create({});
  EXPECT_TRUE(backend->traits().serves_cpu);
  EXPECT_FALSE(backend->traits().serves_cuda);
  const auto outcome = [&](std::span<const Operation> operations) {
    Request& request = backend->init(operations, ddp::test::soon());
    request.post();
    const Outcome result = request.poll();
    EXPECT_EQ(request.poll(), result);
    if (result != Outcome::ok) {
      EXPECT_THAT(request.failure().cause, HasSubstr("with itself"));
    }
    request.release();
    return result;
  };
  std::vector<float> from{1, 2, 3};
  std::vector<float> to(3);
  std::vector<Operation> operations(2);
  operations[0].kind = OperationKind::all_gather;
  operations[0].input = from;
  operations[0].output = to;
  EXPECT_EQ(outcome(operations), Outcome::ok);
  EXPECT_EQ(to, from);
  operations[0].input = to;
  EXPECT_EQ(outcome(operations), Outcome::ok) << "in place";
  EXPECT_EQ(to, from);
  operations[1].kind = OperationKind::send;
  EXPECT_EQ(outcome(operations), Outcome::mismatch);
}

}  // namespace

}  // namespace ddp::collectives
