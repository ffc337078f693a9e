// The messages between members of a group: round trips, and refusal of everything that is damaged.
#include "collectives/group_status.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "unit/kvs/rank_threads.hpp"

namespace ddp::collectives {
namespace {

Error sample_error() {
  return Error{{.code = ErrorCode::mismatch,
                .attempted = "all_reduce #3",
                .cause = "the ranks called different things",
                .native = "ECONNRESET (104)",
                .ranks = {0, 7, 1'000'000},
                .hint = "call the same"}};
}

void expect_equal(const Error& a, const Error& b) {
  EXPECT_EQ(a.code(), b.code());
  EXPECT_EQ(a.attempted(), b.attempted());
  EXPECT_EQ(a.cause(), b.cause());
  EXPECT_EQ(a.native(), b.native());
  EXPECT_EQ(a.ranks(), b.ranks());
  EXPECT_EQ(a.hint(), b.hint());
  EXPECT_STREQ(a.what(), b.what());
}

StatusAnswer sample_answer(bool failed) {
  StatusAnswer answer{.last_issued = 12,
                      .fingerprint = std::numeric_limits<std::uint64_t>::max(),
                      .description = "barrier #12",
                      .waits = !failed};
  if (failed) answer.running = {0, 3, 1'000'000};
  if (failed) answer.transfer = {.description = "recv of int8 x 3 from 4, tag 1", .peer = 4, .receives = true};
  if (failed) answer.verdict = sample_error();
  return answer;
}

template <class Decode>
void expect_every_cut_refused(const Bytes& whole, Decode decode) {
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    const auto error = ddp::test::error_of([&] { decode(cut); });
    ASSERT_TRUE(error) << size << " of " << whole.size();
    EXPECT_EQ(error->code(), ErrorCode::protocol);
  }
  Bytes longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_TRUE(ddp::test::error_of([&] { decode(longer); }));
}

TEST(GroupStatus, QuestionRoundTrip) {
  for (const std::uint64_t sequence : {std::uint64_t{0}, std::uint64_t{5}, ~std::uint64_t{0}}) {
    for (const bool neighbours : {false, true}) {
      const auto message = decode_group_message(encode(StatusQuestion{.sequence = sequence, .neighbours = neighbours}));
      ASSERT_TRUE(std::holds_alternative<StatusQuestion>(message));
      EXPECT_EQ(std::get<StatusQuestion>(message).sequence, sequence);
      EXPECT_EQ(std::get<StatusQuestion>(message).neighbours, neighbours);
    }
  }
}

TEST(GroupStatus, VerdictRoundTrip) {
  const auto message = decode_group_message(encode(Verdict{.error = sample_error()}));
  ASSERT_TRUE(std::holds_alternative<Verdict>(message));
  expect_equal(std::get<Verdict>(message).error, sample_error());
}

TEST(GroupStatus, ProposalAndAnswerRoundTrip) {
  const auto message = decode_group_message(encode(Proposal{.error = sample_error()}));
  ASSERT_TRUE(std::holds_alternative<Proposal>(message));
  expect_equal(std::get<Proposal>(message).error, sample_error());
  for (const bool decided : {false, true}) {
    const auto answer = decode_proposal_answer(encode(ProposalAnswer{.decided = decided, .error = sample_error()}));
    EXPECT_EQ(answer.decided, decided);
    expect_equal(answer.error, sample_error());
  }
}

TEST(GroupStatus, EveryCodeTravels) {
  for (int code = 0; code <= static_cast<int>(ErrorCode::aborted); ++code) {
    const Error error{{.code = static_cast<ErrorCode>(code), .attempted = "a", .cause = "b"}};
    EXPECT_EQ(std::get<Verdict>(decode_group_message(encode(Verdict{.error = error}))).error.code(), error.code());
  }
}

TEST(GroupStatus, AnswerRoundTrip) {
  for (const bool failed : {false, true}) {
    const StatusAnswer sent = sample_answer(failed);
    const StatusAnswer read = decode_status_answer(encode(sent));
    EXPECT_EQ(read.last_issued, sent.last_issued);
    EXPECT_EQ(read.fingerprint, sent.fingerprint);
    EXPECT_EQ(read.description, sent.description);
    EXPECT_EQ(read.waits, sent.waits);
    EXPECT_EQ(read.running, sent.running);
    ASSERT_EQ(read.transfer.has_value(), failed);
    if (failed) {
      EXPECT_EQ(read.transfer->description, sent.transfer->description);
      EXPECT_EQ(read.transfer->peer, sent.transfer->peer);
      EXPECT_EQ(read.transfer->receives, sent.transfer->receives);
    }
    ASSERT_EQ(read.verdict.has_value(), failed);
    if (failed) expect_equal(*read.verdict, *sent.verdict);
  }
}

TEST(GroupStatus, CutsAndTailsAreRefused) {
  expect_every_cut_refused(encode(StatusQuestion{.sequence = 5}), decode_group_message);
  expect_every_cut_refused(encode(Verdict{.error = sample_error()}), decode_group_message);
  expect_every_cut_refused(encode(Proposal{.error = sample_error()}), decode_group_message);
  expect_every_cut_refused(encode(ProposalAnswer{.decided = true, .error = sample_error()}), decode_proposal_answer);
  expect_every_cut_refused(encode(sample_answer(false)), decode_status_answer);
  expect_every_cut_refused(encode(sample_answer(true)), decode_status_answer);
}

TEST(GroupStatus, UnknownTypesAreRefused) {
  for (const unsigned type : {0U, 4U, 255U}) {
    Bytes bytes = encode(StatusQuestion{.sequence = 5});
    bytes[0] = static_cast<std::byte>(type);
    const auto error = ddp::test::error_of([&] { decode_group_message(bytes); });
    ASSERT_TRUE(error) << type;
    EXPECT_EQ(error->code(), ErrorCode::protocol);
  }
}

TEST(GroupStatus, ACodeOfANewerVersionIsStillAnError) {
  Bytes bytes = encode(Verdict{.error = sample_error()});
  bytes[1] = std::byte{200};
  EXPECT_EQ(std::get<Verdict>(decode_group_message(bytes)).error.code(), ErrorCode::protocol);
}

TEST(GroupStatus, DamagedMessagesNeverDoHarm) {
  std::mt19937 random{5};  // NOLINT(cert-msc51-cpp): the same damage in every run
  const Bytes whole = encode(sample_answer(true));
  for (int round = 0; round < 5000; ++round) {
    Bytes bytes = whole;
    for (unsigned i = random() % 4 + 1; i-- > 0;) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random() & 0xffU);
    }
    try {
      const StatusAnswer read = decode_status_answer(bytes);
      EXPECT_LE(read.description.size(), bytes.size());
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::protocol);
    }
  }
}

}  // namespace
}  // namespace ddp::collectives
