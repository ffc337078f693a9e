// World::init without other ranks: alone, and with variables that promise a service which is not
// there. Each runs in a process of its own, since PMIx is one per process.
#include <poll.h>

#include <iostream>

#include <ddp/error.hpp>
#include <ddp/world.hpp>

#include "base/socket.hpp"
#include "unit/world/launch_samples.hpp"
#include "world/world_state.hpp"

namespace ddp {
namespace {

using world::samples::Variables;

struct ChildResult {
  int exit_code = -1;  ///< -1: killed at the time limit or by a signal
  std::string output;
  milliseconds took{};
};

/// Runs @p body in a child that has no variables of any launcher but @p variables. It gives the child's exit code.
ChildResult in_child(const Variables& variables, const std::function<int()>& body) {
  const auto begin = Deadline::Clock::now();
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return {};
  base::UniqueFd read_end{ends[0]};
  base::UniqueFd write_end{ends[1]};
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(write_end.get(), STDOUT_FILENO);
    ::dup2(write_end.get(), STDERR_FILENO);
    const char* path = std::getenv("PATH");
    const std::string kept = path != nullptr ? path : "";
    ::clearenv();
    ::setenv("PATH", kept.c_str(), 1);
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
    int code = 99;
    try {
      code = body();
    } catch (const Error& error) {
      std::cout << to_string(error.code()) << "|" << error.what() << std::endl;
      code = 10;
    }
    ::_exit(code);
  }
  write_end.reset();
  ChildResult result;
  const Deadline limit = Deadline::after(seconds(40));
  std::array<char, 4096> chunk{};
  while (base::wait_for(read_end.get(), POLLIN, limit)) {
    const ssize_t got = ::read(read_end.get(), chunk.data(), chunk.size());
    if (got <= 0) break;
    result.output.append(chunk.data(), static_cast<std::size_t>(got));
  }
  if (limit.expired()) ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  result.took = std::chrono::duration_cast<milliseconds>(Deadline::Clock::now() - begin);
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  return result;
}

/// What World::init says in an environment in which it must fail.
ChildResult failing_init(const Variables& variables, milliseconds timeout = seconds(5)) {
  return in_child(variables, [&] {
    const World world = World::init({.timeout = timeout, .keep_session = true});
    std::cout << "rank " << world.rank() << " of " << world.world_size() << std::endl;
    return 0;
  });
}

#define REQUIRE(condition)                               \
  do {                                                   \
    if (!(condition)) {                                  \
      std::cout << "not true: " #condition << std::endl; \
      return 1;                                          \
    }                                                    \
  } while (false)

TEST(WorldInit, AloneIsAWorldOfOne) {
  const ChildResult result = in_child({}, [] {
    World world = World::init();
    REQUIRE(world.rank() == 0 && world.world_size() == 1);
    REQUIRE(world.local_rank() == 0 && world.local_world_size() == 1);
    REQUIRE(world.node_rank() == 0 && world.num_nodes() == 1);
    REQUIRE(world.node_of(0) == 0 && world.local_rank_of(0) == 0);
    REQUIRE(world.ranks_on_node(0) == std::vector<int>{0});
    REQUIRE(world.source() == LaunchSource::single);
    REQUIRE(!world.source_reason().empty());
    std::array<char, 256> name{};
    ::gethostname(name.data(), name.size() - 1);
    REQUIRE(world.hostname(0) == name.data());
    REQUIRE(world.interface_address() == "127.0.0.1");
    REQUIRE(world.key_value_store().transport() == "memory");
    world.leave_session();
    world.leave_session();
    REQUIRE(world.rank() == 0);
    try {
      world.key_value_store();
      return 2;
    } catch (const Error& error) {
      REQUIRE(error.code() == ErrorCode::unavailable);
    }
    return 0;
  });
  EXPECT_EQ(result.exit_code, 0) << result.output;
}

/// As it is in the environment now; "-": not set.
std::string variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value != nullptr ? value : "-";
}

TEST(WorldInit, BindsButLeavesTheEnvironmentToTheProgram) {
  const ChildResult result =
      in_child({{"DDP_BIND", "numa"}, {"UCX_NET_DEVICES", "user's"}, {"DDP_LOG_LEVEL", "error"}}, [] {
        World world = World::init();
        if (!world.placement() || world.settings().empty()) return 1;
        for (const EnvironmentSetting& setting : world.settings()) {
          if (variable(setting.name) != "-" || setting.value.empty() || setting.reason.empty()) return 2;
          if (setting.name == "UCX_NET_DEVICES" || setting.name.starts_with("CUDA_")) return 3;
        }
        ::setenv("OMP_PROC_BIND", "close", 1);  // the program's own choice, after init
        world.export_settings();
        for (const EnvironmentSetting& setting : world.settings()) {
          if (variable(setting.name) != (setting.name == "OMP_PROC_BIND" ? "close" : setting.value)) return 4;
        }
        return variable("OMP_NUM_THREADS") != "-" && variable("UCX_NET_DEVICES") == "user's" ? 0 : 5;
      });
  EXPECT_EQ(result.exit_code, 0) << result.output;
}

TEST(WorldInit, WithoutDdpBindNothingIsRecommended) {
  const ChildResult result = in_child({}, [] {
    const World world = World::init();
    world.export_settings();
    return !world.placement() && world.settings().empty() && variable("OMP_NUM_THREADS") == "-" ? 0 : 1;
  });
  EXPECT_EQ(result.exit_code, 0) << result.output;
}

