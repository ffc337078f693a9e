#include "task_side/node_channels.hpp"

#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <type_traits>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/socket.hpp"

namespace ddp::srun_plugin {
// Counters that other processes wait for (futex(2)). A mapping begins as zeros.
struct NoticeBoard::Header {
  std::atomic<std::uint32_t> offers;
  std::atomic<std::uint32_t> answered;
  std::uint32_t answer_bytes;
};

namespace {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free && sizeof(std::atomic<std::uint32_t>) == 4);
constexpr std::size_t kHeaderBytes = 64;

void wake_all(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool wait_until_at_least(const std::atomic<std::uint32_t>& word, std::uint32_t wanted, Deadline deadline) {
  while (true) {
    const std::uint32_t now = word.load(std::memory_order_acquire);
    if (now >= wanted) return true;
    const auto left = deadline.remaining();
    if (left.count() <= 0) return false;
    const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
    const timespec limit{.tv_sec = static_cast<time_t>(nanoseconds / 1'000'000'000),
                         .tv_nsec = static_cast<long>(nanoseconds % 1'000'000'000)};
    ::syscall(SYS_futex, reinterpret_cast<const std::uint32_t*>(&word), FUTEX_WAIT, now, &limit, nullptr, 0);
  }
}

}  // namespace

NoticeBoard::NoticeBoard(std::uint32_t tasks)
    : tasks_(tasks), size_bytes_(kHeaderBytes + std::size_t{tasks} * (kOfferBytes + kAnswerBytesPerTask)) {
  void* const memory = ::mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw base::system_error("sharing memory among the tasks of this node (mmap)", errno);
  static_assert(sizeof(Header) <= kHeaderBytes);
  header_ = new (memory) Header{};
}

NoticeBoard::~NoticeBoard() { ::munmap(static_cast<void*>(header_), size_bytes_); }

std::byte* NoticeBoard::offer_slot(std::uint32_t task) const {
  return reinterpret_cast<std::byte*>(header_) + kHeaderBytes + std::size_t{task} * kOfferBytes;
}

std::byte* NoticeBoard::answer_area() const { return offer_slot(tasks_); }

void NoticeBoard::offer(std::uint32_t task, std::span<const std::byte> data) {
  if (task >= tasks_) return;
  std::uint32_t size = static_cast<std::uint32_t>(data.size());
  if (data.size() > kOfferBytes - sizeof size) size = 0;
  std::memcpy(offer_slot(task), &size, sizeof size);
  std::copy_n(data.begin(), size, offer_slot(task) + sizeof size);
  if (header_->offers.fetch_add(1, std::memory_order_acq_rel) + 1 >= tasks_) wake_all(header_->offers);
}

std::optional<std::vector<Bytes>> NoticeBoard::offers(Deadline deadline) const {
  if (!wait_until_at_least(header_->offers, tasks_, deadline)) return std::nullopt;
  std::vector<Bytes> all;
  for (std::uint32_t task = 0; task < tasks_; ++task) {
    std::uint32_t size = 0;
    std::memcpy(&size, offer_slot(task), sizeof size);
    const std::byte* const data = offer_slot(task) + sizeof size;
    all.emplace_back(data, data + size);
  }
  return all;
}

bool NoticeBoard::answer(std::span<const std::byte> data) {
  const bool fits = data.size() <= std::size_t{tasks_} * kAnswerBytesPerTask;
  header_->answer_bytes = fits ? static_cast<std::uint32_t>(data.size()) : 0;
  if (fits) std::copy(data.begin(), data.end(), answer_area());
  header_->answered.store(1, std::memory_order_release);
  wake_all(header_->answered);
  return fits;
}

std::optional<Bytes> NoticeBoard::wait_answer(Deadline deadline) const {
  if (!wait_until_at_least(header_->answered, 1, deadline)) return std::nullopt;
  const std::byte* const data = answer_area();
  return Bytes(data, data + header_->answer_bytes);
}

static_assert(std::is_trivially_copyable_v<TaskStart> && std::is_trivially_copyable_v<TaskEnd>);
static_assert(std::has_unique_object_representations_v<TaskEnd>);  // without padding, which would be sent as it is
static_assert(sizeof(TaskStart) != sizeof(TaskEnd));

EndChannel::EndChannel(std::uint32_t tasks) : owner_(::getpid()), left_(tasks) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0)
    throw base::system_error("making a channel for the ends of tasks (socketpair)", errno);
  own_.reset(ends[0]);
  witness_.reset(ends[1]);
}

EndChannel::~EndChannel() {
  if (::getpid() == owner_) return;
  own_.release();
  witness_.release();
}

int EndChannel::witness_end() const noexcept { return ::getppid() == owner_ ? witness_.get() : -1; }

void EndChannel::tell(const TaskStart& start) const noexcept {
  if (::getppid() == owner_) ::send(own_.get(), &start, sizeof start, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void EndChannel::tell(TaskEnd end) noexcept {
  if (!own_ || ::getpid() != owner_) return;
  witness_.reset();  // so that a witness that has ended is noticed
  if (left_ > 0) --left_;
  end.awaited = end.status != 0 || left_ == 0 ? 1 : 0;
  if (::send(own_.get(), &end, sizeof end, MSG_DONTWAIT | MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof end)) {
    own_.reset();
    return;
  }
  if (!waits_ || end.awaited == 0) return;
  try {
    waits_ = base::wait_for(own_.get(), POLLIN, Deadline::after(kPatience));
  } catch (...) {
    waits_ = false;
  }
  char confirmation = 0;
  if (waits_ && ::recv(own_.get(), &confirmation, sizeof confirmation, MSG_DONTWAIT) <= 0) own_.reset();
}

TaskNews take_news(int fd, bool& ended) {
  std::array<std::byte, sizeof(TaskEnd)> bytes{};
  const ssize_t count = ::recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (count == static_cast<ssize_t>(sizeof(TaskEnd))) return std::bit_cast<TaskEnd>(bytes);
  if (count == static_cast<ssize_t>(sizeof(TaskStart))) {
    TaskStart start;
    std::memcpy(&start, bytes.data(), sizeof start);
    return start;
  }
  ended = count >= 0 || (errno != EAGAIN && errno != EINTR);
  return {};
}

void confirm_end(int fd) noexcept {
  const char confirmation = 1;
  [[maybe_unused]] const ssize_t count = ::send(fd, &confirmation, sizeof confirmation, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace ddp::srun_plugin
