#include "diagnostics/hang/nccl_ras.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ddp/error.hpp>

#include "base/socket.hpp"
#include "diagnostics/hang/proc_file.hpp"

namespace ddp::diagnostics {
namespace {

using RasJson = nlohmann::json;
using Counts = std::map<std::string, std::uint64_t>;

constexpr std::size_t kMostBytes = std::size_t{16} << 20U;
constexpr std::size_t kMostLineBytes = 1024;
constexpr std::size_t kMostTroubles = 32;
constexpr std::size_t kMostTroubleBytes = 4096;
constexpr int kMostRanks = 1 << 20;
// Limit for processes that do not answer NCCL, within the deadline of ask_nccl's callers.
constexpr const char* kPeerTimeout = "TIMEOUT 1\n";
// A healthy job calls an operation within this time, or its ranks wait for one that computes.
constexpr std::chrono::seconds kBetween{2};
constexpr std::chrono::milliseconds kPatience{6'000};
constexpr std::chrono::milliseconds kReserve{500};
constexpr int kInProgress = 7;  // ncclInProgress, which is not an error

[[noreturn]] void refuse_answer(std::string cause) {
  throw Error{{.code = ErrorCode::protocol,
               .attempted = "asking NCCL's RAS",
               .cause = std::move(cause),
               .hint = "NCCL_RAS_ADDR names its port"}};
}

// ---- the conversation

/// Appends the next bytes. @return false at the end of the stream
bool read_some(int fd, std::string& text, std::size_t most, Deadline deadline) {
  char buffer[16384];
  for (;;) {
    if (!base::wait_for(fd, POLLIN, deadline)) {
      throw Error{{.code = ErrorCode::timeout,
                   .attempted = "asking NCCL's RAS",
                   .cause = "it did not answer in time",
                   .native = "ETIMEDOUT",
                   .hint = "its process is stopped, or hangs"}};
    }
    const ssize_t size = ::recv(fd, buffer, sizeof buffer, 0);
    if (size < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (size < 0) refuse_answer("the connection was lost");
    if (size == 0) return false;
    text.append(buffer, static_cast<std::size_t>(size));
    if (text.size() > most) refuse_answer(fmt::format("the answer has more than {} bytes", most));
    return true;
  }
}

void send_line(int fd, std::string_view line, Deadline deadline) {
  base::send_all(fd, std::as_bytes(std::span{line}), deadline, "asking NCCL's RAS");
}

/// The line that answers @p line.
std::string exchange(int fd, std::string_view line, Deadline deadline) {
  send_line(fd, line, deadline);
  std::string answer;
  while (!answer.ends_with('\n')) {
    if (!read_some(fd, answer, kMostLineBytes, deadline)) refuse_answer("it has closed the connection");
  }
  return answer;
}

// ---- JSON

struct CommRank {
  int rank = -1;
  pid_t pid = 0;
  std::string host;
  Counts counts;
  int error = 0;
};
struct MissingRank {
  int rank = -1;
  pid_t pid = 0;
  std::string host;
  bool dead = false;
  bool unresponsive = false;
};
struct Communicator {
  int size = 0;
  std::vector<CommRank> ranks{};
  std::vector<MissingRank> missing{};
};
using Communicators = std::map<std::string, Communicator>;  // by hash

std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char letter) { return letter < ' ' || letter >= 0x7f; }, '?');
  return text.substr(0, 64);
}

int rank_number(const RasJson& json, int size) {
  const auto rank = json.at("rank").get<std::int64_t>();
  if (rank < 0 || rank >= size) refuse_answer("a rank is out of range");
  return static_cast<int>(rank);
}

Communicators parse_communicators(std::string_view text) {
  Communicators found;
  const RasJson document = RasJson::parse(text);
  for (const RasJson& each : document.at("communicators")) {
    const auto size = each.at("size").get<std::int64_t>();
    if (size < 0 || size > kMostRanks) refuse_answer("a communicator's size is out of range");
    Communicator comm{.size = static_cast<int>(size)};
    for (const RasJson& rank : each.at("ranks")) {
      CommRank& own = comm.ranks.emplace_back();
      own.rank = rank_number(rank, comm.size);
      own.pid = rank.at("pid").get<pid_t>();
      own.host = printable(rank.at("host").get<std::string>());
      own.error = rank.at("status").at("async_error").get<int>();
      for (const auto& [name, count] : rank.at("collective_counts").items())
        own.counts[printable(name)] = count.get<std::uint64_t>();
    }
    for (const RasJson& rank : each.at("missing_ranks")) {
      comm.missing.push_back({.rank = rank_number(rank, comm.size),
                              .pid = rank.at("pid").get<pid_t>(),
                              .host = printable(rank.at("host").get<std::string>()),
                              .dead = rank.at("status").at("considered_dead").get<bool>(),
                              .unresponsive = rank.at("status").at("unresponsive").get<bool>()});
    }
    const std::string key = printable(each.at("hash").get<std::string>());
    found.insert_or_assign(key, std::move(comm));
  }
  return found;
}

/// Groups ranks by what they have called.
std::map<Counts, std::vector<const CommRank*>> by_counts(const Communicator& comm) {
  std::map<Counts, std::vector<const CommRank*>> groups;
  for (const CommRank& rank : comm.ranks) groups[rank.counts].push_back(&rank);
  return groups;
}

std::uint64_t total(const Counts& counts) {
  std::uint64_t sum = 0;
  for (const auto& [name, count] : counts) sum += count;
  return sum;
}

/// Blames the ranks with the lowest counts; without such ranks, the smallest group.
std::optional<NcclTrouble> difference(const std::string& name, const Communicator& comm) {
  const auto groups = by_counts(comm);
  if (groups.size() < 2) return std::nullopt;
  std::set<std::uint64_t> totals;
  std::size_t fewest = comm.ranks.size();
  for (const auto& [counts, ranks] : groups) {
    totals.insert(total(counts));
    fewest = std::min(fewest, ranks.size());
  }
  NcclTrouble trouble{.text = fmt::format("{}: ranks have called different operations:", name)};
  std::set<std::string> differing;
  for (const auto& [counts, ranks] : groups) {
    for (const auto& [operation, count] : counts) {
      const auto& first = groups.begin()->first;
      const auto known = first.find(operation);
      if (known == first.end() || known->second != count) differing.insert(operation);
    }
  }
  bool begun = false;
  for (const auto& [counts, ranks] : groups) {
    std::vector<int> numbers;
    for (const CommRank* rank : ranks) numbers.push_back(rank->rank);
    std::string called;
    for (const std::string& operation : differing) {
      const auto count = counts.find(operation);
      called +=
          fmt::format("{}{} {}", called.empty() ? "" : ", ", operation, count == counts.end() ? 0 : count->second);
    }
    trouble.text += fmt::format("{} {} {}", std::exchange(begun, true) ? ";" : "", format_ranks(numbers), called);
    const bool behind = totals.size() > 1 ? total(counts) == *totals.begin() : ranks.size() == fewest;
    if (behind) {
      for (const CommRank* rank : ranks) trouble.behind.push_back(rank->pid);
    }
  }
  if (trouble.text.size() > kMostTroubleBytes) trouble.text.replace(kMostTroubleBytes, std::string::npos, "...");
  return trouble;
}

bool has_any(const Communicator& comm, const std::vector<pid_t>& pids) {
  const auto ours = [&](const auto& rank) { return std::find(pids.begin(), pids.end(), rank.pid) != pids.end(); };
  return std::any_of(comm.ranks.begin(), comm.ranks.end(), ours) ||
         std::any_of(comm.missing.begin(), comm.missing.end(), ours);
}

bool stands_still(const Communicator& before, const Communicator& after) {
  std::map<int, Counts> known;
  for (const CommRank& rank : before.ranks) known[rank.rank] = rank.counts;
  return std::all_of(after.ranks.begin(), after.ranks.end(), [&](const CommRank& rank) {
    const auto found = known.find(rank.rank);
    return found != known.end() && found->second == rank.counts;
  });
}

void add_troubles(std::vector<NcclTrouble>& to, const std::string& hash, const Communicator& comm) {
  const std::string name = fmt::format("communicator {} of {} ranks", hash, comm.size);
  for (const MissingRank& rank : comm.missing) {
    if (to.size() >= kMostTroubles) return;
    const char* const why = rank.dead ? "is considered dead" : rank.unresponsive ? "does not answer" : "has left it";
    to.push_back({.text = fmt::format("{}: rank {} (pid {} on {}) {}", name, rank.rank, rank.pid, rank.host, why),
                  .behind = {rank.pid}});
  }
  for (const CommRank& rank : comm.ranks) {
    if (rank.error == 0 || rank.error == kInProgress || to.size() >= kMostTroubles) continue;
    to.push_back({.text = fmt::format("{}: rank {} (pid {} on {}) has error {}", name, rank.rank, rank.pid, rank.host,
                                      rank.error)});
  }
  auto different = difference(name, comm);
  if (different && to.size() < kMostTroubles) to.push_back(std::move(*different));
}

// ---- text

/// The lines of the sections of errors and warnings, without their rules of '='.
std::vector<std::string> complaint_lines(std::string_view text) {
  std::vector<std::string> lines;
  bool inside = false;
  while (!text.empty() && lines.size() < kMostTroubles) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string line{text.substr(0, end)};
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line == "Errors" || line == "Warnings") {
      inside = true;
    } else if (inside && !line.empty() && line.front() != '=') {
      std::replace_if(
          line.begin(), line.end(), [](unsigned char letter) { return letter < ' ' || letter >= 0x7f; }, '?');
      lines.push_back(line.substr(line.find_first_not_of(' ') == std::string::npos ? 0 : line.find_first_not_of(' '))
                          .substr(0, 200));
    }
  }
  return lines;
}

}  // namespace

