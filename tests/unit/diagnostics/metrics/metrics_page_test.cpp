// The text that Prometheus gets, what it has of a rank, and that the documentation has the same metrics.
#include "diagnostics/metrics/metrics_page.hpp"

#include <regex>

#include "base/process.hpp"
#include "diagnostics/metrics/watched_ranks.hpp"
#include "support/checkout.hpp"
#include "unit/topology/fake_root.hpp"

namespace ddp::diagnostics {
namespace {

TEST(MetricsPage, HasTheFormatsOrderAndEscapes) {
  MetricsPage page("17", "n\"0\\");
  page.add(Metric::steps, 3, {{"rank", "1"}});
  page.add(Metric::attempts, 2);
  page.add(Metric::steps, 12345678901, {{"rank", "2"}});
  page.add(Metric::job_info, 1, {{"program", "a\nb\x01\xff.py"}});
  page.add(Metric::last_step, 0.25, {{"rank", "1"}});
  EXPECT_EQ(page.text(),
            "# HELP ddp_job_info 1, with the program and its user.\n# TYPE ddp_job_info gauge\n"
            R"(ddp_job_info{job="17",node="n\"0\\",program="a\nb??.py"} 1)"
            "\n# HELP ddp_attempts_total Attempts to run the job, the current one included.\n"
            "# TYPE ddp_attempts_total counter\n"
            R"(ddp_attempts_total{job="17",node="n\"0\\"} 2)"
            "\n# HELP ddp_steps_total Steps of the rank's Reducers that averaged gradients.\n"
            "# TYPE ddp_steps_total counter\n"
            R"(ddp_steps_total{job="17",node="n\"0\\",rank="1"} 3)"
            "\n"
            R"(ddp_steps_total{job="17",node="n\"0\\",rank="2"} 12345678901)"
            "\n# HELP ddp_last_step_seconds Time of the last step.\n# TYPE ddp_last_step_seconds gauge\n"
            R"(ddp_last_step_seconds{job="17",node="n\"0\\",rank="1"} 0.25)"
            "\n");
}

TEST(MetricTable, HasUniqueNamesWithTheirUnits) {
  std::set<std::string_view> names;
  for (const MetricRow& row : metric_table()) {
    EXPECT_TRUE(row.name.starts_with("ddp_")) << row.name;
    EXPECT_EQ(row.kind == MetricKind::counter, row.name.ends_with("_total")) << row.name;
    EXPECT_TRUE(row.help.ends_with('.')) << row.name;
    EXPECT_EQ(row.help.find_first_of("\n\\"), std::string_view::npos) << row.name;
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
  }
}

/// Words of a text, between single blanks: the page breaks its lines.
std::string words(std::istream&& text) {
  std::string words;
  for (std::string word; text >> word;) words += word + ' ';
  return words;
}

TEST(MetricTable, IsThatOfTheDocumentation) {
  const std::string page = words(std::ifstream(ddp::test::source_root() / "docs/reference/observability.md"));
  EXPECT_THAT(page, HasSubstr(words(std::istringstream(metrics_markdown())))) << "put this there:\n"
                                                                              << metrics_markdown();
}

/// By PromQL's rules for names; those of functions and labels are others.
std::set<std::string> metrics_in(const std::string& expression) {
  static const std::regex kName("ddp_[a-zA-Z0-9_]+");
  return {std::sregex_token_iterator(expression.begin(), expression.end(), kName), {}};
}

std::set<std::string> known_metrics() {
  std::set<std::string> names;
  for (const MetricRow& row : metric_table()) names.emplace(row.name);
  return names;
}

