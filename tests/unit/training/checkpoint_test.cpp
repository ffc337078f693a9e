// Checkpoints are whole or absent, and all ranks refuse files that differ from what was written.
#include <sys/syscall.h>

#include <ddp/checkpoint.hpp>

#include "training/checkpoint_folder.hpp"
#include "training/checkpoint_manifest.hpp"
#include "training/shard_file.hpp"
#include "unit/training/checkpoint_fixture.hpp"

namespace {
std::mutex synced_mutex;
std::set<std::string> synced;  // arguments of fsync calls
std::string removed_in_sync;   // a file that another process removes once a manifest is on the disk
}  // namespace

/// Also replaces the library's in this program: there is no other way to see that a name is on the disk.
extern "C" int fsync(int fd) {
  std::error_code failure;
  const auto path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), failure);
  {
    const std::lock_guard lock(synced_mutex);
    synced.insert(path.string());
    if (!removed_in_sync.empty() && path.filename().string().starts_with("manifest")) {
      std::filesystem::remove(std::exchange(removed_in_sync, {}), failure);
    }
  }
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

namespace ddp::test {
namespace {

TEST_F(CheckpointTest, OfEachRankComesBackToEachRank) {
  run_group(3, [&](ProcessGroup& group) {
    Checkpoints kept = checkpoints(group, 2);
    Model model;
    EXPECT_FALSE(kept.restore(model.tensors())) << "there is none";
    for (const int number : {5, 30, 200}) {
      model.set(number, group.rank());
      kept.save_sharded(number, model.tensors(), std::string("\0extra", 6) + std::to_string(group.rank()));
    }
    model.set(0, 0);
    const auto newest = kept.restore(model.tensors());
    ASSERT_TRUE(newest);
    EXPECT_EQ(newest->step, 200);
    EXPECT_EQ(newest->extra, std::string("\0extra", 6) + std::to_string(group.rank()));
    EXPECT_TRUE(model.is(200, group.rank()));
    EXPECT_EQ(kept.restore(model.tensors(), 30)->step, 30);
    EXPECT_TRUE(model.is(30, group.rank()));
    const Error gone = thrown_by([&] { kept.restore(model.tensors(), 5); });
    EXPECT_EQ(gone.code(), ErrorCode::not_found);
    EXPECT_TRUE(model.is(30, group.rank()));
  });
  EXPECT_EQ(steps(), (std::set<std::string>{"step-30", "step-200"}));
}

TEST_F(CheckpointTest, OfRankZeroComesBackToAnyNumberOfRanks) {
  run_group(2, [&](ProcessGroup& group) {
    Model model;
    model.set(7 + group.rank(), group.rank());  // the others' is not looked at
    checkpoints(group).save(7, group.rank() == 0 ? model.tensors() : std::vector<NamedTensor>{}, "for all");
  });
  EXPECT_EQ(files(7, "rank-").size(), 1U);
  for (const int size : {1, 3}) {
    run_group(size, [&](ProcessGroup& group) {
      Model model;
      const auto restored = checkpoints(group).restore(model.tensors());
      ASSERT_TRUE(restored);
      EXPECT_EQ(restored->extra, "for all");
      EXPECT_TRUE(model.is(7, 0)) << "rank " << group.rank();
      if (size == 1) return;
      Model other;
      auto tensors = other.tensors();
      if (group.rank() == 2) tensors[0].tensor = {other.weight.data(), DType::float32, {3000}};
      const Error error = thrown_by([&] { checkpoints(group).restore(tensors); });
      EXPECT_EQ(error.code(), ErrorCode::mismatch);
      EXPECT_EQ(error.ranks(), std::vector{20});
      EXPECT_EQ(other.weight, Model().weight) << "touched";
    });
  }
}

TEST_F(CheckpointTest, IsNotCompletedOverFilesThatAreGone) {
  const training::CheckpointFolder folder{(folder_ / "run").string()};
  const auto nobodys = [](std::string_view) { return false; };
  Model model;
  training::CheckpointManifest manifest{.id = "0123456789abcdef", .step = 8, .sharded = true, .ranks = 2};
  folder.make(8);
  for (const std::uint32_t rank : {0U, 1U}) {
    const training::ShardOrigin origin{.id = manifest.id, .step = 8, .rank = rank, .files = 2};
    manifest.shards.push_back(training::write_shard(folder.shard_path(origin), origin, model.tensors(), "extra"));
  }
  const fs::path second = files(8, "rank-1-")[0];
  const std::string whole = content_of(second);
  for (const bool absent : {false, true}) {
    overwrite(second, whole + "x");
    if (absent) fs::remove(second);
    const Error error = thrown_by([&] { folder.publish(manifest, nobodys); });
    EXPECT_THAT(error.cause(), HasSubstr(absent ? "is missing, which rank 1" : "bytes instead of"));
    EXPECT_FALSE(fs::exists(step(8) / "manifest"));
  }
  overwrite(second, whole);
  {
    const std::lock_guard lock(synced_mutex);
    removed_in_sync = second;  // in the midst of it
  }
  EXPECT_TRUE(error_of([&] { folder.publish(manifest, nobodys); }));
  EXPECT_FALSE(fs::exists(step(8) / "manifest")) << "taken back";
  overwrite(second, whole);
  folder.publish(manifest, nobodys);
  EXPECT_TRUE(fs::exists(step(8) / "manifest"));
}

TEST_F(CheckpointTest, HasTheNamesOfAllItsFoldersOnTheDisk) {
  run_group(2, [&](ProcessGroup& group) {
    Model model;
    Checkpoints(group, (folder_ / "a" / "b").string()).save_sharded(1, model.tensors());
  });
  const std::lock_guard lock(synced_mutex);
  const fs::path real = fs::canonical(folder_);
  for (const fs::path& each : {real, real / "a", real / "a/b", real / "a/b/step-1"}) {
    EXPECT_TRUE(synced.contains(each.string())) << each;
  }
}

TEST_F(CheckpointTest, WithAFileThatIsNotTheOneThatWasWrittenIsRefused) {
  save_two(1);
  save_two(2);
  const std::string manifest = content_of(step(2) / "manifest");
  const fs::path shard = files(2, "rank-1-")[0];
  const std::string whole = content_of(shard);
  EXPECT_THAT(manifest, HasSubstr("step 2\nkind sharded\nranks 2\nfile "));

  for (std::size_t size = 0; size < manifest.size(); size += 13) {
    overwrite(step(2) / "manifest", manifest.substr(0, size));
    const Error error = refusal(2);
    EXPECT_EQ(error.code(), ErrorCode::protocol) << size << ": " << error.what();
    EXPECT_THAT(error.what(), HasSubstr("step-2/manifest'"));
    EXPECT_THAT(error.hint(), HasSubstr("remove '"));
  }
  std::string changed = manifest;
  changed[manifest.find("file ") + 5] ^= 1;
  overwrite(step(2) / "manifest", changed);
  EXPECT_THAT(refusal(2).what(), HasSubstr("checksum is not that of its lines"));
  overwrite(step(2) / "manifest", content_of(step(1) / "manifest"));
  EXPECT_EQ(refusal(2).code(), ErrorCode::mismatch) << "another step's";
  overwrite(step(2) / "manifest", manifest);

  for (const std::size_t size : {std::size_t{0}, std::size_t{10}, whole.size() - 1}) {
    overwrite(shard, whole.substr(0, size));
    const Error error = refusal(2);
    EXPECT_EQ(error.code(), ErrorCode::protocol);
    EXPECT_EQ(error.ranks(), std::vector{10});
    EXPECT_THAT(error.cause(), HasSubstr(fmt::format("it has {} bytes, its checkpoint says {}", size, whole.size())));
  }
  for (const std::size_t place : {std::size_t{0}, whole.size() / 2, whole.size() - 1}) {
    changed = whole;
    changed[place] ^= 0x40;
    overwrite(shard, changed);
    EXPECT_THAT(refusal(2).what(), HasSubstr("its checksum is not the one")) << place;
  }
  fs::remove(shard);
  const Error missing = refusal(2);
  EXPECT_EQ(missing.code(), ErrorCode::not_found);
  EXPECT_THAT(missing.what(), HasSubstr("[ENOENT (2)] (rank 10)"));
  EXPECT_EQ(refusal(9).code(), ErrorCode::not_found) << "no such step";
  const Error removed = thrown_by([&] { training::CheckpointFolder{folder_.string()}.read_manifest(9); });
  EXPECT_EQ(removed.code(), ErrorCode::not_found) << "by another job after it was listed: restore looks again";

  fs::remove(step(2) / "manifest");
  run_group(2, [&](ProcessGroup& group) {
    Model model;
    EXPECT_EQ(checkpoints(group).restore(model.tensors())->step, 1) << "without manifest there is no checkpoint";
    EXPECT_TRUE(model.is(1, group.rank()));
  });
}

TEST_F(CheckpointTest, OfAnotherModelOrOfOtherRanksIsRefused) {
  save_two(6);
  run_group(2, [&](ProcessGroup& group) {
    Model model;
    auto tensors = model.tensors();
    if (group.rank() == 1) tensors[2].name = "steps";
    const Error error = thrown_by([&] { checkpoints(group).restore(tensors); });
    EXPECT_EQ(error.code(), ErrorCode::mismatch);
    EXPECT_EQ(error.ranks(), std::vector{10});
    EXPECT_EQ(error.cause(), "tensor 2 is 'step' int64[1] in the file, 'steps' int64[1] here");
    tensors.pop_back();
    const Error fewer = thrown_by([&] { checkpoints(group).restore(tensors); });
    EXPECT_EQ(fewer.cause(), "tensor 2 is 'step' int64[1] in the file, missing here");
  });
  run_group(3, [&](ProcessGroup& group) {
    Model model;
    const Error error = thrown_by([&] { checkpoints(group).restore(model.tensors()); });
    EXPECT_EQ(error.code(), ErrorCode::mismatch);
    EXPECT_EQ(error.cause(), "2 ranks have saved their parts of it, there are 3");
  });
}

TEST_F(CheckpointTest, IsNotSavedWhereRanksDifferOrCannot) {
  run_group(2, [&](ProcessGroup& group) {
    const bool second = group.rank() == 1;
    Model model;
    Checkpoints kept = checkpoints(group);
    const Error differ = thrown_by([&] { kept.save_sharded(second ? 2 : 1, model.tensors()); });
    EXPECT_EQ(differ.code(), ErrorCode::mismatch);
    EXPECT_EQ(differ.ranks(), std::vector{10});
    auto twice = model.tensors();
    if (second) twice.push_back(twice[0]);
    const Error double_name = thrown_by([&] { kept.save_sharded(1, twice); });
    EXPECT_EQ(double_name.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(double_name.cause(), HasSubstr("'weight' is there twice"));
    EXPECT_TRUE(error_of([&] { kept.save(-1, model.tensors()); }));
    Checkpoints nowhere(group, second ? "/dev/null/folder" : (folder_ / "other").string());
    const Error error = thrown_by([&] { nowhere.save_sharded(1, model.tensors()); });
    EXPECT_THAT(error.what(), HasSubstr("'/dev/null/folder'"));
    EXPECT_FALSE(kept.restore(model.tensors()));
    EXPECT_TRUE(error_of([&] { Checkpoints(group, ""); }));
  });
}

TEST_F(CheckpointTest, HasFilesThatKnowWhereTheyBelong) {
  Model model;
  fs::create_directories(step(8));
  const std::string path = (step(8) / "rank-1-of-2.0123456789abcdef").string();
  const training::ShardOrigin origin{.id = "0123456789abcdef", .step = 8, .rank = 1, .files = 2};
  const auto record = training::write_shard(path, origin, model.tensors(), "extra");
  EXPECT_EQ(record.bytes, fs::file_size(path));
  training::check_shard(path, record, origin, model.tensors());
  EXPECT_EQ(training::read_shard(path, model.tensors()), "extra");
  for (int what = 0; what < 4; ++what) {
    training::ShardOrigin other = origin;
    if (what == 0) other.id[0] = 'f';
    if (what == 1) other.step = 9;
    if (what == 2) other.rank = 0;
    if (what == 3) other.files = 3;
    const auto error = error_of([&] { training::check_shard(path, record, other, model.tensors()); });
    ASSERT_TRUE(error) << what;
    EXPECT_EQ(error->code(), ErrorCode::mismatch);
    EXPECT_THAT(error->cause(), HasSubstr("it is of step 8, rank 1 of 2, save 0123456789abcdef; wanted"));
  }

  training::CheckpointManifest manifest{.id = origin.id, .step = 8, .sharded = true, .ranks = 2};
  manifest.shards = {record, record};
  std::string text = training::format_manifest(manifest);
  EXPECT_EQ(training::parse_manifest(text, "m"), manifest);
  EXPECT_TRUE(error_of([&] { training::parse_manifest(text + "\n", "m"); }));
  text.replace(text.find(" 1\n"), 2, " 2");
  overwrite(step(8) / "manifest", text);
  const std::string start = content_of(path).substr(0, 8) + std::string("\2\0\0\0\0\0\0\0", 8);
  for (const Error& newer : {refusal(8), *error_of([&] { training::parse_shard_start(start, path); })}) {
    EXPECT_EQ(newer.code(), ErrorCode::protocol);
    EXPECT_EQ(newer.cause(), "it has version 2 of the format, this libddp reads 1");
    EXPECT_EQ(newer.hint(), "restore it with the libddp that saved it");
  }
  manifest.shards.pop_back();
  const std::string fewer = training::format_manifest(manifest);
  EXPECT_THAT(error_of([&] { training::parse_manifest(fewer, "m"); })->cause(), HasSubstr("1 files instead of 2"));
}

}  // namespace

// What interrupted saves leave, checkpoints that lose files, and which of these a later save removes.

namespace {

TEST_F(CheckpointTest, OfTheSameStepIsReplacedAndLeftFilesGo) {
  save_two(4);
  const auto first = files(4, "rank-");
  const std::string own = first[0].extension().string().substr(1, 8);
  fs::create_directories(step(1));  // a save that another job is making
  overwrite(step(1) / "rank-0-of-2.0123456789abcdef", "half");
  overwrite(step(4) / "rank-1-of-2.0123456789abcdef.77.tmp", "ha");
  fs::create_directories(step(3));  // saves that were killed
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
  overwrite(step(5) / "manifest", content_of(step(4) / "manifest"));  // does not say which files are step 5's
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
  EXPECT_THAT(said, HasSubstr("/step-2': skipped step-4 ('rank-0-of-2."));
  EXPECT_THAT(said, HasSubstr("' is missing), step-3 ('rank-1-of-2."));
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