TEST(WorldInit, SeveralWorldsMayFollowEachOther) {
  const ChildResult result = in_child({}, [] {
    World first = World::init();
    World second = World::init();
    REQUIRE(WorldState::of(first).key("record") != WorldState::of(second).key("record"));
    first = std::move(second);
    REQUIRE(first.key_value_store().rank() == 0);
    return 0;
  });
  EXPECT_EQ(result.exit_code, 0) << result.output;
}

TEST(WorldInit, TheEnvironmentIsDumpedOnRequest) {
  const ChildResult result = in_child({{"NCCL_DEBG", "INFO"}}, [] {
    World world = World::init();
    ::setenv("NCCL_ALGO", "Ring", 1);
    world.dump_environment("stderr");
    world.dump_environment("stderr");
    try {
      world.dump_environment("/nowhere/dump.json");
      return 2;
    } catch (const Error& error) {
      REQUIRE(error.code() == ErrorCode::system);
    }
    return 0;
  });
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("did you mean NCCL_DEBUG?"));
  EXPECT_THAT(result.output, HasSubstr("  NCCL_ALGO  Ring              set after the start"));
}

TEST(WorldInit, TypingMistakesAreWarnedOf) {
  const ChildResult result = failing_init({{"DDP_LOGLEVEL", "debug"}});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("DDP_LOGLEVEL is not known to libddp; did you mean DDP_LOG_LEVEL?"));
}

TEST(WorldInit, ValuesThatCannotBeReadAreRefused) {
  for (const auto& [name, value] : Variables{{"DDP_LAUNCH", "mpi"}, {"DDP_SOCKET_IFNAME", "no-such-if"}}) {
    const ChildResult result = failing_init({{name, value}});
    EXPECT_EQ(result.exit_code, 10) << result.output;
    EXPECT_THAT(result.output, testing::StartsWith("invalid_argument|"));
    EXPECT_THAT(result.output, HasSubstr(name));
    EXPECT_THAT(result.output, HasSubstr(value));
  }
}

TEST(WorldInit, AConflictEndsTheSession) {
  const ChildResult result = failing_init({{"RANK", "3"}, {"WORLD_SIZE", "1"}});
  EXPECT_EQ(result.exit_code, 10) << result.output;
  EXPECT_THAT(result.output, HasSubstr("conflict|"));
  EXPECT_THAT(result.output, HasSubstr("RANK says 3"));
}

TEST(WorldInit, PmixNamespaceWithoutAServer) {
  const ChildResult result = failing_init({{"PMIX_NAMESPACE", "gone.job"}, {"PMIX_RANK", "0"}});
  EXPECT_EQ(result.exit_code, 10) << result.output;
  EXPECT_THAT(result.output, HasSubstr("unavailable|"));
  EXPECT_THAT(result.output, HasSubstr("gone.job"));
  EXPECT_LT(result.took, seconds(15));
}

TEST(WorldInit, PmixServerThatIsGone) {
  // nothing listens on port 1
  const ChildResult result = failing_init({{"PMIX_NAMESPACE", "gone.job"},
                                           {"PMIX_RANK", "0"},
                                           {"PMIX_SERVER_URI41", "server.0;tcp4://127.0.0.1:1"},
                                           {"PMIX_SERVER_URI4", "server.0;tcp4://127.0.0.1:1"},
                                           {"PMIX_SERVER_URI3", "server.0;tcp4://127.0.0.1:1"}});
  EXPECT_EQ(result.exit_code, 10) << result.output;
  EXPECT_THAT(result.output, testing::AnyOf(HasSubstr("unavailable|"), HasSubstr("timeout|")));
  EXPECT_THAT(result.output, HasSubstr("PMIx_Init"));
  EXPECT_LT(result.took, seconds(15));
}

TEST(WorldInit, PmixRankMissing) {
  const ChildResult result = failing_init({{"PMIX_NAMESPACE", "some.job"}});
  EXPECT_EQ(result.exit_code, 10) << result.output;
  EXPECT_THAT(result.output, HasSubstr("invalid_argument|"));
  EXPECT_THAT(result.output, HasSubstr("PMIX_RANK is not set"));
  EXPECT_LT(result.took, seconds(20));
}

TEST(WorldInit, PmiDescriptorThatIsClosed) {
  const ChildResult result = failing_init({{"PMI_FD", "777"}, {"PMI_RANK", "0"}, {"PMI_SIZE", "2"}});
  EXPECT_EQ(result.exit_code, 10) << result.output;
  EXPECT_THAT(result.output, HasSubstr("777"));
  EXPECT_THAT(result.output, HasSubstr("EBADF"));
  EXPECT_LT(result.took, seconds(20));
}

TEST(WorldInit, PmiDescriptorThatIsNoNumber) {
  const ChildResult result = failing_init({{"PMI_FD", "x"}});
  EXPECT_EQ(result.exit_code, 10) << result.output;
  EXPECT_THAT(result.output, HasSubstr("invalid_argument|"));
  EXPECT_THAT(result.output, HasSubstr("PMI_FD"));
}

TEST(WorldInit, TorchrunWithoutAStore) {
  const Variables torch{
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1"}};
  const ChildResult result = failing_init(torch, seconds(2));
  EXPECT_EQ(result.exit_code, 10) << result.output;
  EXPECT_THAT(result.output, testing::AnyOf(HasSubstr("unavailable|"), HasSubstr("timeout|")));
  EXPECT_THAT(result.output, HasSubstr("127.0.0.1:1"));
  EXPECT_THAT(result.output, HasSubstr("torchrun"));
  EXPECT_LT(result.took, seconds(20));
}

}  // namespace
}  // namespace ddp
