// A folder of checkpoints, a model whose values tell of which step and rank it is, and saves of two ranks.
#pragma once

#include <ddp/checkpoint.hpp>

#include "unit/training/thread_groups.hpp"

namespace ddp::test {

namespace fs = std::filesystem;

inline std::string content_of(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}
inline void overwrite(const fs::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

/// With a time of two days ago.
inline void leave(const fs::path& path, const std::string& content) {
  overwrite(path, content);
  fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours{48});
}

/// A rank's model, which can tell of which step and rank it is.
struct Model {
  std::vector<float> weight = std::vector<float>(3000);
  std::vector<std::int64_t> step = {0};
  std::vector<double> none{};

  void set(std::int64_t to, int rank) {
    step[0] = to;
    for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = static_cast<float>(to * 100 + rank * 10) + i % 7;
  }
  bool is(std::int64_t of, int rank) const {
    Model wanted;
    wanted.set(of, rank);
    return weight == wanted.weight && step == wanted.step;
  }
  std::vector<NamedTensor> tensors() {
    return {{.name = "weight", .tensor = {weight.data(), DType::float32, {30, 100}}},
            {.name = "none", .tensor = none},
            {.name = "step", .tensor = step}};
  }
};

struct CheckpointTest : testing::Test {
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "ddp_checkpoints.XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  Checkpoints checkpoints(const ProcessGroup& group, int keep = 3) const {
    return Checkpoints(group, (folder_ / "run").string(), {.keep = keep});
  }
  fs::path step(int number) const { return folder_ / "run" / ("step-" + std::to_string(number)); }
  /// Names in a step's folder that start so.
  std::vector<fs::path> files(int number, const std::string& start) const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(step(number))) {
      if (entry.path().filename().string().starts_with(start)) found.push_back(entry.path());
    }
    return found;
  }
  std::set<std::string> steps() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_ / "run")) names.insert(entry.path().filename());
    EXPECT_EQ(names.erase("owner"), 1U);
    return names;
  }
  void save_two(int number) const {
    run_group(2, [&](ProcessGroup& group) {
      Model model;
      model.set(number, group.rank());
      checkpoints(group).save_sharded(number, model.tensors(), "of rank " + std::to_string(group.rank()));
    });
  }
  /// That restoring by two ranks fails on both alike, and touches no tensor.
  Error refusal(int number) const {
    std::vector<std::optional<Error>> errors(2);
    run_group(2, [&](ProcessGroup& group) {
      Model model;
      model.set(1, 1);
      errors[static_cast<std::size_t>(group.rank())] =
          error_of([&] { checkpoints(group).restore(model.tensors(), number); });
      EXPECT_TRUE(model.is(1, 1)) << "touched";
    });
    if (!errors[0] || !errors[1]) throw std::runtime_error("was not refused");
    EXPECT_STREQ(errors[0]->what(), errors[1]->what());
    return *errors[0];
  }

  fs::path folder_;
};

}  // namespace ddp::test
