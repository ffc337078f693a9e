// ddp-selftest: a job that tests its nodes, for admins. Every rank tries each service of libddp; rank 0 prints one line
// per node.
#include <unistd.h>

#include <algorithm>
#include <charconv>
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
#include "command/option_word.hpp"
#include "command/output.hpp"
#include "command/usage_error.hpp"
#include "selftest/checks.hpp"
#include "selftest/local_checks.hpp"
#include "selftest/verdict.hpp"

namespace {

using namespace ddp::selftest;

constexpr const char* kHelp =
    "Usage: ddp-selftest [--timeout SECONDS] [--expect-store]\n"
    "       ddp-selftest --local [--expect-plugin]\n"
    "\n"
    "A job that tests its nodes. Start it like any libddp program, with two or more ranks per node:\n"
    "\n"
    "  srun --mpi=pmix -N4 --ntasks-per-node=2 ddp-selftest\n"
    "  ddprun --nproc-per-node=2 ddp-selftest --expect-store\n"
    "\n"
    "Every rank joins the job (wire-up), exchanges values over the launcher's store (exchange), runs collectives with\n"
    "known results (collectives), sends to every other rank (pairs), checks where it may run (binding), and joins\n"
    "again at MASTER_ADDR:MASTER_PORT where set (store). Rank 0 prints one line per node: PASS, WARN, FAIL, or ----\n"
    "where other nodes blocked it.\n"
    "\n"
    "With --local it starts no job: it checks that this host has libddp's programs and libraries, and that Slurm's\n"
    "plugstack.conf here names the plugin for srun, which can be loaded, has its ddp-step, and is of this version.\n"
    "\n"
    "  --timeout SECONDS   limit per check (default 30, at most 3600)\n"
    "  --expect-store      fail where MASTER_ADDR and MASTER_PORT are not set\n"
    "  --local             check this host alone, without a job\n"
    "  --expect-plugin     with --local: fail, not warn, where the plugin is not configured\n"
    "  --version           print the version and exit\n"
    "  -h, --help          print this help and exit\n"
    "\n"
    "Options may be abbreviated while they are unambiguous.\n"
    "Exit status: 0 all nodes passed, perhaps with warnings; 1 some did not; 2 wrong command line.\n";

constexpr const char* kVersion = "ddp-selftest (libddp) " DDP_VERSION_STRING "\n";
constexpr const char* kSeeHelp = "'ddp-selftest --help' lists the options";
const std::vector<std::string> kOptions{"--timeout",       "--expect-store", "--local",
                                        "--expect-plugin", "--version",      "--help"};
constexpr int kLongestTimeout = 3600;

struct Options {
  std::chrono::seconds timeout{30};
  bool expect_store = false;
  bool local = false;
  bool expect_plugin = false;
  const char* print = nullptr;  ///< instead of testing
};

/// Slurm's name of this node, which may differ from its host name and which ddp-selftest.sbatch expects.
std::string node_name() {
  const char* name = std::getenv("SLURMD_NODENAME");
  return name != nullptr && *name != '\0' ? name : ddp::base::host_name();
}

int parse_timeout(const std::string& text) {
  int seconds = 0;
  const char* last = text.data() + text.size();
  const auto [end, status] = std::from_chars(text.data(), last, seconds);
  if (status == std::errc{} && end == last && seconds >= 1 && seconds <= kLongestTimeout) return seconds;
  throw ddp::tools::UsageError{"reading --timeout", fmt::format("'{}' is not a number of seconds", text),
                               fmt::format("give a whole number from 1 to {}", kLongestTimeout)};
}

Options parse_options(const std::vector<std::string>& arguments) {
  Options options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "-h") {
      options.print = kHelp;
      continue;
    }
    const auto equals = word.find('=');
    const std::string name = ddp::tools::full_option(word.substr(0, equals), kOptions, kSeeHelp);
    const bool has_value = equals != std::string::npos;
    if (has_value && name != "--timeout") {
      throw ddp::tools::UsageError{"reading the command line", fmt::format("option '{}' takes no value", name),
                                   "leave out the '=' and what follows"};
    }
    if (name == "--help") {
      options.print = kHelp;
    } else if (name == "--version") {
      options.print = kVersion;
    } else if (name == "--expect-store") {
      options.expect_store = true;
    } else if (name == "--local") {
      options.local = true;
    } else if (name == "--expect-plugin") {
      options.expect_plugin = true;
    } else {
      if (!has_value) ++i;
      const std::string value = has_value ? word.substr(equals + 1) : i < arguments.size() ? arguments[i] : "";
      options.timeout = std::chrono::seconds{parse_timeout(value)};
    }
  }
  if (options.expect_plugin && !options.local) {
    throw ddp::tools::UsageError{"reading the command line", "--expect-plugin needs --local", kSeeHelp};
  }
  return options;
}

/// @return the exit status.
int check_locally(const Options& options) {
  const auto results = check_this_node(options.expect_plugin, std::filesystem::read_symlink("/proc/self/exe"));
  ddp::tools::write_standard_output(format_local(node_name(), results));
  return std::any_of(results.begin(), results.end(), [](const auto& each) { return each.verdict == Verdict::fail; });
}

/// "n1: rank 3", as far as known before wire-up.
std::string name_of_this_rank() {
  for (const char* variable : {"PMIX_RANK", "PMI_RANK", "RANK", "SLURM_PROCID"}) {
    if (const char* rank = std::getenv(variable)) return fmt::format("{}: rank {}", node_name(), rank);
  }
  return node_name();
}

void complain(std::string_view who, const Finding& finding) {
  ddp::base::write_stderr_line(fmt::format("ddp-selftest: {}: {}: {}", who, finding.check, finding.what));
}

/// Sends this rank's result to rank 0. On failure rank 0's result says so, and those of others are missing.
class Gathering {
 public:
  Gathering(ddp::World& world, RankResult own) : world_(world), own_(std::move(own)) {}

  /// Whether the result was sent. @param limit other ranks may still be waiting in a check.
  bool send(std::chrono::seconds limit) {
    try {
      world_.key_value_store().put(kKey, encode(own_));
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
      return decode_rank_result(world_.key_value_store().get(rank, kKey, end));
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

/// @param stage set to the current stage, for messages.
int test(const Options& options, std::string_view& stage) {
  const ddp::CpuSet given = ddp::Binding::current().cpus;  // World::init may bind
  ddp::World world = ddp::World::init({.timeout = options.timeout, .keep_session = true});
  stage = "report";
  Checks checks{world, given, options.timeout};
  checks.run(options.expect_store);

  Gathering gathering{
      world,
      {.rank = world.rank(), .host = node_name(), .cpus = ddp::Binding::current().cpus, .findings = checks.findings()}};
  // A failing check may cost another rank its whole limit, and so may the next one.
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
  std::signal(SIGPIPE, SIG_IGN);  // reports a closed pipe like a full disk
  std::string_view stage = "wire-up";
  try {
    const Options options = parse_options({argv + (argc > 0 ? 1 : 0), argv + argc});
    if (options.print != nullptr) {
      ddp::tools::write_standard_output(options.print);
      return 0;
    }
    if (options.local) {
      stage = "local";
      return check_locally(options);
    }
    exit_after_all_limits(options.timeout);
    return test(options, stage);
  } catch (const ddp::tools::UsageError& error) {
    ddp::base::write_stderr_line(fmt::format("ddp-selftest: {}", error.what()));
    return 2;
  } catch (const std::exception& error) {
    complain(name_of_this_rank(), {.check = std::string(stage), .what = error.what()});
    return 1;
  }
}
