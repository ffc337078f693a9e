#include "launch/expander.hpp"

#include <signal.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

#include "base/log.hpp"
#include "cli/option_values.hpp"
#include "launch/launcher_process.hpp"

namespace ddp::launcher {
namespace {

// Of one request, the nodes come one after the other.
constexpr std::chrono::seconds kBetweenRequests{5};
// Nodes that take part for less time are short-lived.
constexpr std::chrono::seconds kShortLife{60};
constexpr std::chrono::seconds kFirstPause{10};
constexpr std::chrono::seconds kLongestPause{600};
constexpr std::chrono::seconds kSallocEndPatience{10};
constexpr std::size_t kMostWordBytes = 300;

void say_of_request(const std::string& text) { base::write_stderr_line(fmt::format("ddprun: {}", text)); }

/// "16(x2),8" begins with 16.
std::string first_number(const std::string& text) { return text.substr(0, text.find_first_not_of("0123456789")); }

}  // namespace

std::vector<std::string> salloc_command(int nodes, const std::string& facts, const base::Environment& environment) {
  std::vector<std::string> command{"salloc", "--job-name=ddprun", "--no-kill",
                                   nodes == 1 ? "--nodes=1" : fmt::format("--nodes=1-{}", nodes)};
  const auto add = [&](const char* option, const char* variable, const std::string& value) {
    const bool known = !value.empty() && value != "(null)" && value != "N/A";
    if (known && !environment.has(variable)) command.push_back(fmt::format("{}={}", option, value));
  };
  std::vector<std::string> fields;
  for (const std::string_view field : cli::parts_of(facts, '|')) fields.emplace_back(field);
  fields.resize(6);
  // "0:00" would be no limit, and UNLIMITED and the like need none.
  const bool over = fields[0].find_first_not_of("0:-") == std::string::npos;
  if (!first_number(fields[0]).empty()) add("--time", "SALLOC_TIMELIMIT", over ? "1" : fields[0]);
  add("--partition", "SALLOC_PARTITION", fields[1]);
  add("--account", "SALLOC_ACCOUNT", fields[2]);
  add("--qos", "SALLOC_QOS", fields[3]);
  add("--reservation", "SALLOC_RESERVATION", fields[4]);
  add("--constraint", "SALLOC_CONSTRAINT", fields[5]);
  const auto value = [&](const char* name) { return environment.raw(name).value_or(""); };
  add("--cpus-per-task", "SALLOC_CPUS_PER_TASK", first_number(value("SLURM_JOB_CPUS_PER_NODE")));
  add("--gpus-per-node", "SALLOC_GPUS_PER_NODE", value("SLURM_GPUS_PER_NODE"));
  add("--mem", "SALLOC_MEM_PER_NODE", value("SLURM_MEM_PER_NODE"));
  add("--mem-per-cpu", "SALLOC_MEM_PER_CPU", value("SLURM_MEM_PER_CPU"));
  return command;
}

void RequestPause::ended(Time begin, Time end) {
  short_lives_ = end - begin < kShortLife ? short_lives_ + 1 : 0;
  if (short_lives_ == 0) return;
  const int doublings = std::min(short_lives_ - 1, 6);  // more would be longer than the longest
  next_ = end + std::min(kFirstPause * (1 << doublings), kLongestPause);
}

Expander::Expander(stream::EventLoop& loop, const base::Environment& environment, Coordinator& coordinator)
    : loop_(loop), environment_(environment), coordinator_(coordinator) {}

Expander::~Expander() { end(Deadline::after(kSallocEndPatience)); }

void Expander::end(Deadline deadline) {
  for (Request& request : requests_) request.program.signal(SIGTERM);
  for (Request& request : requests_) request.program.terminate(deadline);
  requests_.clear();
}

bool Expander::is_due(Time now) const {
  const bool on_the_way = !requests_.empty() && requests_.back().stage != Stage::came;
  const int missing = coordinator_.missing_nodes();
  return missing > 0 && !on_the_way && now >= pause_.next() && missing > given_up_.value_or(0) &&
         (requests_.empty() || now >= requests_.back().since + kBetweenRequests);
}

std::optional<Deadline> Expander::next_deadline() const {
  const auto now = Deadline::Clock::now();
  if (is_due(now)) return Deadline{now};
  if (coordinator_.missing_nodes() == 0) return std::nullopt;
  std::optional<Deadline> next;
  const auto consider = [&](Time time) {
    if (time > now) next = next ? earlier(*next, Deadline{time}) : Deadline{time};
  };
  consider(pause_.next());
  if (!requests_.empty()) consider(requests_.back().since + kBetweenRequests);
  return next;
}

void Expander::time_passed() {
  const auto now = Deadline::Clock::now();
  for (Request& request : requests_) {
    request.program.read([&](const std::string& line) { take_line(request, line); });
    if (request.stage == Stage::granted && coordinator_.nodes_of(request.job) > 0) {
      request.stage = Stage::came;
      request.since = now;
    }
  }
  for (auto request = requests_.begin(); request != requests_.end();)
    request = settle(*request) ? requests_.erase(request) : request + 1;
  const int missing = coordinator_.missing_nodes();
  if (given_up_ && missing < *given_up_) given_up_ = missing;
  for (Request& request : requests_) {
    if (missing > 0 || request.stage > Stage::pending || std::exchange(request.cancelled, true)) continue;
    request.program.signal(SIGTERM);
  }
  if (is_due(now)) begin(missing);
}

void Expander::begin(int nodes) {
  given_up_.reset();
  coordinator_.expect_more_nodes(true);
  Request request{.nodes = nodes};
  try {
    request.program = HeardProgram{loop_,
                                   environment_,
                                   {"squeue", "--noheader", "--jobs", environment_.raw("SLURM_JOB_ID").value_or(""),
                                    "--format", kAllocationFormat},
                                   Heard::all};
  } catch (const Error& error) {
    return gave_nothing(error.what());
  }
  requests_.push_back(std::move(request));
}

/// "salloc: Pending job allocation 7", "salloc: Granted job allocation 7", "salloc: error: ...".
void Expander::take_line(Request& request, const std::string& line) {
  const auto after = [&](std::string_view words) -> std::optional<std::string> {
    return line.starts_with(words) ? std::optional{line.substr(words.size())} : std::nullopt;
  };
  request.last_line = line;
  if (request.stage == Stage::asking) return;
  if (const auto pending = after("salloc: Pending job allocation ")) {
    request.job = first_number(*pending);
    say_of_request(fmt::format("Slurm job {} is pending; this job continues without it", request.job));
  } else if (const auto granted = after("salloc: Granted job allocation ")) {
    request.job = first_number(*granted);
    request.stage = Stage::granted;
  } else if (const auto error = after("salloc: error: ")) {
    request.error = *error;
  }
}

bool Expander::settle(Request& request) {
  const auto end = request.program.end([&](const std::string& line) { take_line(request, line); });
  if (!end) return false;
  if (request.cancelled) return true;
  if (request.stage == Stage::asking) {
    const std::string facts = end->shell_status() == 0 ? request.last_line : "";
    std::vector<std::string> command = salloc_command(request.nodes, facts, environment_);
    std::vector<std::string> join{own_path(), "--join", environment_.raw("SLURM_JOB_ID").value_or("")};
    say_of_request(fmt::format("requesting {} from Slurm: {} ddprun {} {}",
                               request.nodes == 1 ? "a node" : fmt::format("up to {} nodes", request.nodes),
                               fmt::join(command, " "), join[1], join[2]));
    for (const char* word : {"/bin/sh", "-c", "exec \"$0\" \"$@\" 2>&3 3>&-"}) command.emplace_back(word);
    command.insert(command.end(), join.begin(), join.end());
    request.stage = Stage::pending;
    try {
      request.program = HeardProgram{loop_, environment_, std::move(command), Heard::errors};
      return false;
    } catch (const Error& error) {
      gave_nothing(error.what());
      return true;
    }
  }
  if (request.stage == Stage::came) {
    pause_.ended(request.since, Deadline::Clock::now());
  } else if (coordinator_.missing_nodes() > 0) {
    const std::string& words = request.error.empty() ? request.last_line : request.error;
    gave_nothing(fmt::format("{}{}", request.job.empty() ? "" : fmt::format("Slurm job {}: ", request.job),
                             words.empty() ? "salloc said nothing" : cli::printable(words.substr(0, kMostWordBytes))));
  }
  return true;
}

void Expander::gave_nothing(const std::string& why) {
  given_up_ = coordinator_.missing_nodes();
  coordinator_.expect_more_nodes(false);
  say_of_request(fmt::format("no node came from Slurm: {}; none is requested until another is lost", why));
}

}  // namespace ddp::launcher
