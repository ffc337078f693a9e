// What a rank's program says of its own times is read with limits, whatever it says.
#include "diagnostics/metrics/training_metrics.hpp"

#include <sys/mman.h>

#include "base/unique_fd.hpp"
#include "diagnostics/metrics/watched_ranks.hpp"

namespace ddp::diagnostics {
namespace {

std::string document(std::string_view series) { return fmt::format(R"({{"series": [{}]}})", series); }

TEST(TrainingMetrics, AreSeriesOfTheFormat) {
  const TrainingMetrics metrics =
      parse_training_metrics(document(R"(["forward_metric", "forward_pass", 3, 0.75, 0.2, 0.3, 4])"));
  EXPECT_EQ(metrics.refused, 0);
  ASSERT_EQ(metrics.series.size(), 1U);
  const TrainingSeries& series = metrics.series.front();
  EXPECT_EQ(series.type, "forward_metric");
  EXPECT_EQ(series.name, "forward_pass");
  EXPECT_EQ(series.count, 3U);
  EXPECT_DOUBLE_EQ(series.sum_s, 0.75);
  EXPECT_THAT(series.quantiles_s, testing::ElementsAre(0.2, 0.3, 4));
}

TEST(TrainingMetrics, WhatIsMalformedIsCountedAndTheRestIsTaken) {
  const std::string long_name(129, 'n');
  for (const std::string& wrong :
       {std::string(R"(["t", "n", 1, 1, 1, 1])"), std::string(R"(["t", "n", 1, 1, 1, 1, 1, 1])"),
        std::string(R"(["t", 7, 1, 1, 1, 1, 1])"), std::string(R"(["", "n", 1, 1, 1, 1, 1])"),
        std::string(R"(["t", "n", -1, 1, 1, 1, 1])"), std::string(R"(["t", "n", 1.5, 1, 1, 1, 1])"),
        std::string(R"(["t", "n", 1, -1, 1, 1, 1])"), std::string(R"(["t", "n", 1, 1, 1, 1e999, 1])"),
        std::string(R"(["t", "n", 1, 1, null, 1, 1])"), std::string(R"({"t": 1})"), std::string("[[[[]]]]"),
        fmt::format(R"(["t", "{}", 1, 1, 1, 1, 1])", long_name)}) {
    const TrainingMetrics metrics = parse_training_metrics(document(wrong + R"(, ["t", "good", 1, 1, 1, 1, 1])"));
    const bool not_json = wrong.find("e999") != std::string::npos;  // a number out of range is not JSON to the parser
    EXPECT_EQ(metrics.refused, 1) << wrong;
    EXPECT_EQ(metrics.series.size(), not_json ? 0U : 1U) << wrong;
  }
  for (const std::string& text : {std::string{}, std::string("{"), std::string("[]"), std::string(R"({"series": 1})"),
                                  std::string("{\"series\": [\"\xff\"]}"), std::string(R"({"series": [NaN]})"),
                                  std::string(60'000, '['), document(std::string(70'000, ' '))}) {
    const TrainingMetrics metrics = parse_training_metrics(text);
    EXPECT_EQ(metrics.refused, 1) << text.substr(0, 80);
    EXPECT_TRUE(metrics.series.empty());
  }
}

TEST(TrainingMetrics, SeriesAreFewAndNoTwoLookAlike) {
  std::string many = R"(["t", "é", 1, 1, 1, 1, 1], ["t", "ü", 1, 1, 1, 1, 1], ["t", "\u0007\n", 1, 1, 1, 1, 1])";
  EXPECT_EQ(parse_training_metrics(document(many)).series.size(), 1U) << "they look alike on the page";
  EXPECT_EQ(parse_training_metrics(document(many)).refused, 2);
  for (int i = 0; i < 150; ++i) many += fmt::format(R"(, ["t", "n{}", 1, 1, 1, 1, 1])", i);
  const TrainingMetrics metrics = parse_training_metrics(document(many));
  EXPECT_EQ(metrics.series.size(), kMostTrainingSeries);
  EXPECT_EQ(metrics.refused, 2 + 51);
}

TEST(TrainingMetrics, AreASummaryOnThePage) {
  MetricsPage page("17", "n0");
  TrainingMetrics metrics = parse_training_metrics(document(R"(["forward", "a\"b\\c", 3, 0.75, 0.25, 0.5, 1])"));
  metrics.refused = 2;
  add_rank(page, 3, {.processes = 1, .training = metrics});
  const std::string labels = R"(job="17",node="n0",rank="3",type="forward",name="a\"b\\c")";
  EXPECT_THAT(page.text(), HasSubstr("# TYPE ddp_training_seconds summary\n"
                                     "ddp_training_seconds{" +
                                     labels +
                                     ",quantile=\"0.5\"} 0.25\n"
                                     "ddp_training_seconds{" +
                                     labels +
                                     ",quantile=\"0.95\"} 0.5\n"
                                     "ddp_training_seconds{" +
                                     labels +
                                     ",quantile=\"0.99\"} 1\n"
                                     "ddp_training_seconds_sum{" +
                                     labels +
                                     "} 0.75\n"
                                     "ddp_training_seconds_count{" +
                                     labels + "} 3\n"));
  EXPECT_THAT(page.text(), HasSubstr(R"(ddp_training_refused{job="17",node="n0",rank="3"} 2)"));
  MetricsPage without("17", "n0");
  add_rank(without, 3, {.processes = 1});
  EXPECT_THAT(without.text(), Not(HasSubstr("training")));
}

enum class Seal { complete, open };

base::UniqueFd memory(const std::string& text, Seal seal) {
  base::UniqueFd file{::memfd_create(kTrainingMemoryName, MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  EXPECT_EQ(::write(file.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  if (seal == Seal::complete) {
    EXPECT_EQ(::fcntl(file.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW), 0);
  }
  return file;
}

TEST(TrainingReader, FollowsMemoryThatIsReplacedAndReadsOnlyWhatIsComplete) {
  TrainingReader reader;
  const std::vector<pid_t> processes{::getpid()};
  const auto open = memory(document(R"(["t", "unsealed", 1, 1, 1, 1, 1])"), Seal::open);
  EXPECT_TRUE(reader.read("/proc", processes).series.empty());
  EXPECT_TRUE(reader.read("/proc", {}).series.empty());
  auto file = memory(document(R"(["t", "first", 1, 1, 1, 1, 1])"), Seal::complete);
  TrainingMetrics metrics;
  for (int turn = 0; turn < 600 && metrics.series.empty(); ++turn) {  // searches that follow one in vain pause
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    metrics = reader.read("/proc", processes);
  }
  ASSERT_EQ(metrics.series.size(), 1U);
  EXPECT_EQ(metrics.series.front().name, "first");
  const auto second = memory(document(R"(["t", "second", 2, 1, 1, 1, 1])"), Seal::complete);
  ASSERT_EQ(::dup2(second.get(), file.get()), file.get());
  metrics = reader.read("/proc", processes);
  ASSERT_EQ(metrics.series.size(), 1U);
  EXPECT_EQ(metrics.series.front().name, "second");
  EXPECT_TRUE(reader.read("/proc", {::getppid()}).series.empty()) << "another process may have its number now";
}

}  // namespace
}  // namespace ddp::diagnostics
