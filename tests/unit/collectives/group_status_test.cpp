// The messages between members of a group.
#include "collectives/operation_log.hpp"

#include "support/message_check.hpp"

namespace ddp::collectives {
namespace {

TEST(GroupStatus, AreMessages) {
  tests::check_message<StatusQuestion>();
  tests::check_message<Verdict>();
  tests::check_message<Proposal>();
  tests::check_message<ProposalAnswer>();
  tests::check_message<StatusAnswer>();
}

TEST(GroupStatus, ErrorsOfEveryCodeTravelWhole) {
  for (int code = 0; code <= static_cast<int>(ErrorCode::aborted); ++code) {
    const Error error{{.code = static_cast<ErrorCode>(code),
                       .attempted = "all_reduce #3",
                       .cause = "the ranks called different things",
                       .native = "ECONNRESET (104)",
                       .ranks = {0, 7, 1'000'000},
                       .hint = "call the same"}};
    for (const GroupMessage& message :
         {GroupMessage{Verdict{.error = error}}, GroupMessage{Proposal{.error = error}}}) {
      const auto read = base::decode<GroupMessage>(base::encode(message));
      ASSERT_EQ(read.index(), message.index());
      const Error& same = message.index() == 1 ? std::get<Verdict>(read).error : std::get<Proposal>(read).error;
      EXPECT_EQ(same.code(), error.code());
      EXPECT_STREQ(same.what(), error.what());
    }
  }
}

TEST(GroupStatus, UnknownKindsAreRefused) {
  for (const unsigned kind : {3U, 4U, 255U}) {
    Bytes bytes = base::encode(GroupMessage{StatusQuestion{.sequence = 5}});
    bytes[0] = static_cast<std::byte>(kind);
    EXPECT_THAT(tests::refusal_of<GroupMessage>(bytes), HasSubstr("no message of kind"));
  }
}

}  // namespace
}  // namespace ddp::collectives
