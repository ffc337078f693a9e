// ddp-selftest: a job that lets admins test their nodes. Every rank tries each service of libddp; rank 0 prints one
// line per node.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ddp/binding.hpp>
#include <ddp/error.hpp>
#include <ddp/version.hpp>
#include <ddp/world.hpp>

#include "base/host_name.hpp"
#include "base/log.hpp"
#include "base/message.hpp"
#include "cli/generated_pages.hpp"
#include "cli/option_values.hpp"
#include "command/output.hpp"
#include "selftest/checks.hpp"
#include "selftest/local_checks.hpp"
#include "selftest/verdict.hpp"

namespace {

using namespace ddp::selftest;

constexpr const char* kVersion = "ddp-selftest (libddp) " DDP_VERSION_STRING "\n";
constexpr int kLongestTimeout = 3600;

struct Options {
  std::chrono::seconds timeout{30};
  bool expect_store = false;
  bool local = false;
  bool expect_plugin = false;
  std::string print{};  ///< printed instead of testing
};

/// Slurm's name of this node, which may differ from its host name; ddp-selftest.sbatch expects it.
std::string node_name() {
  const char* name = std::getenv("SLURMD_NODENAME");
  return name != nullptr && *name != '\0' ? name : ddp::base::host_name();
}

ddp::cli::ProgramText program_text() {
  return {
      .name = "ddp-selftest",
      .usage = {"[--timeout SECONDS] [--expect-store]", "--local [--expect-plugin]"},
      .summary = "test the nodes of a job for data-parallel training",
      .description = {"A job that tests its nodes. Start it like any libddp program, with two or more ranks per node.",
                      "Every rank joins the job (wire-up), exchanges values over the launcher's store (exchange), runs "
                      "collectives "
                      "with known results (collectives), sends to every other rank (pairs), checks where it may run "
                      "(binding), and "
                      "joins again at MASTER_ADDR:MASTER_PORT where set (store). Rank 0 prints one line per node: "
                      "PASS, WARN, FAIL, "
                      "or ---- where other nodes blocked it.",
                      "With --local it starts no job: it checks that this host has libddp's programs and libraries, "
                      "and that Slurm's "
                      "plugstack.conf here names a plugin for srun that can be loaded, finds "
                      "its ddp-step and has this version."},
      .remarks = "Options may be abbreviated while they are unambiguous.\n",
      .examples = {{"srun --mpi=pmix -N4 --ntasks-per-node=2 ddp-selftest", "four nodes, over Slurm's PMIx"},
                   {"ddprun --nproc-per-node=2 ddp-selftest --expect-store", "this machine, with ddprun's store"}},
      .exit_statuses = {{"0", "all nodes, or with --local all checks, passed, perhaps with warnings"},
                        {"1", "some failed"},
                        {"2", "wrong command line"}},
      .see_also = {"ddprun", "ddp-info", "srun"},
      .example_columns = 54};
}

Options parse_options(const std::vector<std::string>& arguments) {
  Options options;
  bool version = false;
  bool page = false;
  ddp::cli::OptionTable table{program_text()};
  table.add_value("--timeout", "SECONDS", fmt::format("Limit per check (default 30, at most {}).", kLongestTimeout),
                  [&](const auto& option, const auto& text) {
                    options.timeout = std::chrono::seconds{ddp::cli::parse_count(option, text, kLongestTimeout)};
                  });
  table.add_flag("--expect-store", "Fail where MASTER_ADDR and MASTER_PORT are not set.", options.expect_store);
  table.add_flag("--local", "Check this host alone, without a job.", options.local);
  table.add_flag("--expect-plugin", "With --local: fail, not warn, where the plugin is not configured.",
                 options.expect_plugin);
  table.add_flag("--version", "Print the version and exit.", version);
  table.add_help();
  ddp::cli::add_page_options(table, page);
  table.read_options(arguments);
  options.print = table.given("--help") ? table.help() : version ? kVersion : asked_page(table, false).value_or("");
  if (options.expect_plugin && !options.local) {
    ddp::cli::reject_words("--expect-plugin needs --local", "'ddp-selftest --help' lists the options");
  }
  return options;
}

/// @return the exit status.
int check_locally(const Options& options) {
  const auto results = check_this_node(options.expect_plugin, std::filesystem::read_symlink("/proc/self/exe"));
  ddp::tools::write_standard_output(format_local(node_name(), results));
  return std::any_of(results.begin(), results.end(), [](const auto& each) { return each.verdict == Verdict::fail; });
}

/// "n1: rank 3", as far as it is known before wire-up.
std::string name_of_this_rank() {
  for (const char* variable : {"PMIX_RANK", "PMI_RANK", "RANK", "SLURM_PROCID"}) {
    if (const char* rank = std::getenv(variable)) return fmt::format("{}: rank {}", node_name(), rank);
  }
  return node_name();
}

void complain(std::string_view who, const Finding& finding) {
  ddp::base::write_stderr_line(fmt::format("ddp-selftest: {}: {}: {}", who, finding.check, finding.what));
}

/// Sends this rank's result to rank 0. After a failure, rank 0's result reports it, and those of other ranks are
/// missing.
class Gathering {
 public:
  Gathering(ddp::World& world, RankResult own) : world_(world), own_(std::move(own)) {}

