// Every message comes back from its bytes as it was, and bytes that encode() does not make are refused.
#include "control/messages.hpp"

#include <gmock/gmock.h>

#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <type_traits>

#include <ddp/error.hpp>

namespace ddp::launcher::control {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

Bytes bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span{text});
  return {bytes.begin(), bytes.end()};
}

// No field has its default, so that one that is forgotten shows.
std::vector<Message> samples() {
  const NodeLayout node{.host = "n2", .nproc = 8, .role = "worker", .addresses = {"10.0.0.2", "fd00::2"}};
  return {
      Hello{.version = "0.1.0",
            .run_id = "42",
            .host = "n1",
            .addresses = {"10.0.0.1", "fe80::1%eth0"},
            .order = 3,
            .nproc = 8,
            .role = "trainer",
            .program = "train.py",
            .pid = 4'000'000},
      AttemptPrepared{.epoch = 1, .store_port = 65535, .store_key = std::string(64, 'a')},
      RanksStarted{.epoch = 2, .pids = {1, 2, std::numeric_limits<std::int64_t>::max()}, .description = "rank 0\n"},
      AttemptFailed{.epoch = 1, .message = "fork: no memory", .exit_status = 126},
      RankEnded{.epoch = 1,
                .local_rank = 7,
                .end = {.code = 11,
                        .by_signal = true,
                        .core_dumped = true,
                        .time = std::chrono::system_clock::time_point{1'700'000'000'123'456'789ns}},
                .traces = {.error_file = "/tmp/e.json",
                           .error_content = std::string{"\0{\"a\":1}", 8},
                           .stderr_tail = "line\n\xFF\xC0 no UTF-8",
                           .oom = "killed",
                           .pmix_server = "it has not answered",
                           .stdout_log = "/logs/0/stdout.log",
                           .stderr_log = "/logs/0/stderr.log",
                           .stderr_shown = true,
                           .python = true,
                           .interpreter = "/usr/bin/python3 (from PATH)"}},
      RankAborted{
          .epoch = 1, .local_rank = 2, .call = {.status = std::numeric_limits<int>::min(), .message = "gave up"}},
      RankStopped{.epoch = 1, .local_rank = 3, .signal = 19},
      AttemptCleaned{.epoch = 1, .store_refusals = {"n0: the job's store refused one"}},
      SignalReceived{.signal = 15, .by_slurm = true},
      PrepareAttempt{.epoch = 1,
                     .restart_count = 2,
                     .max_restarts = 3,
                     .node_rank = 1,
                     .serve_store = true,
                     .run_id = "42",
                     .name_space = "ddp.42.1",
                     .log_name = "1234.0",
                     .log_suffix = "abcd",
                     .terminal_out = true,
                     .terminal_err = false,
                     .console_window_bytes = 524'288,
                     .still_after_ms = 60'000,
                     .nodes_lost = 1,
                     .input = true,
                     .progress_ms = 60'000,
                     .nodes = {node, NodeLayout{}, node}},
      StartAttempt{.epoch = 1, .store_addresses = {"10.0.0.1"}, .store_port = 29500, .store_key = std::string(64, 'a')},
      SignalRanks{.epoch = 1, .groups = true, .signal = 9, .may_have_reached_ranks = true},
      EndAttempt{.epoch = std::numeric_limits<int>::max(), .drain_ms = 600'000},
      Finish{.exit_status = 143, .message = "bye"},
      Fence{.epoch = 1, .ranks = {0, 5, 100'000}, .data = bytes_of(std::string("a\0b\xFF", 4)), .status = -1},
      ModexRequest{.epoch = 1, .id = std::numeric_limits<std::int64_t>::min(), .from_node = 2, .rank = -2},
      ModexReply{.epoch = 1, .id = 9, .to_node = 2, .status = -46, .data = bytes_of("x")},
      CollectStacks{.epoch = 1, .limit_ms = 20'000},
      StacksCollected{.epoch = 1,
                      .groups = {{.ranks = {0, 7}, .tool = "gdb", .text = "#0 a\n#1 b"},
                                 {.ranks = {1}, .tool = "proc", .text = ""}},
                      .notes = {{.hosts = {"n0", "n1"}, .text = "no py-spy"}}},
      ConsoleOutput{.epoch = 1,
                    .error = true,
                    .pieces = {{.writer = kWholeLines, .text = "[3]:a\n[4]:b\n"},
                               {.writer = 2,
                                .unprefixed = true,
                                .begins = false,
                                .ends = false,
                                .overwritten = true,
                                .prefix = "[5]:",
                                .text = std::string("\0\xFF", 2)}}},
      Progress{.epoch = 1,
               .ranks = {{.rank = 3,
                          .steps = 100,
                          .step_ns = 5,
                          .communication_ns = 4,
                          .hidden_ns = 3,
                          .straggler_rank = 2,
                          .straggler_delay_ns = 1},
                         {}}},
      ConsoleTaken{.epoch = 1, .error = true, .messages = 3},
      RanksStill{.epoch = 1, .still = true},
      ObserveRanks{.epoch = 1, .limit_ms = 10'000},
      RanksObserved{.epoch = 1, .facts = bytes_of("facts")},
      Resting{.rests = true},
      Input{.data = bytes_of("line\n"), .end = true},
      InputTaken{.bytes = 5},
  };
}

/// What the error says; an empty text if there is none.
std::string refusal_of(const Bytes& bytes) {
  try {
    decode(bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::protocol);
    return error.what();
  }
  return {};
}

TEST(ControlMessages, EveryMessageComesBackAsItWas) {
  std::set<std::size_t> kinds;
  for (const Message& message : samples()) {
    EXPECT_EQ(decode(encode(message)), message) << name_of(message);
    kinds.insert(message.index());
  }
  EXPECT_EQ(kinds.size(), std::variant_size_v<Message> - 1);  // all but Encoded
}

template <class... Kinds>
std::vector<Message> defaults_of(std::type_identity<std::variant<Kinds...>>) {
  return {Kinds{}...};
}

TEST(ControlMessages, EveryDefaultComesBackAsItWas) {
  for (const Message& message : defaults_of(std::type_identity<Message>{})) {
    if (std::holds_alternative<Encoded>(message)) continue;
    EXPECT_EQ(decode(encode(message)), message) << name_of(message);
  }
}

TEST(ControlMessages, NumbersOutOfRangeAreRefusedAndNamed) {
  const auto refused = [](const Message& message, const std::string& what) {
    EXPECT_THAT(refusal_of(encode(message)), HasSubstr(what));
  };
  refused(AttemptPrepared{.epoch = -1}, "AttemptPrepared: 'epoch' is -1, which is not between 0 and");
  refused(AttemptPrepared{.store_port = 65536}, "AttemptPrepared: 'store_port' is 65536");
  refused(AttemptPrepared{.store_port = -1}, "'store_port' is -1, which is not between 0 and 65535");
  refused(Finish{.exit_status = 256}, "'exit_status' is 256");
  refused(SignalRanks{.signal = 65}, "'signal' is 65");
  refused(Hello{.order = -2}, "Hello: 'order' is -2");
  refused(Hello{.interfaces = {{}, {.prefix_length = 129}}}, "Interface: 'prefix_length' is 129");
  refused(PrepareAttempt{.nodes = {{}, {.nproc = -1}}}, "NodeLayout: 'nproc' is -1");
  refused(RankEnded{.local_rank = -1}, "'local_rank' is -1");
  refused(RankEnded{.end = {.code = 256, .by_signal = false, .core_dumped = false, .time = {}}},
          "RankEnd: 'code' is 256");
  refused(ConsoleOutput{.pieces = {{}, {.writer = -1}}}, "ConsolePiece: 'writer' is -1");
  refused(Progress{.ranks = {{.rank = -1}}}, "RankProgress: 'rank' is -1");
  refused(ConsoleTaken{.messages = -1}, "ConsoleTaken: 'messages' is -1");
  refused(Fence{.ranks = {1, -1}}, "Fence: 'ranks' is -1");
}

TEST(ControlMessages, AFlagIsOneOrZero) {
  Bytes bytes = encode(SignalReceived{.signal = 1, .by_slurm = true});
  ASSERT_EQ(bytes.back(), std::byte{1});
  bytes.back() = std::byte{2};
  EXPECT_THAT(refusal_of(bytes), HasSubstr("SignalReceived: 'by_slurm' is 2"));
}

TEST(ControlMessages, UnknownKindsAreRefused) {
  const std::size_t kinds = std::variant_size_v<Message> - 1;
  for (const std::size_t kind : {kinds, kinds + 1, std::size_t{255}}) {
    EXPECT_THAT(refusal_of({static_cast<std::byte>(kind)}), HasSubstr("no message of kind " + std::to_string(kind)));
  }
  EXPECT_NE(refusal_of({}), "");
  EXPECT_NE(refusal_of(bytes_of("GET / HTTP/1.1\r\n")), "");
}

TEST(ControlMessages, EveryBeginningAndEveryContinuationIsRefused) {
  for (const Message& message : samples()) {
    const Bytes whole = encode(message);
    for (std::size_t size = 0; size < whole.size(); ++size) {
      EXPECT_THAT(refusal_of({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)}),
                  HasSubstr("the message ends after"))
          << size;
    }
    Bytes longer = whole;
    longer.push_back(std::byte{0});
    EXPECT_THAT(refusal_of(longer), HasSubstr("has 1 bytes too many"));
  }
}

// Each ends in a length, of which nothing follows.
TEST(ControlMessages, LengthsThatAreNotThereAreRefusedWithoutMemory) {
  for (const Message& message : {Message{ModexReply{}}, Message{RanksStarted{}}, Message{StartAttempt{}},
                                 Message{PrepareAttempt{}}, Message{Finish{}}}) {
    Bytes bytes = encode(message);
    for (std::size_t i = 1; i <= 4; ++i) bytes[bytes.size() - i] = std::byte{0xFF};
    EXPECT_THAT(refusal_of(bytes), HasSubstr("ends after 0 bytes")) << name_of(message);
  }
}

TEST(ControlMessages, ThoseThatMayBeLongAreKnownByTheirFirstByte) {
  for (const Message& message : samples()) {
    const bool bulk = std::holds_alternative<Fence>(message) || std::holds_alternative<ModexRequest>(message) ||
                      std::holds_alternative<ModexReply>(message) || std::holds_alternative<ConsoleOutput>(message) ||
                      std::holds_alternative<RanksObserved>(message);
    EXPECT_EQ(is_bulk(encode(message)), bulk) << name_of(message);
  }
  EXPECT_FALSE(is_bulk({}));
}

TEST(ControlMessages, AnEncodedOneIsSentAsItCame) {
  const Bytes bytes = encode(samples().back());
  EXPECT_EQ(encode(Encoded{std::make_shared<const Bytes>(bytes)}), bytes);
}

TEST(ControlMessages, NamesAreThoseOfTheTypes) {
  EXPECT_STREQ(name_of(RankEnded{}), "RankEnded");
  EXPECT_STREQ(name_of(Fence{}), "Fence");
}

// What becomes part of a path on another host.
TEST(Messages, NamesThatWouldLeadElsewhereAreRefused) {
  for (const std::string& wrong : {std::string{"../x"}, std::string{"/etc"}, std::string{"a\nb"}, std::string{"\0", 1},
                                   std::string{"\x7f"}, std::string(256, 'x')}) {
    for (const Message& message :
         {Message{Hello{.host = wrong}}, Message{Hello{.run_id = wrong}}, Message{Hello{.addresses = {"n1", wrong}}},
          Message{PrepareAttempt{.log_suffix = wrong}}, Message{PrepareAttempt{.name_space = wrong}},
          Message{PrepareAttempt{.nodes = {NodeLayout{.host = wrong}}}},
          Message{StartAttempt{.store_addresses = {wrong}}}}) {
      try {
        decode(encode(message));
        ADD_FAILURE() << wrong;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::protocol);
        EXPECT_THAT(error.what(), HasSubstr("'/' or a control character"));
      }
    }
  }
  EXPECT_NO_THROW(decode(encode(Hello{.host = std::string(255, 'x'), .program = "/home/a/train.py"})));
}

}  // namespace
}  // namespace ddp::launcher::control