RasAddress ras_address(const std::string& text) {
  RasAddress address;
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return address;
  std::uint16_t port = 0;
  const char* const last = text.data() + text.size();
  const auto [end, status] = std::from_chars(text.data() + colon + 1, last, port);
  if (status != std::errc{} || end != last || port == 0) return address;
  address.port = port;
  std::string host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (!host.empty()) address.host = std::move(host);
  return address;
}

std::string ask_ras(const RasAddress& address, Deadline deadline) {
  const base::UniqueFd socket = base::connect_tcp(address.host, address.port, deadline);
  const std::string greeting = exchange(socket.get(), "CLIENT PROTOCOL 2\n", deadline);
  if (!greeting.starts_with("SERVER PROTOCOL ")) refuse_answer("the process listening there is not NCCL's RAS");
  exchange(socket.get(), kPeerTimeout, deadline);
  exchange(socket.get(), "SET FORMAT JSON\n", deadline);  // after "ERROR: ..." it answers in text
  send_line(socket.get(), "STATUS\n", deadline);
  std::string text;
  while (read_some(socket.get(), text, kMostBytes, deadline)) continue;
  return text;
}

std::vector<NcclTrouble> ras_troubles(std::string_view first, std::string_view second, const std::vector<pid_t>& pids) {
  std::vector<NcclTrouble> troubles;
  if (!second.starts_with('{')) {
    const std::vector<std::string> before = complaint_lines(first);
    for (std::string& line : complaint_lines(second)) {
      if (std::find(before.begin(), before.end(), line) != before.end()) troubles.push_back({.text = std::move(line)});
    }
    return troubles;
  }
  try {
    const Communicators before = parse_communicators(first);
    for (const auto& [hash, comm] : parse_communicators(second)) {
      const auto known = before.find(hash);
      if (known != before.end() && has_any(comm, pids) && stands_still(known->second, comm))
        add_troubles(troubles, hash, comm);
    }
  } catch (const RasJson::exception& error) {
    refuse_answer(fmt::format("its JSON is not as expected: {}", printable(error.what())));
  }
  return troubles;
}