  /// @return whether the result was sent. @param limit allows for other ranks that still wait in a check
  bool send(std::chrono::seconds limit) {
    try {
      world_.key_value_store().put(kKey, ddp::base::encode(own_));
      world_.key_value_store().fence(ddp::Deadline::after(limit));
      return true;
    } catch (const ddp::Error& error) {
      own_.findings.push_back({.severity = Severity::failure,
                               .check = "report",
                               .what = error.what(),
                               .blamed = error.ranks().empty() ? std::vector{world_.rank()} : error.ranks()});
      return false;
    }
  }

  const RankResult& own() const { return own_; }

  std::vector<TestedNode> nodes(bool sent, std::chrono::seconds limit) {
    const ddp::Deadline end = ddp::Deadline::after(limit);
    std::vector<TestedNode> nodes;
    for (int number = 0; number < world_.num_nodes(); ++number) {
      TestedNode node{.ranks = world_.ranks_on_node(number)};
      for (const int rank : node.ranks) {
        node.results.push_back(rank == world_.rank() ? own_ : sent ? fetch(rank, end) : std::nullopt);
        if (node.results.back() && node.host.empty()) node.host = node.results.back()->host;
      }
      if (node.host.empty()) node.host = host_of(node.ranks.front());
      nodes.push_back(std::move(node));
    }
    return nodes;
  }

 private:
  static constexpr std::string_view kKey = "ddp-selftest.result";

  std::optional<RankResult> fetch(int rank, ddp::Deadline end) {
    try {
      return ddp::base::decode<RankResult>(world_.key_value_store().get(rank, kKey, end));
    } catch (const ddp::Error& error) {
      complain(fmt::format("rank {}", rank), {.check = "report", .what = error.what(), .blamed = {rank}});
      return std::nullopt;
    }
  }

  std::string host_of(int rank) {
    try {
      return world_.hostname(rank);
    } catch (const ddp::Error&) {
      return fmt::format("node-{}", world_.node_of(rank));
    }
  }

  ddp::World& world_;
  RankResult own_;
};

/// @return the exit status.
int print_report(const std::vector<NodeVerdict>& verdicts, const ddp::World& world, bool store_checked) {
  int passed = 0;
  int warned = 0;
  for (const NodeVerdict& node : verdicts) {
    passed += static_cast<int>(node.verdict == Verdict::pass || node.verdict == Verdict::warning);
    warned += static_cast<int>(node.verdict == Verdict::warning);
  }
  ddp::tools::write_standard_output(fmt::format(
      "{}{} of {} nodes passed{}: {} ranks over {}; {}\n", format_table(verdicts), passed, verdicts.size(),
      warned > 0 ? fmt::format(", {} with warnings", warned) : "", world.world_size(), to_string(world.source()),
      store_checked ? "with the store of torch.distributed" : "without a store of torch.distributed"));
  return passed == static_cast<int>(verdicts.size()) ? 0 : 1;
}

/// @param stage receives the current stage, for messages
int test(const Options& options, std::string_view& stage) {
  const ddp::CpuSet given = ddp::Binding::current().cpus;  // World::init may bind
  ddp::World world = ddp::World::init({.timeout = options.timeout, .keep_session = true});
  stage = "report";
  Checks checks{world, given, options.timeout};
  checks.run(options.expect_store);

  Gathering gathering{
      world,
      {.rank = world.rank(), .host = node_name(), .cpus = ddp::Binding::current().cpus, .findings = checks.findings()}};
  // A failing check may cost another rank its whole limit, and so may the next check.
  const bool sent = checks.store_usable() && gathering.send(3 * options.timeout);
  if (!sent) {
    for (const Finding& finding : gathering.own().findings) complain(name_of_this_rank(), finding);
  }
  if (world.rank() == 0) {
    return print_report(judge(gathering.nodes(sent, options.timeout)), world, checks.store_checked());
  }
  return sent ? 0 : 1;  // rank 0 decides
}

/// Ends the process if a kernel or library hangs despite all limits.
void exit_after_all_limits(std::chrono::seconds timeout) {
  std::signal(SIGALRM, [](int) {
    constexpr std::string_view kText = "ddp-selftest: still running long after all limits; giving up\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kText.data(), kText.size());
    ::_exit(1);
  });
  ::alarm(static_cast<unsigned>(12 * timeout.count() + 30));
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // so that a closed pipe is reported like a full disk
  std::string_view stage = "wire-up";
  try {
    const Options options = parse_options({argv + (argc > 0 ? 1 : 0), argv + argc});
    if (!options.print.empty()) {
      ddp::tools::write_standard_output(options.print);
      return 0;
    }
    if (options.local) {
      stage = "local";
      return check_locally(options);
    }
    exit_after_all_limits(options.timeout);
    return test(options, stage);
  } catch (const ddp::cli::ExitError& error) {
    ddp::base::write_stderr_line(fmt::format("ddp-selftest: {}", error.what()));
    return error.exit_status();
  } catch (const std::exception& error) {
    complain(name_of_this_rank(), {.check = std::string(stage), .what = error.what()});
    return 1;
  }
}
