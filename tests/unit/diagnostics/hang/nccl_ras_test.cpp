// NCCL's RAS: its answers in JSON and text, and servers that are silent, endless, or no RAS at all.
#include "diagnostics/hang/nccl_ras.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <ddp/error.hpp>

#include "base/socket.hpp"

namespace ddp::diagnostics {
namespace {

std::string ras_rank(int rank, int all_reduces, int all_gathers = 0, int error = 0) {
  return fmt::format(R"({{"rank": {0}, "host": "10.0.0.1", "pid": {1}, "cuda_dev": 0, "nvml_dev": 0,
      "status": {{"init_state": 0, "async_error": {4}, "finalize_called": false, "destroy_flag": false, "abort_flag": false}},
      "collective_counts": {{"AllReduce": {2}, "AllGather": {3}}}}})",
                     rank, 100 + rank, all_reduces, all_gathers, error);
}
std::string ras_missing(int rank, bool unresponsive, bool dead) {
  return fmt::format(R"({{"rank": {}, "host": "10.0.0.2", "pid": {}, "cuda_dev": 0, "nvml_dev": 0,
      "status": {{"unresponsive": {}, "considered_dead": {}}}}})",
                     rank, 100 + rank, unresponsive, dead);
}
std::string ras_answer(int size, const std::string& ranks, const std::string& missing = {}) {
  return fmt::format(R"({{"nccl_version": "2.28.9", "cuda_runtime_version": 12080, "cuda_driver_version": 12080,
      "timestamp": "2026-01-01 00:00:00", "communicators_count": 1, "communicators": [{{"hash": "0xabc",
      "secondary_hash": "0x1:0x2", "size": {}, "ranks_count": 1, "missing_ranks_count": 0, "ranks": [{}], "missing_ranks": [{}]}}],
      "ras": {{"collection_time_sec": 0.001, "timeouts_count": 0}}}})",
                     size, ranks, missing);
}

std::vector<std::string> texts(const std::vector<NcclTrouble>& troubles) {
  std::vector<std::string> all;
  for (const NcclTrouble& each : troubles) all.push_back(each.text);
  return all;
}

TEST(NcclRas, ARankThatHasCalledLessIsBehind) {
  const std::string answer = ras_answer(3, ras_rank(0, 34) + "," + ras_rank(1, 33) + "," + ras_rank(2, 34));
  const auto found = ras_troubles(answer, answer, {102});
  EXPECT_THAT(texts(found), ElementsAre("communicator 0xabc of 3 ranks: ranks have called different operations: rank 1 "
                                        "AllReduce 33; ranks 0, 2 AllReduce 34"));
  EXPECT_THAT(found.at(0).behind, ElementsAre(101));
  EXPECT_THAT(ras_troubles(answer, answer, {7}), IsEmpty()) << "another job's";
  const std::string before = ras_answer(3, ras_rank(0, 33) + "," + ras_rank(1, 33) + "," + ras_rank(2, 34));
  EXPECT_THAT(ras_troubles(before, answer, {102}), IsEmpty()) << "it goes on";
}

TEST(NcclRas, ARankThatHasCalledSomethingElseIsTheOddOne) {
  const std::string answer = ras_answer(3, ras_rank(0, 34, 5) + "," + ras_rank(1, 33, 6) + "," + ras_rank(2, 34, 5));
  const auto found = ras_troubles(answer, answer, {100});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_THAT(found[0].text, HasSubstr("ranks 0, 2 AllGather 5, AllReduce 34; rank 1 AllGather 6, AllReduce 33"));
  EXPECT_THAT(found[0].behind, ElementsAre(101));
}

TEST(NcclRas, TheTextOfManyRanksIsCut) {
  std::string ranks;
  for (int rank = 0; rank < 500; ++rank) ranks += (rank == 0 ? "" : ",") + ras_rank(rank, rank);
  const std::string answer = ras_answer(500, ranks);
  const auto found = ras_troubles(answer, answer, {100});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_LE(found[0].text.size(), 4100U);
  EXPECT_THAT(found[0].behind, ElementsAre(100));
}

