#include "launch/host_words.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

#include "base/errors.hpp"
#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "cli/option_values.hpp"

namespace ddp::launcher {
namespace {

constexpr std::size_t kMostKeptBytes = 16'384;
constexpr std::size_t kMostLineBytes = 300;

}  // namespace

HostWords::HostWords(std::size_t hosts) : sources_(hosts) {
  thread_ = base::start_thread([this] { run(); });
}

HostWords::~HostWords() {
  stop_.ring();
  {
    const std::lock_guard lock{mutex_};
    finishing_ = true;
  }
  wake_.ring();
  thread_.join();
}

base::UniqueFd HostWords::open(std::size_t host) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw base::system_error("making a pipe", errno, "raise ulimit -n");
  base::UniqueFd own{ends[0]};
  base::UniqueFd theirs{ends[1]};
  ::fcntl(own.get(), F_SETFL, O_NONBLOCK);
  {
    const std::lock_guard lock{mutex_};
    sources_.at(host).pipe = std::move(own);
  }
  wake_.ring();
  return theirs;
}

void HostWords::show(std::size_t host) {
  {
    const std::lock_guard lock{mutex_};
    sources_.at(host).shown = true;
  }
  wake_.ring();
}

std::string HostWords::last_line(std::size_t host) {
  const std::lock_guard lock{mutex_};
  Source& source = sources_.at(host);
  while (source.pipe && take_in(source)) {
  }
  std::string_view text = source.kept;
  const auto end = text.find_last_not_of(" \t\r\n.");
  if (end == std::string_view::npos) return {};
  text = text.substr(0, end + 1);
  text = text.substr(text.find_last_of("\r\n") + 1);
  if (constexpr std::string_view kOwn = "ddprun: "; text.starts_with(kOwn)) text.remove_prefix(kOwn.size());
  return cli::printable(text.substr(0, kMostLineBytes));
}

void HostWords::finish(Deadline deadline) {
  std::unique_lock lock{mutex_};
  finishing_ = true;
  wake_.ring();
  over_changed_.wait_until(lock, deadline.when(), [this] { return over_; });
}

/// @return whether there may be more
bool HostWords::take_in(Source& source) {
  char buffer[8'192];
  const ssize_t size = ::read(source.pipe.get(), buffer, sizeof buffer);
  if (size < 0 && errno == EINTR) return true;
  if (size < 0 && errno == EAGAIN) return false;
  if (size <= 0) {
    source.pipe.reset();
    return false;
  }
  source.kept.append(buffer, static_cast<std::size_t>(size));
  if (!source.shown && source.kept.size() > kMostKeptBytes) source.kept.erase(0, source.kept.size() - kMostKeptBytes);
  return true;
}

/// One piece of each host that has any; what is to be shown of it.
std::string HostWords::take_ready(bool& anything) {
  const std::lock_guard lock{mutex_};
  std::string text;
  anything = false;
  for (Source& source : sources_) {
    if (source.pipe) anything = take_in(source) || anything;
    if (source.shown) text += std::exchange(source.kept, {});
  }
  return text;
}

void HostWords::run() {
  for (bool finishing = false; !finishing;) {
    std::vector<pollfd> entries{{.fd = wake_.fd(), .events = POLLIN, .revents = 0}};
    {
      const std::lock_guard lock{mutex_};
      for (const Source& source : sources_) {
        if (source.pipe) entries.push_back({.fd = source.pipe.get(), .events = POLLIN, .revents = 0});
      }
    }
    ::poll(entries.data(), entries.size(), -1);
    wake_.clear();
    {
      const std::lock_guard lock{mutex_};
      finishing = finishing_;
    }
    for (bool more = true; more;) {
      const std::string text = take_ready(more);
      if (text.empty()) {
        more = more && finishing;
      } else if (!base::write_bytes(STDERR_FILENO, text, base::kPagePatience, stop_.fd())) {
        more = more && !finishing;  // nobody reads it
      }
      if (!finishing) more = false;
    }
  }
  const std::lock_guard lock{mutex_};
  over_ = true;
  over_changed_.notify_all();
}

}  // namespace ddp::launcher
