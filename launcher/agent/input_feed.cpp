#include "agent/input_feed.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/errors.hpp"

namespace ddp::launcher {

InputFeed::InputFeed(stream::EventLoop& loop, Taken taken, int input)
    : loop_(loop), taken_(std::move(taken)), input_(input) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw base::system_error("making a pipe for standard input", errno);
  const base::UniqueFd reading{ends[0]};
  pipe_.reset(ends[1]);
  ::fcntl(pipe_.get(), F_SETFL, O_NONBLOCK);
  // One page is one buffer, so that the pipe is writable again when all of it has been read.
  exact_ = ::fcntl(pipe_.get(), F_SETPIPE_SZ, 1) > 0;
  if (::dup2(reading.get(), input_) < 0) throw base::system_error("making a pipe for standard input", errno);
  loop_.watch(pipe_.get(), [this] { pump(); });
}

InputFeed::~InputFeed() { close(); }

void InputFeed::close() {
  if (!pipe_) return;
  loop_.forget(pipe_.get());
  pipe_.reset();
}

void InputFeed::add(const Bytes& data, bool end) {
  if (!pipe_) return;
  pending_.insert(pending_.end(), data.begin(), data.end());
  ending_ = ending_ || end;
  pump();
}

void InputFeed::report() {
  int left = 0;
  if (::ioctl(input_, FIONREAD, &left) == 0 && exact_) {
    const auto there = std::min(static_cast<std::size_t>(left), in_pipe_);
    read_ += static_cast<std::int64_t>(in_pipe_ - there);
    in_pipe_ = there;
  }
  if (const auto bytes = std::exchange(read_, 0); bytes > 0) taken_(bytes);
}

void InputFeed::pump() {
  report();
  if (!pipe_) return;
  while (in_pipe_ == 0 && !pending_.empty()) {
    const ssize_t size = ::write(pipe_.get(), pending_.data(), pending_.size());
    if (size <= 0) break;
    pending_.erase(pending_.begin(), pending_.begin() + size);
    (exact_ ? void(in_pipe_ += static_cast<std::size_t>(size)) : void(read_ += size));
  }
  if (!exact_) report();
  if (ending_ && pending_.empty() && in_pipe_ == 0) return close();
  loop_.want_write(pipe_.get(), in_pipe_ > 0 || !pending_.empty());
}

}  // namespace ddp::launcher