TEST(NcclRas, MissingRanksAndErrorsAreNamed) {
  const std::string answer =
      ras_answer(5, ras_rank(0, 1) + "," + ras_rank(1, 1, 0, 6),
                 ras_missing(2, true, false) + "," + ras_missing(3, true, true) + "," + ras_missing(4, false, false));
  EXPECT_THAT(texts(ras_troubles(answer, answer, {104})),
              ElementsAre("communicator 0xabc of 5 ranks: rank 2 (pid 102 on 10.0.0.2) does not answer",
                          "communicator 0xabc of 5 ranks: rank 3 (pid 103 on 10.0.0.2) is considered dead",
                          "communicator 0xabc of 5 ranks: rank 4 (pid 104 on 10.0.0.2) has left it",
                          "communicator 0xabc of 5 ranks: rank 1 (pid 101 on 10.0.0.1) has error 6"));
}

TEST(NcclRas, OfATextWhatItComplainsAboutTwice) {
  const std::string text =
      "NCCL version 2.26.2\n\nCommunicators... (0.00s)\n=============\n\nErrors\n======\n\n"
      "#0-0 (00000abc) INCOMPLETE\n  Missing communicator data from 1 rank\n\nWarnings\n========\n\n";
  EXPECT_THAT(texts(ras_troubles(text + "#0-1 (0) MISMATCH\n", text + "#0-2 (0) MISMATCH\n", {})),
              ElementsAre("#0-0 (00000abc) INCOMPLETE", "Missing communicator data from 1 rank"));
}

TEST(NcclRas, MalformedAnswersAreRefused) {
  const std::string good = ras_answer(1, ras_rank(0, 1));
  for (const std::string& bad :
       {std::string("{"), std::string("{}"), std::string(R"({"communicators": 5})"), good.substr(0, good.size() / 2),
        ras_answer(1, ras_rank(7, 1)), ras_answer(-3, ""), ras_answer(1, R"({"rank": "x"})")})
    EXPECT_THROW(ras_troubles(good, bad, {100}), Error) << bad;
}

TEST(NcclRas, TheAddressIsNcclsVariable) {
  EXPECT_EQ(ras_address("").port, 28028);
  EXPECT_EQ(ras_address("").host, "localhost");
  EXPECT_EQ(ras_address("[::1]:7").host, "::1");
  EXPECT_EQ(ras_address("n1:12345").port, 12345);
  for (const char* bad : {"n1", "n1:", "n1:70000", "n1:x"}) EXPECT_EQ(ras_address(bad).host, "localhost") << bad;
}

/// Serves one connection by @p serve.
class FakeRas {
 public:
  explicit FakeRas(std::function<void(int)> serve)
      : listener_(base::listen_tcp("127.0.0.1")), thread_([this, serve = std::move(serve)] {
          if (!base::wait_for(listener_.get(), POLLIN, Deadline::after(60s))) return;
          const base::UniqueFd client{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)};
          serve(client.get());
        }) {}
  ~FakeRas() { thread_.join(); }
  RasAddress address() const { return {.host = "127.0.0.1", .port = base::local_port(listener_.get())}; }

 private:
  base::UniqueFd listener_;
  std::thread thread_;
};

