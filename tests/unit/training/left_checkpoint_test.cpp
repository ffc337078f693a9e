// What saves leave that do not end, checkpoints that lose files, and which of them a later save removes.
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>

#include "unit/training/checkpoint_fixture.hpp"

namespace ddp::test {
namespace {

using testing::HasSubstr;

TEST_F(CheckpointTest, OfTheSameStepIsReplacedAndLeftFilesGo) {
  save_two(4);
  const auto first = files(4, "rank-");
  const std::string own = first[0].extension().string().substr(1, 8);
  fs::create_directories(step(1));  // of a save that another job makes now
  overwrite(step(1) / "rank-0-of-2.0123456789abcdef", "half");
  overwrite(step(4) / "rank-1-of-2.0123456789abcdef.77.tmp", "ha");
  fs::create_directories(step(3));  // of saves that were killed
  leave(step(3) / "rank-0-of-2.0123456789abcdef", "half");
  overwrite(step(3) / ("rank-1-of-2." + own + "89abcdef.77.tmp"), "ha");
  fs::create_directories(step(2));
  leave(step(2) / "notes.txt", "the user's");
  leave(step(4) / ("manifest." + std::to_string(::getpid()) + ".tmp"), "of an earlier process of this number");
  save_two(4);
  EXPECT_EQ(files(4, "").size(), 4U);
  for (const fs::path& path : first) EXPECT_FALSE(fs::exists(path)) << path;
  EXPECT_EQ(steps(), (std::set<std::string>{"step-1", "step-2", "step-4"}));
  EXPECT_TRUE(fs::exists(step(2) / "notes.txt"));
  EXPECT_TRUE(fs::exists(step(1) / "rank-0-of-2.0123456789abcdef")) << "another job's";
  EXPECT_TRUE(fs::exists(step(4) / "rank-1-of-2.0123456789abcdef.77.tmp"));
}

TEST_F(CheckpointTest, LosesWhatFailedSavesOfItsStepHaveLeft) {
  save_two(4);
  save_two(5);
  for (const int number : {4, 5}) leave(step(number) / "rank-0-of-2.fedcba9876543210", "of a failed save");
  leave(step(4) / "rank-0-of-2.txt", "the user's");
  const std::string manifest = content_of(step(5) / "manifest");
  overwrite(step(5) / "manifest", content_of(step(4) / "manifest"));  // does not tell which files are step 5's
  save_two(6);
  EXPECT_EQ(files(4, "").size(), 4U);
  EXPECT_FALSE(fs::exists(step(4) / "rank-0-of-2.fedcba9876543210"));
  EXPECT_TRUE(fs::exists(step(4) / "rank-0-of-2.txt"));
  EXPECT_EQ(files(5, "").size(), 4U);
  overwrite(step(5) / "manifest", manifest);
  run_group(2, [&](ProcessGroup& group) {
    for (const int number : {4, 5}) {
      Model model;
      checkpoints(group).restore(model.tensors(), number);
      EXPECT_TRUE(model.is(number, group.rank())) << number;
    }
  });
}

TEST_F(CheckpointTest, WithoutItsFilesIsPassedOverAndNotCounted) {
  for (const int number : {1, 2, 3, 4}) save_two(number);  // keeps three
  fs::remove(files(3, "rank-1-")[0]);
  fs::remove(files(4, "rank-0-")[0]);
  testing::internal::CaptureStderr();
  run_group(2, [&](ProcessGroup& group) {
    Model model;
    EXPECT_EQ(checkpoints(group).restore(model.tensors())->step, 2);
    EXPECT_TRUE(model.is(2, group.rank()));
  });
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  EXPECT_THAT(said, HasSubstr("/step-2': passed over step-4 ('rank-0-of-2."));
  EXPECT_THAT(said, HasSubstr("' is not there), step-3 ('rank-1-of-2."));
  EXPECT_EQ(refusal(4).code(), ErrorCode::not_found) << "asked for by its number";
  save_two(5);
  save_two(6);
  EXPECT_EQ(steps(), (std::set<std::string>{"step-2", "step-3", "step-4", "step-5", "step-6"}))
      << "two newer are whole";
  save_two(7);
  EXPECT_EQ(steps(), (std::set<std::string>{"step-5", "step-6", "step-7"}));
  for (const int number : {5, 6, 7}) fs::remove(files(number, "rank-0-")[0]);
  run_group(2, [&](ProcessGroup& group) {
    Model model;
    const auto error = error_of([&] { checkpoints(group).restore(model.tensors()); });
    ASSERT_TRUE(error) << "to begin anew is not for a job to decide";
    EXPECT_EQ(error->code(), ErrorCode::not_found);
  });
}

}  // namespace
}  // namespace ddp::test
