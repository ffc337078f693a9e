#include "diagnostics/hang/proc_file.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/unique_fd.hpp"

namespace ddp::diagnostics {
namespace {

constexpr std::size_t kMaxProgramBytes = 80;
constexpr std::uint64_t kKernelThread = 0x00200000;  // PF_KTHREAD, include/linux/sched.h

/// In blocks, without a stream: whoever watches many ranks reads some hundred of these files each time.
std::string read_all(int fd) {
  std::string text;
  std::array<char, 4096> block;
  for (;;) {
    const ssize_t count = fd < 0 ? 0 : ::read(fd, block.data(), block.size());
    if (count > 0) text.append(block.data(), static_cast<std::size_t>(count));
    if (count <= 0 && (count == 0 || errno != EINTR)) return text;
  }
}

std::string content_of(const std::string& proc, pid_t pid, const char* file) {
  const base::UniqueFd fd{::open(fmt::format("{}/{}/{}", proc, pid, file).c_str(), O_RDONLY | O_CLOEXEC)};
  return read_all(fd.get());
}

/// The fields of /proc/PID/stat behind the state, numbered as proc(5) does.
class StatFields {
 public:
  explicit StatFields(std::string_view text) {
    for (std::size_t i = 0; i < numbers_.size() && !text.empty(); ++i) {
      text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
      const std::string_view word = text.substr(0, text.find(' '));
      std::int64_t number = 0;  // a few are negative, none of those that are used
      std::from_chars(word.data(), word.data() + word.size(), number);
      numbers_[i] = number;
      text.remove_prefix(word.size());
    }
  }
  std::uint64_t at(std::size_t field) const { return static_cast<std::uint64_t>(numbers_.at(field - kFirst)); }

 private:
  static constexpr std::size_t kFirst = 4;  // the parent
  static constexpr std::size_t kLast = 24;  // resident pages
  std::array<std::int64_t, kLast - kFirst + 1> numbers_{};
};

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
  const auto state_at = text.find_first_not_of(' ', name_end + 1);
  if (state_at == std::string::npos) return stat;
  stat.state = text[state_at];
  const StatFields fields{std::string_view{text}.substr(state_at + 1)};
  stat.parent = static_cast<pid_t>(fields.at(4));
  const std::uint64_t flags = fields.at(9);
  stat.major_faults = fields.at(12);
  stat.ticks = fields.at(14) + fields.at(15);
  stat.children_ticks = fields.at(16) + fields.at(17);
  stat.start_ticks = fields.at(22);
  stat.resident_pages = fields.at(24);
  stat.kernel_thread = (flags & kKernelThread) != 0;
  return stat;
}

std::vector<pid_t> read_children(const std::string& proc, pid_t pid) {
  std::vector<pid_t> children;
  const std::unique_ptr<DIR, int (*)(DIR*)> threads{::opendir(fmt::format("{}/{}/task", proc, pid).c_str()),
                                                    &::closedir};
  while (const dirent* thread = threads ? ::readdir(threads.get()) : nullptr) {
    if (thread->d_name[0] == '.') continue;
    const std::string name = std::string(thread->d_name) + "/children";
    const base::UniqueFd file{::openat(::dirfd(threads.get()), name.c_str(), O_RDONLY | O_CLOEXEC)};
    const std::string text = read_all(file.get());
    for (const char *at = text.data(), *end = at + text.size(); at < end;) {
      pid_t child = 0;
      const auto [after, status] = std::from_chars(at, end, child);
      if (status == std::errc{}) children.push_back(child);
      at = std::max(after, at) + 1;  // a blank
    }
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
