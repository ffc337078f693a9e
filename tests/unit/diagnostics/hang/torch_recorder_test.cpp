// A rank that is asked for a dump by its pipe, as NCCL's watchdog looks at it: late, in pieces, or never. The rank and
// its /proc are made up.
#include "diagnostics/hang/torch_recorder.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/unique_fd.hpp"
#include "diagnostics/hang/rank_file.hpp"
#include "support/checkout.hpp"

namespace ddp::diagnostics {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class TorchRecorderTest : public ::testing::Test {
 protected:
  TorchRecorderTest() {
    std::string name = (fs::temp_directory_path() / "torch-recorder-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "mkdtemp: " << name;
    folder_ = name;
    const fs::path process = folder_ / "proc/123";
    fs::create_directories(process);
    fs::create_symlink("/", process / "root");
    std::ofstream(process / "maps") << "7f00-7f01 r-xp 0 0:0 0 /opt/torch/lib/libtorch_cpu.so\n";
    std::ofstream(process / "environ", std::ios::binary)
        << "TORCH_NCCL_DEBUG_INFO_PIPE_FILE=" << (folder_ / "ask").string() << '\0'
        << "TORCH_NCCL_DEBUG_INFO_TEMP_FILE=" << (folder_ / "dump").string() << '\0';
    EXPECT_EQ(::mkfifo((folder_ / "ask0.pipe").c_str(), 0600), 0);
    pipe_.reset(::open((folder_ / "ask0.pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    RankFacts rank;
    rank.pid = 123;
    rank.rank = 0;
    rank.world_size = 2;
    rank.state = 'S';
    facts_.ranks.push_back(rank);
  }
  ~TorchRecorderTest() override { fs::remove_all(folder_); }

  bool asked() const {
    pollfd entry{.fd = pipe_.get(), .events = POLLIN, .revents = 0};
    return ::poll(&entry, 1, 60'000) == 1;
  }
  void ask(std::chrono::milliseconds limit) { ask_torch((folder_ / "proc").string(), facts_, Deadline::after(limit)); }

  fs::path folder_;
  base::UniqueFd pipe_;
  HostFacts facts_;
};

TEST_F(TorchRecorderTest, AnotherUsersPipeIsNotWrittenTo) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs files of two users";
  ASSERT_EQ(::chown((folder_ / "ask0.pipe").c_str(), 12'002, 12'002), 0);
  ask(std::chrono::seconds(1));
  char byte = 0;
  EXPECT_LT(::read(pipe_.get(), &byte, 1), 1);
}

TEST_F(TorchRecorderTest, LinksDoNotLeadOutOfTheRanksRoot) {
  fs::create_directories(folder_ / "root/inner");
  fs::rename(folder_ / "ask0.pipe", folder_ / "elsewhere.pipe");
  fs::create_directory_symlink(folder_, folder_ / "root/out");          // absolute: in the rank's root there is none
  fs::create_directory_symlink("../..", folder_ / "root/inner/above");  // stays in the root
  fs::create_directory_symlink("/inner", folder_ / "root/link");
  fs::remove(folder_ / "proc/123/root");
  fs::create_directory_symlink(folder_ / "root", folder_ / "proc/123/root");
  const auto opens = [&](const std::string& path) {
    return static_cast<bool>(open_rank_file((folder_ / "proc").string(), 123, path, S_IFIFO, O_WRONLY));
  };
  EXPECT_FALSE(opens("/out/elsewhere.pipe"));
  EXPECT_FALSE(opens("/inner/above/../elsewhere.pipe"));
  EXPECT_FALSE(opens((folder_ / "elsewhere.pipe").string()));
  ASSERT_EQ(::mkfifo((folder_ / "root/inner/own.pipe").c_str(), 0600), 0);
  const base::UniqueFd reader{::open((folder_ / "root/inner/own.pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)};
  EXPECT_TRUE(opens("/inner/own.pipe"));
  EXPECT_TRUE(opens("/link/own.pipe")) << "its own links are its own";
  fs::create_directory_symlink(folder_ / "root/inner", folder_ / "proc/123/cwd");
  EXPECT_TRUE(opens("own.pipe"));
  EXPECT_TRUE(opens("../inner/own.pipe"));
}

TEST_F(TorchRecorderTest, ADumpThatComesLateAndInPiecesIsTaken) {
  std::ifstream recorded(ddp::test::source_root() / "tests/fuzz/corpus/fuzz_torch_trace/gloo.json", std::ios::binary);
  const std::string dump{std::istreambuf_iterator<char>{recorded}, std::istreambuf_iterator<char>{}};
  ASSERT_FALSE(dump.empty());
  std::thread rank([&] {
    if (!asked()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    std::ofstream file(folder_ / "dump0", std::ios::binary);
    file << dump.substr(0, dump.size() / 2) << std::flush;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    file << dump.substr(dump.size() / 2);
  });
  ask(std::chrono::seconds(60));
  rank.join();
  EXPECT_EQ(facts_.ranks[0].flight_source, FlightSource::torch);
  ASSERT_TRUE(facts_.ranks[0].flight);
  EXPECT_FALSE(facts_.ranks[0].flight->groups.empty());
  EXPECT_THAT(facts_.notes, IsEmpty());
}

TEST_F(TorchRecorderTest, WhoWritesNoneIsSaidAndNotWaitedForForever) {
  ask(std::chrono::milliseconds(700));
  EXPECT_TRUE(asked());
  EXPECT_EQ(facts_.ranks[0].flight_source, FlightSource::torch_unread);
  EXPECT_FALSE(facts_.ranks[0].flight);
  EXPECT_THAT(facts_.notes, ElementsAre(HasSubstr("rank 0 has a pipe that asks for a dump")));
}

}  // namespace
}  // namespace ddp::diagnostics
