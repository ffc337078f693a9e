// Copies of checkpoints in the memory of a node: what is kept, restored, and passed over.
#include <initializer_list>

#include "unit/training/checkpoint_fixture.hpp"

namespace ddp::test {
namespace {

/// All ranks are on one node, whose folder for copies is beside that of the checkpoints.
class CheckpointCopiesTest : public CheckpointTest {
 protected:
  void SetUp() override {
    CheckpointTest::SetUp();
    fs::create_directory(memory());
    ASSERT_EQ(::setenv("DDP_NODE_CACHE", memory().c_str(), 1), 0);
  }
  void TearDown() override {
    ::unsetenv("DDP_NODE_CACHE");
    CheckpointTest::TearDown();
  }
  fs::path memory() const { return folder_ / "memory"; }
  Checkpoints kept(const ProcessGroup& group) const {
    return Checkpoints(group, (folder_ / "run").string(), {.memory = true});
  }
  /// Names of what is kept, without the folder of these checkpoints.
  std::set<std::string> copies() const {
    std::set<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(memory())) {
      const fs::path& path = entry.path();
      if (entry.is_regular_file()) names.insert((path.parent_path().filename() / path.filename()).string());
    }
    return names;
  }
  fs::path copy(const std::string& start) const {
    for (const auto& entry : fs::recursive_directory_iterator(memory())) {
      if (entry.path().filename().string().starts_with(start)) return entry.path();
    }
    throw std::runtime_error("there is no copy " + start);
  }
  void save(int ranks, std::initializer_list<int> numbers, bool sharded) const {
    run_group(ranks, [&](ProcessGroup& group) {
      Checkpoints all = kept(group);
      for (const int number : numbers) {
        Model model;
        model.set(number, sharded ? group.rank() : 0);
        sharded ? all.save_sharded(number, model.tensors(), std::to_string(group.rank()))
                : all.save(number, model.tensors(), "of all");
      }
    });
  }
  /// The step that all of @p ranks restore; 0: none.
  std::int64_t restored(int ranks, bool sharded) const {
    std::vector<std::int64_t> steps(static_cast<std::size_t>(ranks));
    run_group(ranks, [&](ProcessGroup& group) {
      Model model;
      const auto found = kept(group).restore(model.tensors());
      if (!found) return;
      steps[static_cast<std::size_t>(group.rank())] = found->step;
      EXPECT_TRUE(model.is(found->step, sharded ? group.rank() : 0));
      EXPECT_EQ(found->extra, sharded ? std::to_string(group.rank()) : "of all");
    });
    for (const std::int64_t step : steps) EXPECT_EQ(step, steps.front());
    return steps.front();
  }
};

TEST_F(CheckpointCopiesTest, OfTheLastSaveAreRestoredWithoutTheFolder) {
  for (const bool sharded : {false, true}) {
    save(2, {5, 30}, sharded);
    EXPECT_EQ(copies().size(), sharded ? 3U : 2U) << "the last save, and its manifest";
    EXPECT_EQ(copies().count("step-30/manifest"), 1U);
    fs::rename(folder_ / "run", folder_ / "away");
    EXPECT_EQ(restored(2, sharded), 30);
    EXPECT_FALSE(fs::exists(folder_ / "run"));
    if (!sharded) {
      EXPECT_EQ(restored(3, sharded), 30) << "any number of ranks";
    }
    fs::remove_all(folder_ / "away");
    fs::remove_all(fs::directory_iterator(memory())->path());
  }
}

TEST_F(CheckpointCopiesTest, OfAnEarlierSaveAreNotLeftWhereALaterOneIsNotKept) {
  save(2, {5}, true);
  const fs::path here = fs::directory_iterator(memory())->path();
  overwrite(here / "step-6", "in the way");
  testing::internal::CaptureStderr();
  save(2, {6}, true);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("this node keeps no copy of the checkpoint"));
  EXPECT_THAT(copies(), testing::IsEmpty());
  EXPECT_EQ(restored(2, true), 6) << "from the folder";
  fs::remove_all(folder_ / "run");
  EXPECT_EQ(restored(2, true), 0);
}

TEST_F(CheckpointCopiesTest, OfAnotherNumberOfRanksOrDamagedLeadToTheFolder) {
  save(2, {5}, true);
  EXPECT_EQ(restored(2, true), 5);
  fs::remove_all(folder_ / "run");
  EXPECT_EQ(restored(3, true), 0);
  save(2, {5}, true);
  std::string text = content_of(copy("rank-1-of-2"));
  text[text.size() / 2] ^= 1;
  overwrite(copy("rank-1-of-2"), text);
  testing::internal::CaptureStderr();
  EXPECT_EQ(restored(2, true), 5);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("as the copy of step 5 in memory cannot be used: reading '"));
  EXPECT_THAT(said, HasSubstr("its checksum is not the one its checkpoint says"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  overwrite(copy("manifest"), "torn");
  EXPECT_EQ(restored(2, true), 5);
}

TEST_F(CheckpointCopiesTest, OfTheSameStepAreReplaced) {
  save(2, {5}, false);
  save(2, {5}, false);
  EXPECT_EQ(copies().size(), 2U);
  fs::remove_all(folder_ / "run");
  EXPECT_EQ(restored(2, false), 5);
}

TEST_F(CheckpointCopiesTest, AreKeptByAllRanksOrNone) {
  run_group(2, [&](ProcessGroup& group) {
    Checkpoints one(group, (folder_ / "run").string(), {.memory = group.rank() == 0});
    Model model;
    const Error error = thrown_by([&] { one.save(1, model.tensors()); });
    EXPECT_EQ(error.code(), ErrorCode::mismatch);
    EXPECT_THAT(error.what(), HasSubstr("saves step 1 by rank 0 with copies in memory, others step 1 by rank 0"));
  });
}

}  // namespace
}  // namespace ddp::test
