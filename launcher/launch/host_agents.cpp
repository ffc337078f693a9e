#include "launch/host_agents.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/version.hpp>

#include "base/errors.hpp"
#include "base/host_name.hpp"
#include "launch/launcher_process.hpp"
#include "launch/own_network.hpp"
#include "options/host_list.hpp"
#include "options/worker_command.hpp"

namespace ddp::launcher {
namespace {

// For TCP and the handshake with an unresponsive host: its missing agent is noticed within seconds.
constexpr int kConnectSeconds = 10;
constexpr int kSshFailed = 255;  // ssh(1), EXIT STATUS
constexpr int kNotExecutable = 126;
constexpr int kNotFound = 127;  // of the remote shell
constexpr std::chrono::seconds kEndPatience{2};

std::string without_domain(const std::string& name) { return name.substr(0, name.find('.')); }

bool is_address(const std::string& host) {
  in6_addr address{};
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1 || ::inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

std::vector<std::string> fill_agent_command(std::vector<std::string> words, const std::string& host,
                                            const std::string& shell_command, const std::string& ddprun) {
  bool has_host = false;
  bool has_command = false;
  const auto fill = [](std::string& word, std::string_view place, const std::string& text) {
    const auto at = word.find(place);
    if (at != std::string::npos) word.replace(at, place.size(), text);
    return at != std::string::npos;
  };
  for (std::string& word : words) {
    // A host's name has no braces, so that the rest of a word is still the template's.
    has_command = fill(word, kCommandPlace, shell_command) || has_command;
    has_host = fill(word, kHostPlace, host) || has_host;
  }
  if (!has_host) words.push_back(host);
  if (has_command) return words;
  if (ddprun.empty()) return words.push_back(shell_command), words;
  words.insert(words.end(), {ddprun, kAgentWord});
  return words;
}

std::string describe(const std::string& program, const base::ProcessEnd& end) {
  return end.by_signal ? fmt::format("{} was ended by {}", program, base::signal_name(end.code))
                       : fmt::format("{} ended with exit code {}", program, end.code);
}

}  // namespace

const std::string& starter(const LaunchOptions& options) {
  return (options.agent_command.empty() ? options.ssh_command : options.agent_command).front();
}

bool is_this_host(const std::string& host) {
  const std::string own = base::host_name();
  for (const std::string& name : {std::string("localhost"), own, without_domain(own)}) {
    if (base::same_host_name(host, name)) return true;
  }
  return is_address(host) && is_own_name(host);
}

void settle_single_host(LaunchOptions& options, RoleDecision& role) {
  if (role.role != LaunchRole::frontend || !role.by_hosts || role.agents() != 1) return;
  const HostEntry& host = options.hosts.front();
  if (!host.here && !is_this_host(host.name)) return;
  if (host.ranks > 0) options.nproc = {.kind = RanksPerNode::Kind::number, .number = host.ranks};
  role = {.role = LaunchRole::alone, .reason = "the host list names this host alone", .nodes = role.nodes};
}

std::vector<std::string> agent_start_command(const LaunchOptions& options, const std::string& host,
                                             const std::string& ddprun) {
  const std::string shell_command = fmt::format("exec {} {}", shell_quoted(ddprun), kAgentWord);
  if (!options.agent_command.empty()) return fill_agent_command(options.agent_command, host, shell_command, ddprun);
  std::vector<std::string> command = options.ssh_command;
  for (const char* word : {"-T", "-x", "-o", "BatchMode=yes"}) command.emplace_back(word);
  // A master that ssh leaves behind would keep our pipes open. An existing one is used.
  for (const char* word : {"-o", "ControlMaster=no", "-o", "LogLevel=ERROR", "-o"}) command.emplace_back(word);
  command.push_back(fmt::format("ConnectTimeout={}", kConnectSeconds));
  if (options.ssh_port) {
    command.emplace_back("-p");
    command.push_back(std::to_string(*options.ssh_port));
  }
  command.push_back(host);
  command.push_back(shell_command);
  return command;
}

std::string hint_for_ssh_end(const LaunchOptions& options, const std::string& host, int status,
                             const std::string& last_line, const std::string& ddprun) {
  const auto says = [&](const char* words) { return last_line.find(words) != std::string::npos; };
  if (status == kNotFound || status == kNotExecutable)
    return fmt::format("install the same libddp on all hosts: {} must be there", ddprun);
  if (!options.agent_command.empty())
    return fmt::format("try 'echo works | {}'",
                       fmt::join(fill_agent_command(options.agent_command, host, "cat", ""), " "));
  if (status != kSshFailed) return {};
  if (says("Permission denied") || says("Too many authentication failures"))
    return fmt::format("ssh must log in without a password: set up a key, then try 'ssh -o BatchMode=yes {} true'",
                       host);
  if (says("Host key verification failed"))
    return fmt::format("its key is not known: log in once with 'ssh {}', or add it to known_hosts", host);
  if (says("Could not resolve hostname")) return "check the name in the host list";
  return fmt::format("is it up, with an sshd? Try 'ssh -o BatchMode=yes {} true'", host);
}

HostAgents::HostAgents(stream::EventLoop& loop, const LaunchOptions& options, std::size_t num_hosts, std::string ddprun,
                       const base::Environment& environment, AgentSettings common, Events events,
                       HostAgentLimits limits)
    : loop_(loop),
      options_(options),
      ddprun_(std::move(ddprun)),
      environment_(environment.variables()),
      common_(std::move(common)),
      events_(std::move(events)),
      limits_(limits),
      words_(num_hosts) {
  for (std::size_t index = 0; index < num_hosts; ++index) {
    Host& host = hosts_.emplace_back();
    host.entry = options.hosts.at(index);
    host.here = host.entry.here || is_this_host(host.entry.name);
  }
  if (std::any_of(hosts_.begin(), hosts_.end(), [](const Host& host) { return !host.here; }))
    ssh_path_ = find_program(starter(options_), environment.raw("PATH").value_or("/bin:/usr/bin"));
  start_more();
}

HostAgents::~HostAgents() {
  end(Deadline::after(kEndPatience));
  for (Host& host : hosts_) {
    leave_input(host);
    if (host.process && host.state != State::ended) loop_.forget(host.process.pidfd());
  }
}

void HostAgents::start_more() {
  while (!stopped_ && starting_ < limits_.at_once && next_ < hosts_.size()) start(next_++);
}

void HostAgents::start(std::size_t index) {
  Host& host = hosts_[index];
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw base::system_error("making a pipe", errno, "raise ulimit -n");
  const base::UniqueFd input{ends[0]};
  host.input.reset(ends[1]);
  ::fcntl(host.input.get(), F_SETFL, O_NONBLOCK);
  const base::UniqueFd words = words_.open(index);
  if (options_.verbose) words_.show(index);
  std::vector<std::string> command = host.here ? std::vector<std::string>{ddprun_, kAgentWord}
                                               : agent_start_command(options_, host.entry.name, ddprun_);
  host.process = start_launcher({.path = host.here ? ddprun_ : ssh_path_,
                                 .words = std::move(command),
                                 .environment = environment_,
                                 .standard_input = input.get(),
                                 .standard_error = words.get()});
  host.state = State::starting;
  host.limit = Deadline::after(limits_.start);
  ++starting_;
  ++running_;
  loop_.watch(host.process.pidfd(), [this, index] { process_ended(index); });
  AgentSettings settings = common_;
  settings.node = static_cast<int>(index);
  settings.ranks = host.entry.ranks;
  settings.here = host.here;
  host.unsent = encode(settings, DDP_VERSION_STRING);
  loop_.watch(host.input.get(), [this, index] { send_settings(hosts_[index]); });
  loop_.want_write(host.input.get(), true);
  host.sending = true;
}

void HostAgents::send_settings(Host& host) {
  const ssize_t size = ::write(host.input.get(), host.unsent.data(), host.unsent.size());
  if (size < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (size > 0) host.unsent.erase(0, static_cast<std::size_t>(size));
  // If the pipe has no reader, the process reports why. Until the agent has joined, it takes the open pipe for a sign
  // of life.
  if (size < 0 || host.unsent.empty()) leave_input(host);
}

void HostAgents::leave_input(Host& host) {
  if (!std::exchange(host.sending, false)) return;
  loop_.forget(host.input.get());
  host.unsent.clear();
}

void HostAgents::joined(std::int64_t node) {
  if (node < 0 || node >= static_cast<std::int64_t>(hosts_.size())) return;
  const auto index = static_cast<std::size_t>(node);
  words_.show(index);
  Host& host = hosts_[index];
  if (host.state != State::starting) return;
  host.state = State::joined;
  host.limit.reset();
  leave_input(host);
  host.input.reset();
  --starting_;
  start_more();
  if (starting_ == 0 && !failures_.empty()) report_failures();
}

std::string HostAgents::awaited() const {
  constexpr std::size_t kMostNames = 8;
  std::vector<std::string> names;
  for (const Host& host : hosts_) {
    if (host.state == State::starting || host.state == State::waiting) names.push_back(host.entry.name);
  }
  const std::size_t more = names.size() - std::min(names.size(), kMostNames);
  names.resize(names.size() - more);
  return fmt::format("{} starts ddprun on {}{}", starter(options_), fmt::join(names, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : "");
}

void HostAgents::process_ended(std::size_t index) {
  Host& host = hosts_[index];
  loop_.forget(host.process.pidfd());
  leave_input(host);
  host.input.reset();
  --running_;
  const State before = std::exchange(host.state, State::ended);
  if (before == State::joined) {
    host.limit = Deadline::after(limits_.patience);
  } else if (before == State::starting) {
    const base::ProcessEnd end = host.process.end().value_or(base::ProcessEnd{});
    const std::string& name = host.entry.name;
    const std::string said = words_.last_line(index);
    const std::string program = host.here ? "ddprun's agent" : starter(options_);
    const std::string hint = host.here ? "" : hint_for_ssh_end(options_, name, end.shell_status(), said, ddprun_);
    give_up(index, describe(program, end) + (said.empty() ? "" : ": ") + said, hint);
  }
}

void HostAgents::give_up(std::size_t index, std::string cause, std::string hint) {
  Host& host = hosts_[index];
  host.limit.reset();
  --starting_;
  if (host.state == State::starting) {
    host.state = State::given_up;
    host.process.signal(SIGTERM);
  }
  if (stopped_) return;
  if (failures_.empty()) report_at_ = Deadline::after(limits_.gather);
  failures_[index] = {.host = host.entry.name, .cause = std::move(cause), .hint = std::move(hint)};
  start_more();
  if (starting_ == 0) report_failures();
}

void HostAgents::report_failures() {
  report_at_.reset();
  std::vector<HostFailure> failures;
  for (auto& [index, failure] : std::exchange(failures_, {})) failures.push_back(std::move(failure));
  if (!events_.missing(failures.size(), describe(failures))) stop();
}

void HostAgents::stop() {
  stopped_ = true;
  report_at_.reset();
  failures_.clear();
  for (Host& host : hosts_) {
    if (host.state == State::starting) host.process.signal(SIGTERM);
  }
}

std::optional<Deadline> HostAgents::next_deadline() const {
  std::optional<Deadline> next = report_at_;
  for (const Host& host : hosts_) {
    if (host.limit) next = next ? earlier(*next, *host.limit) : host.limit;
  }
  return next;
}

void HostAgents::time_passed() {
  if (report_at_ && report_at_->expired()) report_failures();
  for (std::size_t index = 0; index < hosts_.size(); ++index) {
    Host& host = hosts_[index];
    if (!host.limit || !host.limit->expired()) continue;
    if (host.state == State::starting) {
      const std::string said = words_.last_line(index);
      give_up(
          index,
          fmt::format("it did not join within {} s{}{}", std::chrono::ceil<std::chrono::seconds>(limits_.start).count(),
                      said.empty() ? "" : ": ", said),
          "log in there and see what is slow");
    } else {
      host.limit.reset();
      const std::string program = host.here ? "ddprun's agent" : starter(options_);
      events_.left(static_cast<std::int64_t>(index),
                   describe(program, host.process.end().value_or(base::ProcessEnd{})));
    }
  }
}

void HostAgents::end(Deadline deadline) {
  stopped_ = true;
  for (Host& host : hosts_) {
    if (host.state != State::waiting && host.state != State::ended) host.process.signal(SIGTERM);
  }
  for (Host& host : hosts_) {
    if (host.state != State::waiting && host.state != State::ended && !host.process.wait(deadline)) host.process.kill();
  }
}

namespace {

constexpr std::size_t kMostNames = 16;
constexpr char kAnyHost = '\1';

/// A key that hosts with the same failure share.
std::string kind_of(const HostFailure& failure) {
  std::string kind = failure.cause;
  for (auto at = kind.find(failure.host); at != std::string::npos; at = kind.find(failure.host, at + 1))
    kind.replace(at, failure.host.size(), 1, kAnyHost);
  return kind;
}

}  // namespace

std::string describe(std::span<const HostFailure> failures) {
  struct Group {
    std::string kind;
    const HostFailure* first;
    std::vector<std::string> hosts{};
  };
  std::vector<Group> groups;
  for (const HostFailure& failure : failures) {
    const std::string kind = kind_of(failure);
    auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& each) { return each.kind == kind; });
    if (group == groups.end()) group = groups.insert(groups.end(), {.kind = kind, .first = &failure});
    group->hosts.push_back(failure.host);
  }
  std::string text = "starting ddprun ";
  for (const Group& group : groups) {
    const std::span<const std::string> names = std::span(group.hosts).first(std::min(kMostNames, group.hosts.size()));
    text += fmt::format("{}on {}", &group == groups.data() ? "" : "; ", fmt::join(names, ", "));
    if (names.size() < group.hosts.size()) text += fmt::format(" and {} more", group.hosts.size() - names.size());
    text += fmt::format(": {}{}{}", group.first->cause, group.first->hint.empty() ? "" : "; ", group.first->hint);
  }
  return text;
}

}  // namespace ddp::launcher
