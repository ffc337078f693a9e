#include "launch/job_input.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/stderr_line.hpp"

namespace ddp::launcher {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{64} << 10U;
// Until the process may be in a terminal's foreground again.
constexpr std::chrono::milliseconds kInputPause{500};

}  // namespace

JobInput::JobInput(EventLoop& loop, int fd, Send send) : loop_(loop), source_(fd), send_(std::move(send)) {}

JobInput::~JobInput() { watch(false); }

void JobInput::begin(bool anew) {
  if (anew) {
    out_ = 0;
    begun_ = ended_ = false;
  }
  if (!std::exchange(begun_, true)) look();
}

void JobInput::taken(std::int64_t bytes) {
  const auto size = std::min(static_cast<std::size_t>(std::max<std::int64_t>(bytes, 0)), out_);
  source_.take(size);
  out_ -= size;
  if (size > 0 && out_ == 0) look();
}

void JobInput::time_passed() {
  if (!look_at_ || !look_at_->expired()) return;
  look_at_.reset();
  look();
}

/// Sends what there is, or waits for it.
void JobInput::look() {
  if (ended_ || out_ > 0) return watch(false);
  std::optional<Bytes> piece;
  try {
    piece = source_.peek(kPieceBytes);
  } catch (const Error& error) {
    base::write_stderr_line(fmt::format("ddprun: {}", error.what()));
    piece.emplace();  // rank 0 shall not wait for more
  }
  if (!piece) {
    // Pipes and sockets tell when there is more; a terminal would tell all the time that we may not read.
    watch(source_.tells());
    if (!source_.tells()) look_at_ = Deadline::after(kInputPause);
    return;
  }
  out_ = piece->size();
  ended_ = piece->empty();
  watch(false);
  send_({.data = *std::move(piece), .end = ended_});
}

void JobInput::watch(bool wanted) {
  if (wanted == watched_) return;
  watched_ = wanted;
  wanted ? loop_.watch(source_.fd(), [this] { look(); }) : loop_.forget(source_.fd());
}

}  // namespace ddp::launcher
