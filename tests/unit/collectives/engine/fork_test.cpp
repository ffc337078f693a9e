// A forked child must not touch its parent's groups, and may have its own.
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "unit/collectives/engine/inline_backend.hpp"
#include "unit/collectives/fake_backend.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp {
namespace {

using ddp::test::error_of;

/// Runs @p child in a forked process; its return value is the exit status.
int status_of(const std::function<int()>& child) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(30);
    ::_exit(child());
  }
  int status = -1;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

bool says_forked(const std::optional<Error>& error) {
  return error && error->code() == ErrorCode::unavailable &&
         std::string(error->what()).find("was forked") != std::string::npos;
}

TEST(Fork, AGroupSaysThatItIsNotTheChilds) {
  const auto control = std::make_shared<ddp::test::BackendControl>();
  std::optional<ProcessGroup> group = ddp::test::group_over(std::make_unique<ddp::test::FakeBackend>(control));
  control->hold();
  std::optional<Work> open = group->barrier();
  const int status = status_of([&] {
    if (!says_forked(error_of([&] { static_cast<void>(group->barrier()); }))) return 1;
    if (!says_forked(error_of([&] { open->wait(); }))) return 2;
    if (open->done() || open->error()) return 3;
    const std::vector<int> all{0, 1};
    if (!says_forked(error_of([&] { group->new_group(all); }))) return 4;
    open.reset();
    group.reset();
    return control->saw("close") || control->saw("destroyed") || control->aborts() > 0 ? 5 : 0;
  });
  EXPECT_EQ(status, 0);
  control->release();
  EXPECT_FALSE(error_of([&] { open->wait(); })) << "the parent's goes on";
  EXPECT_FALSE(error_of([&] { group->barrier().wait(); }));
}

#ifndef DDP_THREAD_SANITIZER  // which forbids threads after a fork
TEST(Fork, AChildMayHaveAGroupOfItsOwn) {
  ProcessGroup parents = ddp::test::inline_group(10);
  parents.barrier().wait();
  const int status = status_of([] {
    const auto view = std::make_shared<ddp::test::InlineBackend::View>();
    ProcessGroup group = ddp::test::inline_group(10, 1, view);
    group.barrier().wait();
    static_cast<void>(group.barrier());
    const Deadline deadline = ddp::test::soon();
    while (view->ended < 2 && !deadline.expired()) ::usleep(1000);
    return view->ended == 2 ? 0 : 1;
  });
  EXPECT_EQ(status, 0);
  parents.barrier().wait();
}
#endif

}  // namespace
}  // namespace ddp
