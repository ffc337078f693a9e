#include "diagnostics/hang/proc_file.hpp"

#include <sys/syscall.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

namespace ddp::diagnostics {
namespace {

constexpr std::size_t kMaxProgramBytes = 80;
constexpr std::uint64_t kKernelThread = 0x00200000;  // PF_KTHREAD, include/linux/sched.h

std::string content_of(const std::string& proc, pid_t pid, const char* file) {
  std::ifstream stream{fmt::format("{}/{}/{}", proc, pid, file)};
  return {std::istreambuf_iterator<char>{stream}, std::istreambuf_iterator<char>{}};
}

// Those in which programs wait, are asleep or at a file. Numbers differ between architectures.
constexpr std::pair<long, const char*> kCalls[]{
    {SYS_read, "read"},
    {SYS_write, "write"},
    {SYS_pread64, "pread64"},
    {SYS_pwrite64, "pwrite64"},
    {SYS_readv, "readv"},
    {SYS_writev, "writev"},
    {SYS_openat, "openat"},
    {SYS_fsync, "fsync"},
    {SYS_fdatasync, "fdatasync"},
    {SYS_flock, "flock"},
    {SYS_fcntl, "fcntl"},
    {SYS_ioctl, "ioctl"},
    {SYS_futex, "futex"},
    {SYS_ppoll, "ppoll"},
    {SYS_pselect6, "pselect6"},
    {SYS_epoll_pwait, "epoll_pwait"},
    {SYS_recvfrom, "recvfrom"},
    {SYS_recvmsg, "recvmsg"},
    {SYS_sendto, "sendto"},
    {SYS_sendmsg, "sendmsg"},
    {SYS_accept, "accept"},
    {SYS_accept4, "accept4"},
    {SYS_connect, "connect"},
    {SYS_wait4, "wait4"},
    {SYS_waitid, "waitid"},
    {SYS_nanosleep, "nanosleep"},
    {SYS_clock_nanosleep, "clock_nanosleep"},
    {SYS_rt_sigsuspend, "rt_sigsuspend"},
    {SYS_rt_sigtimedwait, "rt_sigtimedwait"},
    {SYS_sched_yield, "sched_yield"},
#ifdef SYS_poll
    {SYS_poll, "poll"},
    {SYS_select, "select"},
    {SYS_epoll_wait, "epoll_wait"},
    {SYS_pause, "pause"},
    {SYS_open, "open"},
#endif
};

}  // namespace

ProcStat read_stat(const std::string& proc, pid_t pid) {
  ProcStat stat;
  const std::string text = content_of(proc, pid, "stat");
  const std::size_t name_end = text.rfind(')');  // a name may have anything in it
  if (name_end == std::string::npos) return stat;
  std::istringstream fields{text.substr(name_end + 1)};
  std::string skipped;
  std::uint64_t flags = 0;
  std::uint64_t user = 0;
  std::uint64_t system = 0;
  std::uint64_t children_user = 0;
  std::uint64_t children_system = 0;
  fields >> stat.state >> stat.parent >> skipped >> skipped >> skipped >> skipped >> flags >> skipped >> skipped >>
      stat.major_faults >> skipped >> user >> system >> children_user >> children_system >> skipped >> skipped >>
      skipped >> skipped >> stat.start_ticks >> skipped >> stat.resident_pages;
  stat.ticks = user + system;
  stat.children_ticks = children_user + children_system;
  stat.kernel_thread = (flags & kKernelThread) != 0;
  return stat;
}

std::vector<pid_t> read_children(const std::string& proc, pid_t pid) {
  std::vector<pid_t> children;
  std::error_code status;
  for (std::filesystem::directory_iterator thread{fmt::format("{}/{}/task", proc, pid), status}, end;
       !status && thread != end; thread.increment(status)) {
    std::ifstream file{thread->path() / "children"};
    for (pid_t child = 0; file >> child;) children.push_back(child);
  }
  return children;
}

std::map<std::string, std::string> read_environment(const std::string& proc, pid_t pid) {
  std::map<std::string, std::string> variables;
  const std::string text = content_of(proc, pid, "environ");
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\0', begin), text.size());
    const std::string_view line{text.data() + begin, end - begin};
    if (const auto equals = line.find('='); equals != std::string_view::npos)
      variables.emplace(line.substr(0, equals), line.substr(equals + 1));
    begin = end + 1;
  }
  return variables;
}

std::string read_program(const std::string& proc, pid_t pid) {
  const std::string text = content_of(proc, pid, "cmdline");
  std::string program;
  for (std::size_t begin = 0, word = 0; begin < text.size() && word < 4; ++word) {
    const std::size_t end = std::min(text.find('\0', begin), text.size());
    const std::string each = text.substr(begin, end - begin);
    const std::string name = each.substr(each.rfind('/') + 1);
    if (word == 0) {
      program = name;
    } else if (!each.starts_with('-')) {
      if (program.starts_with("python")) program += " " + name;
      break;
    }
    begin = end + 1;
  }
  if (program.empty()) program = content_of(proc, pid, "comm").substr(0, 15);
  std::replace_if(
      program.begin(), program.end(), [](unsigned char letter) { return letter < ' ' || letter == 0x7f; }, '?');
  return program.substr(0, kMaxProgramBytes);
}

std::string read_system_call(const std::string& proc, pid_t pid) {
  const std::string text = content_of(proc, pid, "syscall");  // "running", "-1 0x0 ...", "202 0x0 ..."
  long number = -1;
  std::from_chars(text.data(), text.data() + text.size(), number);
  if (number < 0 || number == SYS_restart_syscall) return {};  // after a stop: the kernel's function tells more
  for (const auto& [known, name] : kCalls) {
    if (known == number) return name;
  }
  return fmt::format("system call {}", number);
}

std::string read_kernel_function(const std::string& proc, pid_t pid) {
  const std::string text = content_of(proc, pid, "wchan");
  return text == "0" ? std::string{} : text.substr(0, text.find('\n'));
}

bool maps_library(const std::string& proc, pid_t pid, const std::string& name) {
  return content_of(proc, pid, "maps").find("/" + name) != std::string::npos;
}

}  // namespace ddp::diagnostics
