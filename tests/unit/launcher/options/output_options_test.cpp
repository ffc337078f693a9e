// Which output goes where, as the command line says it.
#include "options/output_options.hpp"
#include "command_line_support.hpp"

namespace ddp::launcher {
namespace {

TEST(OutputOptions, StreamsFollowTorchrunsGrammar) {
  const auto all = parse_streams("-r", "3");
  EXPECT_EQ(all.of(0), Streams::both);
  EXPECT_EQ(all.of(99), Streams::both);
  const auto some = parse_streams("-r", "0:1,12:2,0:0");
  EXPECT_EQ(some.of(0), Streams::none) << "the last one counts";
  EXPECT_EQ(some.of(12), Streams::err);
  EXPECT_EQ(some.of(1), Streams::none);
  for (const char* wrong : {"", "4", "11", "0:1,", ",0:1", "0:", ":1", "0:4", "0:1:2", "a:1", "0-1:1", "-1:1", "4096:1",
                            "99999999999999:1", "0:1,3", "+1:1"})
    EXPECT_THAT(complaint({fmt::format("--tee={}", wrong), "p"}), HasSubstr("does not select streams")) << wrong;
}

TEST(OutputOptions, RankLists) {
  EXPECT_THAT(parse_rank_list("-f", "3, 0,8-10,9", 100), ElementsAre(0, 3, 8, 9, 10));
  for (const char* wrong : {"", ",", "1,", "-", "1-", "-1", "a", "1-2-3", "100", "99999999999", "1:2"})
    EXPECT_THROW(parse_rank_list("-f", wrong, 100), ExitError) << wrong;
  EXPECT_THAT(complaint({"--ranks-filter", "9-1", "p"}), HasSubstr("did you mean 1-9?"));
  EXPECT_THAT(complaint({"--ranks-filter", "0-99999999", "p"}), HasSubstr("too many ranks"));
  EXPECT_THAT(complaint({"--ranks-filter", "0-900000,1000000-1900000", "p"}), HasSubstr("too many ranks"));
}

TEST(OutputOptions, Filters) {
  EXPECT_THAT(parse_filters("a,b"), ElementsAre("a", "b"));
  EXPECT_THAT(parse_filters("a,,b, c"), ElementsAre("a,b", " c"));
  EXPECT_THAT(parse_filters(",,,"), ElementsAre(","));
  EXPECT_THAT(parse_filters(""), IsEmpty()) << "an empty text would match every line";
  EXPECT_THAT(parse_filters("a,"), ElementsAre("a"));
}

TEST(OutputOptions, MetricsAreServedOnRequestOnly) {
  EXPECT_FALSE(parse({"p"}).metrics.port);
  EXPECT_EQ(parse({"p"}).metrics.address, "127.0.0.1");
  EXPECT_EQ(parse({"--metrics-port", "9464", "p"}).metrics.port, 9464);
  EXPECT_EQ(parse({"--metrics-port=auto", "--metrics-address=::", "p"}).metrics.port, 0);
  const std::map<std::string, std::string, std::less<>> site{{"DDP_METRICS_PORT", "9464"},
                                                             {"DDP_METRICS_ADDRESS", "0.0.0.0"}};
  EXPECT_EQ(parse({"p"}, site).metrics.port, 9464);
  EXPECT_EQ(parse({"p"}, site).metrics.address, "0.0.0.0");
  EXPECT_FALSE(parse({"--metrics-port=none", "p"}, site).metrics.port);
  EXPECT_EQ(parse({"--event-log-interval=2.5", "p"}).event_log_interval, std::chrono::milliseconds(2500));
  for (const char* wrong : {"0", "65536", "-1", "9464x", "", "all"})
    EXPECT_THAT(complaint({fmt::format("--metrics-port={}", wrong), "p"}), HasSubstr("--metrics-port")) << wrong;
  EXPECT_THAT(complaint({"--metrics-address=localhost", "p"}), HasSubstr("is not a numeric address"));
  EXPECT_THAT(complaint({"--event-log-interval=0", "p"}), HasSubstr("--event-log-interval"));
}

TEST(OutputOptions, AreRead) {
  const auto options = parse({"--log-dir", "d", "-r3", "-t", "1:1", "--nproc-per-node=4", "--local_ranks_filter", "0,3",
                              "--ranks-filter", "0-1", "--duplicate-stdout-filters=loss", "--duplicate_stderr_filters",
                              "x,,y", "--log-format=json", "--report-json", "r.json", "p"},
                             {{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[${rank}]: "}});
  EXPECT_EQ(options.logs.directory, "d");
  EXPECT_EQ(options.logs.redirects.of(2), Streams::both);
  EXPECT_EQ(options.logs.tee.of(1), Streams::out);
  EXPECT_EQ(options.logs.local_ranks_filter, (std::set{0, 3}));
  EXPECT_EQ(options.logs.ranks_filter, (std::set{0, 1}));
  EXPECT_THAT(options.logs.stdout_filters, ElementsAre("loss"));
  EXPECT_THAT(options.logs.stderr_filters, ElementsAre("x,y"));
  EXPECT_EQ(options.logs.format, LogFormat::json);
  EXPECT_EQ(options.report_json, "r.json");
  EXPECT_EQ(options.logs.prefix_template, "[${rank}]: ");
  EXPECT_THAT(options.notices, IsEmpty());
  EXPECT_FALSE(parse({"--log-dir=", "--local-ranks-filter=", "p"}).logs.directory) << "as with torchrun";
}

TEST(OutputOptions, RanksThatCannotExist) {
  EXPECT_THAT(parse({"-t", "7:3", "--nproc-per-node", "2", "p"}).notices, ElementsAre(HasSubstr("local rank 7")));
  EXPECT_THAT(parse({"-t", "7:3", "--nproc-per-node", "gpu", "p"}).notices, IsEmpty()) << "not known here";
  EXPECT_THAT(complaint({"--ranks-filter", "8", "--nnodes=2", "--nproc-per-node=4", "p"}),
              HasSubstr("at most 8 ranks"));
  EXPECT_EQ(complaint({"--ranks-filter", "7", "--nnodes=2", "--nproc-per-node=4", "p"}), "no complaint");
  EXPECT_EQ(complaint({"--ranks-filter", "8", "--nproc-per-node=4", "p"}), "no complaint")
      << "Slurm may have more nodes";
}

TEST(OutputOptions, WordsAndPlugIns) {
  EXPECT_THAT(complaint({"--log-format", "jsno", "p"}), HasSubstr("did you mean 'json'?"));
  EXPECT_THAT(complaint({"--report-json=", "p"}), HasSubstr("give the path of a file"));
  EXPECT_THAT(parse({"--logs-specs", "mine", "p"}).notices, ElementsAre(HasSubstr("--logs-specs is ignored")));
}

}  // namespace
}  // namespace ddp::launcher