namespace {

/// Whether a rank's groups say so.
bool has_communicators(const HostFacts& facts) {
  return std::any_of(facts.ranks.begin(), facts.ranks.end(), [](const RankFacts& rank) {
    return rank.flight && std::any_of(rank.flight->groups.begin(), rank.flight->groups.end(), [](const auto& group) {
             return group.backend.find("nccl") != std::string::npos;
           });
  });
}

}  // namespace

void ask_nccl(const std::string& proc, HostFacts& facts, Deadline deadline) {
  std::vector<pid_t> pids;
  std::map<std::string, std::string> environment;
  for (const RankFacts& rank : facts.ranks) {
    if (rank.state == 'X' || rank.state == 'Z' || !maps_library(proc, rank.pid, "libnccl.so")) continue;
    if (pids.empty()) environment = read_environment(proc, rank.pid);
    pids.push_back(rank.pid);
  }
  if (pids.empty() || environment["NCCL_RAS_ENABLE"] == "0") return;
  try {
    const RasAddress address = ras_address(environment["NCCL_RAS_ADDR"]);
    const Deadline limit = earlier(Deadline{deadline.when() - kReserve}, Deadline::after(kPatience));
    const std::string first = ask_ras(address, limit);
    if (limit.remaining() <= kBetween) {
      facts.notes.emplace_back("NCCL's RAS was too slow to be asked twice");
      return;
    }
    std::this_thread::sleep_for(kBetween);
    facts.nccl = ras_troubles(first, ask_ras(address, limit), pids);
  } catch (const Error& error) {
    // NCCL opens its port with its first communicator; PyTorch also maps the library in programs that never create one.
    if (error.code() == ErrorCode::unavailable && !has_communicators(facts)) return;
    facts.notes.push_back(fmt::format("NCCL's RAS did not help: {}", error.what()));
  }
}

}  // namespace ddp::diagnostics