TEST(GrafanaDashboard, HasWhatGrafanaWantsAndMetricsThatExist) {
  std::ifstream file(ddp::test::source_root() / "contrib/grafana/libddp.json");
  const auto dashboard = nlohmann::json::parse(file);
  // https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/
  for (const char* field : {"id", "uid", "title", "tags", "timezone", "editable", "graphTooltip", "panels", "time",
                            "timepicker", "templating", "annotations", "refresh", "schemaVersion", "version", "links"})
    EXPECT_TRUE(dashboard.contains(field)) << field;
  EXPECT_TRUE(dashboard.at("id").is_null()) << "Grafana gives it";
  EXPECT_LE(dashboard.at("uid").get<std::string>().size(), 40U);
  std::set<int> ids;
  std::set<std::pair<int, int>> taken;  // cells of the grid
  std::set<std::string> shown;
  const std::set<std::string> known = known_metrics();
  for (const auto& panel : dashboard.at("panels")) {
    const std::string title = panel.at("title");
    EXPECT_TRUE(ids.insert(panel.at("id").get<int>()).second) << title;
    EXPECT_TRUE(panel.at("type") == "timeseries" || panel.at("type") == "stat") << title;
    EXPECT_EQ(panel.at("datasource").at("type"), "prometheus") << title;
    EXPECT_TRUE(panel.at("fieldConfig").at("defaults").at("unit").is_string()) << title;
    const auto& place = panel.at("gridPos");
    const int x = place.at("x"), y = place.at("y"), width = place.at("w"), height = place.at("h");
    EXPECT_LE(x + width, 24) << title;
    for (int column = x; column < x + width; ++column) {
      for (int row = y; row < y + height; ++row) EXPECT_TRUE(taken.emplace(column, row).second) << title;
    }
    std::set<std::string> references;
    for (const auto& target : panel.at("targets")) {
      EXPECT_TRUE(references.insert(target.at("refId")).second) << title;
      const auto metrics = metrics_in(target.at("expr"));
      EXPECT_FALSE(metrics.empty()) << title;
      for (const std::string& metric : metrics) {
        EXPECT_TRUE(known.contains(metric)) << title << " wants " << metric;
        shown.insert(metric);
      }
    }
  }
  EXPECT_GE(shown.size(), 18U);
  for (const auto& variable : dashboard.at("templating").at("list")) {
    if (variable.at("type") != "query") continue;
    for (const std::string& metric : metrics_in(variable.at("query").at("query")))
      EXPECT_TRUE(known.contains(metric)) << metric;
  }
}

TEST(Alerts, UseMetricsThatExist) {
  std::ifstream file(ddp::test::source_root() / "contrib/prometheus/alerts.yml");
  const std::set<std::string> known = known_metrics();
  int seen = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.find("expr:") == std::string::npos) continue;
    ++seen;
    for (const std::string& metric : metrics_in(line)) EXPECT_TRUE(known.contains(metric)) << line;
  }
  EXPECT_GE(seen, 4);
}

TEST(RankMetrics, AreThoseOfItsFlightRecorder) {
  flight::FlightView view;
  view.rank = 3;
  view.phase = flight::FlightPhase::wired_up;
  view.recorded = 40;
  for (int i = 0; i < 20; ++i) {
    view.groups.push_back({.name = "g" + std::to_string(i), .last_queued = 7});
  }
  view.last = {.group = "g0", .operation = "all_reduce", .sequence = 7, .age_s = 1.5};
  view.unfinished = {{.group = "g0", .operation = "all_reduce", .age_s = 9},
                     {.group = "g1", .operation = "send", .age_s = 1.5}};
  view.sums = flight::FlightView::Sums{.operation_bytes = 4096,
                                       .steps = 10,
                                       .step_s = 2.5,
                                       .communication_s = 2,
                                       .hidden_s = 1.5,
                                       .last_step_s = 0.3,
                                       .last_step_age_s = 0.1,
                                       .straggler_rank = 5,
                                       .straggler_delay_s = 0.02};
  MetricsPage page("17", "n0");
  add_rank(page, 3, {.processes = 2, .cpu_s = 12.5, .resident_bytes = 8192, .flight = view});
  const std::string text = page.text();
  for (const char* line :
       {"ddp_rank_running{job=\"17\",node=\"n0\",rank=\"3\"} 1\n",
        "ddp_rank_cpu_seconds_total{job=\"17\",node=\"n0\",rank=\"3\"} 12.5\n",
        "ddp_operations_total{job=\"17\",node=\"n0\",rank=\"3\"} 40\n",
        "ddp_operation_bytes_total{job=\"17\",node=\"n0\",rank=\"3\"} 4096\n", "rank=\"3\",group=\"g7\"} 7\n",
        "ddp_operations_pending{job=\"17\",node=\"n0\",rank=\"3\"} 2\n",
        "ddp_oldest_operation_age_seconds{job=\"17\",node=\"n0\",rank=\"3\"} 9\n",
        "ddp_hidden_communication_ratio{job=\"17\",node=\"n0\",rank=\"3\"} 0.75\n",
        "ddp_straggler_rank{job=\"17\",node=\"n0\",rank=\"3\"} 5\n",
        "ddp_rank_phase{job=\"17\",node=\"n0\",rank=\"3\"} 2\n"})
    EXPECT_THAT(text, HasSubstr(line));
  EXPECT_THAT(text, Not(HasSubstr("group=\"g8\""))) << "groups without end make no metrics without end";
}

