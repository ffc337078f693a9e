// Calls that may hang: results and exceptions pass through, and a hang costs no more than the deadline.
#include "base/library_thread.hpp"

namespace ddp::base {
namespace {

TEST(AbandonableCall, PassesTheResultOn) {
  const auto result = abandonable_call([text = std::string("done")] { return text; }, Deadline::after(seconds(30)));
  EXPECT_EQ(result, "done");
}

TEST(AbandonableCall, TakesWhatCanOnlyBeMoved) {
  auto result = abandonable_call([value = std::make_unique<int>(7)]() mutable { return std::move(value); },
                                 Deadline::after(seconds(30)));
  ASSERT_TRUE(result);
  EXPECT_EQ(**result, 7);
}

TEST(AbandonableCall, PassesExceptionsOn) {
  EXPECT_THROW(abandonable_call([]() -> int { throw std::runtime_error("broken"); }, Deadline::after(seconds(30))),
               std::runtime_error);
}

TEST(AbandonableCall, IsAbandonedAtTheDeadline) {
  auto release = std::make_shared<std::promise<void>>();
  auto ended = std::make_shared<std::promise<void>>();
  const auto begin = Deadline::Clock::now();
  const auto result = abandonable_call(
      [hang = release->get_future().share(), ended] {
        hang.wait();
        ended->set_value();
        return 1;
      },
      Deadline::after(std::chrono::milliseconds(50)));
  EXPECT_FALSE(result);
  EXPECT_LT(Deadline::Clock::now() - begin, seconds(10));
  release->set_value();
  EXPECT_EQ(ended->get_future().wait_for(seconds(30)), std::future_status::ready) << "it goes on alone";
}

}  // namespace

}  // namespace ddp::base
