// What ranks leave on their host when all are killed at once, while they connect or work: nothing.
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>

#include "over.hpp"
#include "support/checkout.hpp"
#include "support/rank_processes.hpp"

namespace ddp::test {
namespace {

constexpr int kWorld = 4;

/// Makes the calling thread, and what it starts, see a /dev/shm and Unix sockets that nobody else has.
bool enter_own_namespaces() {
  if (::unshare(CLONE_NEWNS | CLONE_NEWNET) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("none", "/dev/shm", "tmpfs", 0, nullptr) != 0) {
    return false;
  }
  const base::UniqueFd any(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq loopback{};
  std::string("lo").copy(loopback.ifr_name, IFNAMSIZ - 1);
  loopback.ifr_flags = IFF_UP;
  return ::ioctl(any.get(), SIOCSIFFLAGS, &loopback) == 0;
}

/// Of the calling thread's network: "@ddp-shm-...", and paths.
std::vector<std::string> named_sockets() {
  std::vector<std::string> names;
  std::ifstream table("/proc/thread-self/net/unix");
  for (std::string line; std::getline(table, line);) {
    if (const auto name = line.find_first_of("@/"); name != std::string::npos) names.push_back(line.substr(name));
  }
  return names;
}

std::vector<std::string> files_below(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    names.push_back(entry.path().string());
  return names;
}

struct Killed {
  Over over;
  bool connecting;
};
void PrintTo(const Killed& killed, std::ostream* out) {
  *out << killed.over.name << (killed.connecting ? "_connecting" : "_working");
}

struct Remains : ::testing::TestWithParam<Killed> {
  Remains() { std::filesystem::create_directory(folder_); }
  ~Remains() override { std::filesystem::remove_all(folder_); }

  /// @return whether ranks were killed while one listened for those that share memory with it
  bool kill_all() {
    RankProcesses ranks(kWorld, {built_program("rank_program"), "loop", "60", "100000"}, {"TMPDIR=" + folder_.string()},
                        GetParam().over.memory_domains);
    bool listening = false;
    if (GetParam().connecting) {
      const Deadline look = Deadline::after(std::chrono::seconds(3));
      while (!listening && !look.expired()) listening = !named_sockets().empty();
    } else {
      EXPECT_TRUE(ranks.all_wrote("READY", Deadline::after(std::chrono::seconds(60))));
    }
    for (int rank = 0; rank < kWorld; ++rank) ranks.signal(rank, SIGKILL);
    for (const RankResult& result : ranks.wait(Deadline::after(std::chrono::seconds(60))))
      EXPECT_EQ(result.signal, SIGKILL) << result.output;
    EXPECT_THAT(named_sockets(), IsEmpty());
    EXPECT_THAT(files_below("/dev/shm"), IsEmpty());
    EXPECT_THAT(files_below(folder_), IsEmpty());
    return listening;
  }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("ddp-remains-" + std::to_string(::getpid()));
};

TEST_P(Remains, OfAGroupWhoseRanksAreAllKilledAreNone) {
  bool entered = false;
  std::thread([&] {
    entered = enter_own_namespaces();
    if (!entered) return;
    bool listened = kill_all();
    for (int more = 5; GetParam().connecting && !listened && more > 0; --more) listened = kill_all();
    EXPECT_EQ(listened, GetParam().connecting) << "no rank was seen to listen";
  }).join();
  if (!entered) GTEST_SKIP() << "namespaces cannot be made here";
}

INSTANTIATE_TEST_SUITE_P(Over, Remains,
                         ::testing::Values(Killed{kSharedMemory, true}, Killed{kTwoNodes, true},
                                           Killed{kSharedMemory, false}, Killed{kTwoNodes, false}, Killed{kTcp, false}),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace ddp::test
