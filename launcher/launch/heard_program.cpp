#include "launch/heard_program.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/errors.hpp"
#include "launch/launcher_process.hpp"
#include "options/host_list.hpp"
#include "options/worker_command.hpp"

namespace ddp::launcher {
namespace {

constexpr std::size_t kMostHeardBytes = 65536;  // more than a list of nodes has

/// salloc sets its own for its command; scontrol would write files for a shell of this one.
EnvironmentMap without_allocation(const base::Environment& environment) {
  EnvironmentMap variables = environment.variables();
  std::erase_if(variables, [](const auto& variable) {
    const std::string& name = variable.first;
    return name.starts_with("SLURM_") && name != "SLURM_CONF" && name != "SLURM_CLUSTER_NAME";
  });
  return variables;
}

}  // namespace

HeardProgram::HeardProgram(stream::EventLoop& loop, const base::Environment& environment,
                           std::vector<std::string> words, Heard heard)
    : loop_(&loop) {
  std::string path = find_program(words.front(), environment.raw("PATH").value_or("/bin:/usr/bin"));
  if (heard == Heard::all) {
    std::string line = "exec";
    for (const std::string& word : words) line += " " + shell_quoted(word);
    words = {"sh", "-c", line + " >&2"};
    path = "/bin/sh";
  }
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw base::system_error("making a pipe", errno, "raise ulimit -n");
  words_ = base::UniqueFd{ends[0]};
  const base::UniqueFd theirs{ends[1]};
  ::fcntl(words_.get(), F_SETFL, O_NONBLOCK);
  const base::UniqueFd none{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
  if (!none) throw base::system_error("opening /dev/null", errno);
  process_ = start_launcher({.path = std::move(path),
                             .words = std::move(words),
                             .environment = without_allocation(environment),
                             .standard_input = none.get(),
                             .standard_error = theirs.get(),
                             .keeps_error = heard == Heard::errors});
  loop.watch(words_.get(), [] {});  // the owner reads after each turn of the loop
  loop.watch(process_.pidfd(), [] {});
}

HeardProgram& HeardProgram::operator=(HeardProgram&& other) noexcept {
  if (this == &other) return *this;
  forget();
  loop_ = other.loop_;
  process_ = std::move(other.process_);
  words_ = std::move(other.words_);
  text_ = std::move(other.text_);
  return *this;
}

void HeardProgram::forget() noexcept {
  if (process_) loop_->forget(process_.pidfd());
  if (words_) loop_->forget(words_.get());
  words_.reset();
  process_ = {};
}

void HeardProgram::read(const std::function<void(const std::string&)>& take) {
  std::array<char, 4096> buffer;
  while (words_) {
    const ssize_t size = ::read(words_.get(), buffer.data(), buffer.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) break;
    if (size > 0) {
      text_.append(buffer.data(), static_cast<std::size_t>(size));
    } else {
      loop_->forget(words_.get());
      words_.reset();
    }
    for (auto end = text_.find('\n'); end != std::string::npos; end = text_.find('\n')) {
      take(text_.substr(0, std::min(end, kMostHeardBytes)));
      text_.erase(0, end + 1);
    }
    if (text_.size() > kMostHeardBytes) text_.resize(kMostHeardBytes);  // of a line that has not ended
  }
}

std::optional<base::ProcessEnd> HeardProgram::end(const std::function<void(const std::string&)>& take) {
  const auto end = process_.end();
  if (!end) return std::nullopt;
  read(take);
  forget();
  return end;
}

void HeardProgram::terminate(Deadline deadline) noexcept {
  process_.terminate(deadline);
  forget();
}

}  // namespace ddp::launcher
