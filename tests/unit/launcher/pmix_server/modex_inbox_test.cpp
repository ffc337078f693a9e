// Fences and questions between the PMIx library's thread and the launcher's: each is answered exactly once, and nothing
// is left behind.
#include "pmix_server/modex_inbox.hpp"

#include <poll.h>

#include "base/byte_stream.hpp"

namespace ddp::launcher {
namespace {

/// What the library's callback was given. Like the library, it reads the data only after answer() has returned.
struct Call {
  int times = 0;
  int status = 1;
  const char* data = nullptr;
  std::size_t size = 0;
  pmix_release_cbfunc_t release = nullptr;
  void* release_data = nullptr;

  std::string read() {
    std::string text(data, size);
    if (release != nullptr) release(release_data);
    return text;
  }
};

void done(pmix_status_t status, const char* data, std::size_t size, void* call_object, pmix_release_cbfunc_t release,
          void* release_data) {
  auto& call = *static_cast<Call*>(call_object);
  ++call.times;
  call.status = status;
  call.data = data;
  call.size = size;
  call.release = release;
  call.release_data = release_data;
}

bool readable(const ModexInbox& inbox) {
  pollfd entry{.fd = inbox.fd(), .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, 0) == 1;
}

std::span<const char> chars(std::string_view text) { return {text.data(), text.size()}; }

TEST(ModexInbox, IsReadableUntilEverythingIsTaken) {
  ModexInbox inbox;
  Call fence, call;
  EXPECT_FALSE(readable(inbox));
  inbox.post_fence({1, 2}, chars({"a\0b", 3}), std::nullopt, done, &fence);
  inbox.post_call(7, std::nullopt, done, &call);
  inbox.post_answer(99, PMIX_ERR_NOT_FOUND, {});
  EXPECT_TRUE(readable(inbox));

  const ModexEvents events = inbox.take();
  ASSERT_EQ(events.fences.size(), 1U);
  EXPECT_EQ(events.fences[0].ranks, (std::vector<int>{1, 2}));
  EXPECT_EQ(base::to_text(events.fences[0].data), std::string("a\0b", 3));
  ASSERT_EQ(events.calls.size(), 1U);
  EXPECT_EQ(events.calls[0].rank, 7);
  EXPECT_NE(events.calls[0].id, events.fences[0].id);
  ASSERT_EQ(events.answers.size(), 1U);
  EXPECT_EQ(events.answers[0].id, 99U);
  EXPECT_EQ(events.answers[0].status, PMIX_ERR_NOT_FOUND);
  EXPECT_TRUE(events.answers[0].data.empty());

  EXPECT_FALSE(readable(inbox));
  const ModexEvents nothing = inbox.take();
  EXPECT_TRUE(nothing.fences.empty() && nothing.calls.empty() && nothing.answers.empty());
  EXPECT_EQ(fence.times + call.times, 0) << "nobody has answered";
}

TEST(ModexInbox, AnAnswerCompletesItsOwnCallOnce) {
  ModexInbox inbox;
  Call first, second;
  inbox.post_fence({}, {}, std::nullopt, done, &first);
  inbox.post_call(3, std::nullopt, done, &second);
  const ModexEvents events = inbox.take();
  inbox.answer(events.calls[0].id, PMIX_SUCCESS, base::to_bytes("value"));
  inbox.answer(events.calls[0].id, PMIX_ERR_TIMEOUT, base::to_bytes("late"));
  EXPECT_EQ(second.times, 1);
  EXPECT_EQ(second.status, PMIX_SUCCESS);
  EXPECT_EQ(second.read(), "value") << "the data must live until it is released";
  EXPECT_EQ(first.times, 0);

  inbox.answer(events.fences[0].id, PMIX_ERR_UNREACH, {});
  EXPECT_EQ(first.times, 1);
  EXPECT_EQ(first.status, PMIX_ERR_UNREACH);
  EXPECT_NE(first.data, nullptr) << "null has another meaning to the library";
  EXPECT_EQ(first.read(), "");
}

TEST(ModexInbox, UnknownIdsAreIgnored) {
  ModexInbox inbox;
  inbox.answer(0, PMIX_SUCCESS, base::to_bytes("x"));
  inbox.answer(12345, PMIX_SUCCESS, base::to_bytes("x"));
  EXPECT_FALSE(readable(inbox));
}

TEST(ModexInbox, TheEndOfTheAttemptCompletesAllAndDropsWhatWasNotTaken) {
  ModexInbox inbox;
  Call taken, waiting, late;
  inbox.post_fence({}, chars("data"), std::nullopt, done, &taken);
  const auto id = inbox.take().fences.at(0).id;
  inbox.post_call(1, std::nullopt, done, &waiting);
  inbox.answer_all(PMIX_ERR_JOB_ABORTED);
  for (Call* call : {&taken, &waiting}) {
    EXPECT_EQ(call->times, 1);
    EXPECT_EQ(call->status, PMIX_ERR_JOB_ABORTED);
    EXPECT_EQ(call->read(), "");
  }
  EXPECT_TRUE(inbox.take().calls.empty());
  inbox.answer(id, PMIX_SUCCESS, base::to_bytes("late"));
  inbox.answer_all(PMIX_ERR_TIMEOUT);
  EXPECT_EQ(taken.times, 1);

  inbox.post_call(2, std::nullopt, done, &late);  // of the next attempt: another id
  EXPECT_NE(inbox.take().calls.at(0).id, id);
  inbox.answer_all(PMIX_ERR_JOB_ABORTED);
  EXPECT_EQ(late.times, 1);
}

TEST(ModexInbox, WithoutAServerAQuestionIsAnsweredWithAnError) {
  ModexInbox inbox;
  inbox.fetch_local("no.such.job", 0, 5);
  const ModexEvents events = inbox.take();
  ASSERT_EQ(events.answers.size(), 1U);
  EXPECT_EQ(events.answers[0].id, 5U);
  EXPECT_EQ(events.answers[0].status, PMIX_ERR_INIT);
}

TEST(ModexInbox, ThreadsMayPostWhileAnotherAnswers) {
  constexpr int kCalls = 2000;
  ModexInbox inbox;
  std::vector<Call> calls(2 * kCalls);
  std::atomic<int> running{2};
  std::vector<std::thread> posters;
  for (int half = 0; half < 2; ++half) {
    posters.emplace_back([&, half] {
      for (int i = 0; i < kCalls; ++i)
        inbox.post_call(i, std::nullopt, done, &calls[static_cast<std::size_t>(half * kCalls + i)]);
      --running;
    });
  }
  int answered = 0;
  while (running > 0 || readable(inbox)) {
    for (const ModexCall& call : inbox.take().calls) {
      inbox.answer(call.id, PMIX_SUCCESS, base::to_bytes(std::to_string(call.rank)));
      ++answered;
    }
  }
  for (std::thread& poster : posters) poster.join();
  EXPECT_EQ(answered, 2 * kCalls);
  for (int i = 0; i < 2 * kCalls; ++i) {
    Call& call = calls[static_cast<std::size_t>(i)];
    ASSERT_EQ(call.times, 1);
    ASSERT_EQ(call.read(), std::to_string(i % kCalls));
  }
}

}  // namespace
}  // namespace ddp::launcher