std::string line_from(int fd) {
  std::string line;
  char letter = 0;
  while (::read(fd, &letter, 1) == 1 && letter != '\n') line += letter;
  return line;
}
bool say(int fd, const std::string& text) {
  return ::send(fd, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}
/// Up to the answer to STATUS.
void greet(int fd, const std::string& format_answer = "OK\n") {
  EXPECT_EQ(line_from(fd), "CLIENT PROTOCOL 2");
  say(fd, "SERVER PROTOCOL 2\n");
  EXPECT_EQ(line_from(fd), "TIMEOUT 1");
  say(fd, "OK\n");
  EXPECT_EQ(line_from(fd), "SET FORMAT JSON");
  say(fd, format_answer);
  EXPECT_EQ(line_from(fd), "STATUS");
}

std::string refusal(const FakeRas& server, std::chrono::milliseconds limit = 60s) {
  try {
    ask_ras(server.address(), Deadline::after(limit));
  } catch (const Error& error) {
    return error.what();
  }
  return "answered";
}

TEST(NcclRas, IsAskedAsItsClientDoes) {
  FakeRas server{[](int fd) {
    greet(fd);
    say(fd, "{\"a\":");
    say(fd, "1}\n");
  }};
  EXPECT_EQ(ask_ras(server.address(), Deadline::after(60s)), "{\"a\":1}\n");
  FakeRas old{[](int fd) {
    greet(fd, "ERROR: Unknown command SET FORMAT JSON\n");
    say(fd, "Job summary\n");
  }};
  EXPECT_EQ(ask_ras(old.address(), Deadline::after(60s)), "Job summary\n");
}

// PyTorch maps NCCL in programs that never make a communicator, without which NCCL opens no port.
TEST(NcclRas, NothingIsSaidWhereThereIsNoCommunicator) {
  std::string proc = testing::TempDir() + "ras-proc-XXXXXX";
  ASSERT_NE(::mkdtemp(proc.data()), nullptr);
  std::filesystem::create_directories(proc + "/7");
  std::ofstream{proc + "/7/maps"} << "7f00-7f01 r-xp 0 00:00 0 /usr/lib/libnccl.so.2\n";
  std::ofstream{proc + "/7/environ"} << "NCCL_RAS_ADDR=127.0.0.1:1";
  HostFacts facts{.host = "n0", .ranks = {RankFacts{}}};
  facts.ranks[0].pid = 7;
  facts.ranks[0].state = 'S';
  ask_nccl(proc, facts, Deadline::after(30s));
  EXPECT_THAT(facts.notes, IsEmpty());
  facts.ranks[0].flight.emplace();
  facts.ranks[0].flight->groups.push_back({.name = "w", .backend = "host", .rank = 0, .size = 1, .members = {0}});
  ask_nccl(proc, facts, Deadline::after(30s));
  EXPECT_THAT(facts.notes, IsEmpty());
  facts.ranks[0].flight->groups.push_back(
      {.name = "g", .backend = "cpu:host,cuda:nccl", .rank = 0, .size = 1, .members = {0}});
  ask_nccl(proc, facts, Deadline::after(30s));
  EXPECT_THAT(facts.notes, ElementsAre(HasSubstr("refused")));
  std::filesystem::remove_all(proc);
}

TEST(NcclRas, SilentEndlessAndOtherServersEnd) {
  {
    FakeRas silent{[](int fd) {
      greet(fd);
      line_from(fd);
    }};
    EXPECT_THAT(refusal(silent, 500ms), HasSubstr("did not answer in time"));
  }
  {
    FakeRas endless{[](int fd) {
      greet(fd);
      while (say(fd, std::string(1 << 20, 'x'))) continue;
    }};
    EXPECT_THAT(refusal(endless), HasSubstr("more than 16777216 bytes"));
  }
  {
    FakeRas other{[](int fd) { say(fd, "SSH-2.0-OpenSSH\n"); }};
    EXPECT_THAT(refusal(other), HasSubstr("is not NCCL's RAS"));
  }
  {
    FakeRas gone{[](int fd) { line_from(fd); }};
    EXPECT_THAT(refusal(gone), HasSubstr("closed the connection"));
  }
  FakeRas talker{[](int fd) {
    while (say(fd, std::string(4096, 'x'))) continue;
  }};
  EXPECT_THAT(refusal(talker), HasSubstr("more than 1024 bytes"));
}

}  // namespace
}  // namespace ddp::diagnostics
