#include "workers/orphans.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "base/errors.hpp"

namespace ddp::launcher {
namespace {

// No call waits for a newly adopted child; SIGCHLD tells of ends only.
constexpr std::chrono::milliseconds kRescanInterval{10};

/// Children of this process, from the lists that the kernel keeps for each thread (proc(5), Linux 3.5).
std::vector<pid_t> children() {
  std::vector<pid_t> pids;
  std::error_code ignored;  // threads come and go
  for (const auto& thread : std::filesystem::directory_iterator{"/proc/self/task", ignored}) {
    std::ifstream list{thread.path() / "children"};
    for (pid_t pid = 0; list >> pid;) pids.push_back(pid);
  }
  return pids;
}

bool contains(std::span<const pid_t> pids, pid_t pid) { return std::find(pids.begin(), pids.end(), pid) != pids.end(); }

bool reap(pid_t pid) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG) == 0 && info.si_pid != 0;
}

/// Waits until any child ends or @p limit is over. SIGCHLD must be blocked.
void wait_for_child(std::chrono::milliseconds limit) {
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  const timespec time{.tv_sec = limit.count() / 1000, .tv_nsec = limit.count() % 1000 * 1'000'000};
  ::sigtimedwait(&child, nullptr, &time);
}

/// Parent of a process, from /proc/PID/stat: "PID (NAME) STATE PPID ...". Nothing when it is gone or a zombie.
std::optional<pid_t> living_parent(const std::filesystem::path& process) {
  std::ifstream file{process / "stat"};
  std::string text;
  std::getline(file, text, '\0');
  const auto name_end = text.rfind(')');  // the name may hold anything
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream rest{text.substr(name_end + 1)};
  char state = 0;
  pid_t parent = 0;
  if (!(rest >> state >> parent) || state == 'Z' || state == 'X') return std::nullopt;
  return parent;
}

std::vector<pid_t> descendants() {
  std::multimap<pid_t, pid_t> by_parent;
  std::error_code ignored;  // processes come and go
  for (const auto& entry : std::filesystem::directory_iterator{"/proc", ignored}) {
    const std::string name = entry.path().filename();
    pid_t pid = 0;
    const auto [end, status] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (status != std::errc{} || end != name.data() + name.size()) continue;
    if (const auto parent = living_parent(entry.path())) by_parent.emplace(*parent, pid);
  }
  std::vector<pid_t> found{::getpid()};
  for (std::size_t next = 0; next < found.size(); ++next) {
    const auto [first, last] = by_parent.equal_range(found[next]);
    for (auto child = first; child != last; ++child) found.push_back(child->second);
  }
  found.erase(found.begin());
  return found;
}

}  // namespace

void become_subreaper() {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
    throw base::system_error("becoming the reaper of orphaned processes", errno);
}

void reap_orphans(std::span<const pid_t> workers) {
  for (const pid_t pid : children()) {
    if (!contains(workers, pid)) reap(pid);
  }
}

OrphanCount end_orphans(std::span<const pid_t> workers, Deadline term_deadline, Deadline kill_deadline,
                        const std::function<void()>& meanwhile) {
  OrphanCount count{.ended = 0, .remaining = 0};
  std::set<pid_t> asked;
  for (;;) {
    count.remaining = 0;
    bool reaped = false;
    for (const pid_t pid : children()) {
      if (contains(workers, pid)) continue;
      if (reap(pid)) {
        count.ended += asked.erase(pid) > 0 ? 1 : 0;
        reaped = true;
        continue;
      }
      ++count.remaining;
      const bool first = asked.insert(pid).second;
      if (term_deadline.expired()) {
        ::kill(pid, SIGKILL);
      } else if (first) {
        ::kill(pid, SIGTERM);
        ::kill(pid, SIGCONT);
      }
    }
    if (reaped && !kill_deadline.expired()) continue;  // its children are ours now and were not listed
    if (count.remaining == 0 || kill_deadline.expired()) return count;
    meanwhile();
    wait_for_child(kRescanInterval);
  }
}

void kill_descendants() {
  // Repeated for processes that were just being forked; each round ends at least one process or is the last.
  for (int round = 0; round < 10; ++round) {
    const std::vector<pid_t> found = descendants();
    if (found.empty()) return;
    for (const pid_t pid : found) ::kill(pid, SIGKILL);
  }
}

void signal_descendants(int signal) {
  for (const pid_t pid : descendants()) ::kill(pid, signal);
}

}  // namespace ddp::launcher
