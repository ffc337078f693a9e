#include "collectives/shm/shared_segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "base/errors.hpp"
#include "base/process.hpp"
#include "collectives/shm/peer_memory.hpp"

namespace ddp::collectives::shm {
namespace {

constexpr auto kMaking = "making shared memory for a group";
constexpr std::size_t kUsedAtOnce = std::size_t{64} << 10U;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

std::string remedy(int number) {
  switch (number) {
    case EMFILE: return "raise the limit of open files of this process (ulimit -n)";
    case ENFILE: return "the host has too many open files (sysctl fs.file-max)";
    case ENOMEM:
    case ENOSPC: return "raise the memory limit of the job or container, or lower DDP_SHM_MIB";
    case EFBIG: return "raise the limit of file sizes (ulimit -f), or lower DDP_SHM_MIB";
    case ENOSYS:
    case EPERM: return "the kernel or a seccomp filter forbids memfd_create";
    default: return {};
  }
}

[[noreturn]] void fail(std::string_view call, int number) {
  const Error error = base::system_error(kMaking, number);
  ErrorDetail detail = error.detail();
  detail.code = ErrorCode::unavailable;
  detail.cause = fmt::format("{}: {}", call, detail.cause);
  detail.hint = remedy(number);
  throw Error{std::move(detail)};
}

base::UniqueFd make_file() {
  base::UniqueFd file(::memfd_create("ddp-group", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) fail("memfd_create", errno);
  return file;
}

/// Beyond the limit the kernel would not only refuse, but send SIGXFSZ.
void check_file_limit(std::size_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur) {
    fail(fmt::format("{} bytes are more than the limit of file sizes, {}", bytes, limit.rlim_cur), EFBIG);
  }
}

struct flock lock_of(int rank) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

}  // namespace

std::string why_no_segments() {
  try {
    make_file();
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

SharedSegment SharedSegment::create(const SegmentLayout& layout) {
  base::UniqueFd file = make_file();
  check_file_limit(layout.total_bytes());
  if (::ftruncate(file.get(), static_cast<off_t>(layout.total_bytes())) != 0) fail("ftruncate", errno);
  if (::fcntl(file.get(), F_ADD_SEALS, kSeals) != 0) fail("fcntl(F_ADD_SEALS)", errno);
  return {std::move(file), layout};
}

SharedSegment SharedSegment::open(base::UniqueFd file, const SegmentLayout& layout) {
  struct stat status {};
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals || ::fstat(file.get(), &status) != 0 ||
      static_cast<std::size_t>(status.st_size) != layout.total_bytes()) {
    throw Error{{.code = ErrorCode::protocol,
                 .attempted = "opening the shared memory of a group",
                 .cause = "the leader sent a file that is not sealed or of another size"}};
  }
  return {std::move(file), layout};
}

SharedSegment::SharedSegment(base::UniqueFd file, const SegmentLayout& layout)
    : file_(std::move(file)), layout_(layout) {
  void* const base = ::mmap(nullptr, layout.total_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (base == MAP_FAILED) fail("mmap", errno);
  base_ = static_cast<std::byte*>(base);
}

SharedSegment::SharedSegment(SharedSegment&& other) noexcept
    : file_(std::move(other.file_)), layout_(other.layout_), base_(std::exchange(other.base_, nullptr)) {}

SharedSegment::~SharedSegment() {
  if (base_ != nullptr) ::munmap(base_, layout_.total_bytes());
}

void SharedSegment::claim(int rank) {
  // With rank 0's region comes the page for all. Children of fork(2) have neither: it is the ranks' memory alone.
  const std::size_t first = rank == 0 ? 0 : layout_.region(rank);
  const std::size_t end = layout_.region(rank + 1);
  check_file_limit(end);
  int status = 0;
  do {
    status = ::fallocate(file_.get(), 0, static_cast<off_t>(first), static_cast<off_t>(end - first));
  } while (status != 0 && errno == EINTR);
  if (status != 0) fail("fallocate", errno);
  // What every operation uses; the rest is mapped when large ones come, page by page, which takes no longer.
  ::madvise(base_ + first, std::min(end - first, kUsedAtOnce), MADV_POPULATE_WRITE);
  struct flock lock = lock_of(rank);
  if (::fcntl(file_.get(), F_SETLK, &lock) != 0) fail("fcntl(F_SETLK)", errno);
}

bool SharedSegment::abandoned(int rank) const noexcept {
  struct flock lock = lock_of(rank);
  return ::fcntl(file_.get(), F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

const std::uint64_t& process_number() {
  static std::mutex mutex;
  static pid_t owner = 0;
  static std::uint64_t number = 0;
  const std::lock_guard lock(mutex);
  if (owner != ::getpid()) {
    if (::getrandom(&number, sizeof number, 0) != sizeof number) number = static_cast<std::uint64_t>(::getpid());
    owner = ::getpid();
  }
  return number;
}

void LifeWatch::announce() {
  RankControl& own = segment_.view().control(rank_);
  const base::ProcessNumber number = base::own_process();
  own.pid = number.pid;
  own.pid_space = number.space;
  own.process = process_number();
  own.process_at = reinterpret_cast<std::uintptr_t>(&process_number());
  own.state.store(RankState::ready, std::memory_order_release);
}

void LifeWatch::withdraw(RankState state) noexcept {
  RankControl& own = segment_.view().control(rank_);
  if (own.process != process_number() || own.state.load() != RankState::ready) return;
  PeerMemory::withdraw(own);
  own.state.store(state, std::memory_order_seq_cst);
}

bool LifeWatch::has_closed(int rank) const {
  return segment_.view().control(rank).state.load(std::memory_order_acquire) == RankState::closed;
}

bool LifeWatch::has_died(int rank) const {
  if (rank == rank_ || segment_.view().control(rank).process == process_number()) return false;
  // in this order: a rank that closes says so before its lock goes
  const RankControl& control = segment_.view().control(rank);
  if (!segment_.abandoned(rank) || control.state.load() != RankState::ready) return false;
  // Its lock also goes if anything in its process opens and closes the file, as what reads all of /proc/self/fd does.
  // Where the kernel can be asked, it has the last word; a number that another process has got since is left to
  // those who ask the rank itself.
  const base::ProcessNumber number{.pid = static_cast<pid_t>(control.pid), .space = control.pid_space};
  switch (base::life_of(number)) {
    case base::ProcessLife::runs:
    case base::ProcessLife::stopped: return false;
    case base::ProcessLife::unknown:
    case base::ProcessLife::gone: break;
  }
  return true;
}

std::vector<int> LifeWatch::dead() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < segment_.view().layout().ranks(); ++rank) {
    if (has_died(rank)) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<int> LifeWatch::gone(const std::vector<int>& ranks) const {
  std::vector<int> found;
  for (const int rank : ranks) {
    if (has_closed(rank) || has_died(rank)) found.push_back(rank);
  }
  return found;
}

}  // namespace ddp::collectives::shm