TEST(RankMetrics, OfOneThatIsGoneSayThatOnly) {
  MetricsPage page("17", "n0");
  add_rank(page, 3, {});
  EXPECT_THAT(page.text(), HasSubstr("ddp_rank_running{job=\"17\",node=\"n0\",rank=\"3\"} 0\n"));
  EXPECT_THAT(page.text(), Not(HasSubstr("cpu")));
}

TEST(RankProbe, CountsWhatIsBelowARankAndFindsItsFlightRecorder) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  // a script with a rank below it, which has a flight recorder
  base::ChildProcess script{::fork()};
  if (script.pid() == 0) {
    if (::fork() == 0) {
      flight::FlightMemory memory(4, flight::FlightMemory::Visibility::shared);
      memory.set_world(6, 8);
      memory.add_bytes(100);
      memory.add_step({.duration = std::chrono::milliseconds(250)});
      volatile std::uint64_t work = 0;
      for (int i = 0; i < 200'000'000; ++i) work = work + 1;  // some 0.2 s
      [[maybe_unused]] const auto ignored = ::write(ends[1], "r", 1);
      ::pause();
    }
    ::pause();
    ::_exit(0);
  }
  char ready = 0;
  ASSERT_EQ(::read(ends[0], &ready, 1), 1);
  RankProbe probe(script.pid());
  const RankUse use = probe.look();
  EXPECT_EQ(use.processes, 2);
  EXPECT_GT(use.cpu_s, 0.02);
  EXPECT_GT(use.resident_bytes, 100'000U);
  ASSERT_TRUE(use.flight && use.flight->sums);
  EXPECT_EQ(use.flight->rank, 6);
  EXPECT_EQ(use.flight->sums->operation_bytes, 100U);
  EXPECT_EQ(use.flight->sums->steps, 1U);
  EXPECT_DOUBLE_EQ(use.flight->sums->step_s, 0.25);
  const RankUse again = probe.look();  // through what was found before
  EXPECT_GE(again.cpu_s, use.cpu_s);
  ASSERT_TRUE(again.flight);
  EXPECT_EQ(again.flight->rank, 6);
  ::kill(static_cast<pid_t>(use.flight->pid), SIGKILL);
  script.kill();
  EXPECT_EQ(probe.look().processes, 0);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(RankProbe, ProcessesThatComeLaterAreFoundAndOthersNumbersAreNotCounted) {
  const topology::FakeRoot root;
  const auto process = [&](int pid, int ticks, int start, const std::string& children) {
    const std::string folder = "proc/" + std::to_string(pid);
    root.write(folder + "/stat", std::to_string(pid) + " (a b) c) S 1 1 1 0 -1 0 0 0 5 0 " + std::to_string(ticks) +
                                     " 0 7 0 20 0 1 0 " + std::to_string(start) + " 4096 3 0");
    root.write(folder + "/task/" + std::to_string(pid) + "/children", children);
  };
  const double tick_s = 1.0 / static_cast<double>(::sysconf(_SC_CLK_TCK));
  process(10, 100, 50, "11 ");
  process(11, 200, 60, "");
  RankProbe probe(10, (root.path() / "proc").string());
  const RankUse first = probe.look();
  EXPECT_EQ(first.processes, 2);
  EXPECT_DOUBLE_EQ(first.cpu_s, 314 * tick_s);
  EXPECT_EQ(first.resident_bytes, 6U * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)));
  process(11, 100'000, 70, "");  // another one, which has its number now
  EXPECT_EQ(probe.look().processes, 1);
  process(10, 100, 50, "11 12 ");
  process(12, 300, 80, "");
  RankUse later;
  for (int turn = 0; turn < 600 && later.processes < 3; ++turn) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    later = probe.look();
  }
  EXPECT_EQ(later.processes, 3);
}

}  // namespace
}  // namespace ddp::diagnostics
