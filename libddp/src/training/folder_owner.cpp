#include "training/folder_owner.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "base/process.hpp"
#include "base/unique_fd.hpp"

namespace ddp::training {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kEndPatience{2'000};  // for an unresponsive file system, when an owner ends

Error owner_error(ErrorCode code, const std::string& folder, std::string cause, std::string hint) {
  return Error{{.code = code,
                .attempted = fmt::format("saving checkpoints in '{}'", folder),
                .cause = std::move(cause),
                .hint = std::move(hint)}};
}

Error refusal(const std::string& folder, const Saver& self, const Saver& owner) {
  return owner_error(ErrorCode::conflict, folder,
                     fmt::format("{} saves there; {} may not at the same time", owner.name(), self.name()),
                     "give each job a folder of its own, or end the other job first");
}

/// A reading of the owner's file: the owner has shown life between two that differ.
struct Reading {
  bool there = false;
  std::string text{};
  timespec time{};
  std::optional<Saver> saver{};  ///< empty if the file is empty or damaged

  bool same_as(const Reading& other) const {
    return there == other.there && text == other.text && time.tv_sec == other.time.tv_sec &&
           time.tv_nsec == other.time.tv_nsec;
  }
};

/// Opens the file by name each time, which makes network file systems ask their server.
Reading read_owner(const std::string& path) {
  const base::UniqueFd fd{::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)};
  if (!fd && errno == ENOENT) return {};
  std::array<char, kMostSaverBytes + 1> bytes{};
  struct stat facts {};
  ssize_t size = -1;
  if (!fd || ::fstat(fd.get(), &facts) != 0 || (size = ::read(fd.get(), bytes.data(), bytes.size())) < 0) {
    throw base::system_error(fmt::format("reading '{}'", path), errno);
  }
  Reading reading{.there = true, .text = {bytes.data(), static_cast<std::size_t>(size)}, .time = facts.st_mtim};
  try {
    if (size > 0) reading.saver = parse_saver(reading.text, path);
  } catch (const Error& error) {  // half written, or not libddp's
    base::log(base::LogLevel::debug, "{}", error.what());
  }
  return reading;
}

enum class Lock { held, refused, unknown };

Lock lock_file(int fd) {
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return Lock::held;
  return errno == EWOULDBLOCK ? Lock::refused : Lock::unknown;
}

/// Time since @p then on the clock of the file system.
milliseconds age_of(const std::string& folder, const timespec& then) {
  const std::string name = fmt::format("{}/{}.{}.tmp", folder, FolderOwner::kFileName, std::random_device{}());
  const base::UniqueFd fd{::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600)};
  if (!fd) return {};
  struct stat now {};
  const bool known = ::fstat(fd.get(), &now) == 0;
  ::unlink(name.c_str());
  return known ? milliseconds{(now.st_mtim.tv_sec - then.tv_sec) * 1000} : milliseconds{};
}

void put(int fd, const std::string& path, const Saver& saver) {
  const std::string text = format_saver(saver);
  // Written in place, not as a new file: the lock and other hosts' handles belong to this one.
  const bool written = ::lseek(fd, 0, SEEK_SET) == 0 && base::write_all(fd, text) == 0 &&
                       ::ftruncate(fd, static_cast<off_t>(text.size())) == 0 && (::fsync(fd) == 0 || errno == EINVAL);
  if (!written) throw base::system_error(fmt::format("writing '{}'", path), errno);
}

enum class Judgement { gone, lives, watch };

/// Judges the owner in @p reading by what this host knows at once.
Judgement judge(const Reading& reading, const Saver& self, Lock lock) {
  if (!reading.saver) return reading.text.empty() && lock != Lock::refused ? Judgement::gone : Judgement::watch;
  const Saver& owner = *reading.saver;
  if (self.succeeds(owner)) return Judgement::gone;
  if (!owner.saves) return lock == Lock::refused ? Judgement::watch : Judgement::gone;
  if (owner.boot.empty() || owner.boot != self.boot) return Judgement::watch;
  if (owner.locked && lock != Lock::unknown) return lock == Lock::held ? Judgement::gone : Judgement::lives;
  const base::ProcessNumber process{.pid = static_cast<pid_t>(owner.process), .space = owner.space};
  return base::life_of(process) == base::ProcessLife::gone ? Judgement::gone : Judgement::watch;
}

}  // namespace

/// State of the thread that shows an owner's life.
struct FolderOwner::Beats {
  base::UnsharedFd file;  ///< a child that kept it would keep the lock
  std::string path;
  Saver self;
  milliseconds beat;
  std::mutex mutex{};
  std::condition_variable changed{};
  bool ends = false;
  bool ended = false;

  bool is_own() const {
    try {
      const Reading reading = read_owner(path);
      return reading.saver && reading.saver->claim == self.claim;
    } catch (const Error&) {  // from the file system
      return false;
    }
  }
  void run() {
    std::unique_lock lock(mutex);
    while (!changed.wait_for(lock, beat, [this] { return ends; })) {
      lock.unlock();
      if (is_own()) ::futimens(file.get(), nullptr);
      lock.lock();
    }
    lock.unlock();
    try {
      self.saves = false;
      if (is_own()) put(file.get(), path, self);
    } catch (const Error& error) {
      base::log(base::LogLevel::info, "{}", error.what());
    }
    file.reset();
    lock.lock();
    ended = true;
    changed.notify_all();
  }
  void end() noexcept {
    std::unique_lock lock(mutex);
    ends = true;
    changed.notify_all();
    changed.wait_for(lock, kEndPatience, [this] { return ended; });
  }
};

namespace {

/// Waits for a sign of life from an owner.
class Watch {
 public:
  Watch(const std::string& folder, const OwnerPatience& patience) : folder_(folder), patience_(patience) {}

  /// Whether the owner is gone; empty: look again.
  std::optional<bool> look(const Reading& now, const Saver& self) {
    if (!first_) {
      first_ = now;
      silent_since_ = Deadline::Clock::now();
      if (now.there && age_of(folder_, now.time) > patience_.old) return true;
      return std::nullopt;
    }
    if (!now.same_as(*first_)) {
      const bool other = !now.saver || !first_->saver || now.saver->claim != first_->saver->claim;
      if (now.saver && now.saver->saves && !other) throw refusal(folder_, self, *now.saver);
      first_.reset();  // judges the next one from the start
      return std::nullopt;
    }
    const auto silent = Deadline::Clock::now() - silent_since_;
    if (silent > patience_.beat / 2 && !std::exchange(told_, true)) {
      base::log(base::LogLevel::warning,
                "saving checkpoints in '{}': {} may still do so; waiting up to {} s for a sign of its life", folder_,
                now.saver ? now.saver->name() : "another job", patience_.silence.count() / 1000);
    }
    return silent < patience_.silence ? std::nullopt : std::optional{true};
  }

 private:
  const std::string& folder_;
  const OwnerPatience& patience_;
  std::optional<Reading> first_;
  Deadline::Clock::time_point silent_since_{};
  bool told_ = false;
};

/// The owners of this process, by folder.
class Owners {
 public:
  Owners() = default;
  Owners& operator=(Owners&&) = delete;
  /// Ends owners that a program has not destroyed when it ends, as in Python.
  ~Owners() {
    for (const auto& [place, owner] : owners_) {
      if (const auto living = owner.lock()) living->end();
    }
  }

  std::shared_ptr<FolderOwner> of(const std::string& folder, Deadline deadline) {
    struct stat facts {};
    if (::stat(folder.c_str(), &facts) != 0) throw base::system_error(fmt::format("looking at '{}'", folder), errno);
    const std::lock_guard lock(mutex_);
    if (self_.process != ::getpid()) {  // also in a child of fork(2)
      self_ = Saver::process_of(base::Environment::process());
      owners_.clear();
    }
    std::weak_ptr<FolderOwner>& place = owners_[{facts.st_dev, facts.st_ino}];
    if (auto owner = place.lock()) return owner;
    auto owner = std::make_shared<FolderOwner>(folder, self_, deadline);
    place = owner;
    return owner;
  }

 private:
  std::mutex mutex_;
  Saver self_;
  std::map<std::pair<dev_t, ino_t>, std::weak_ptr<FolderOwner>> owners_;
};

}  // namespace

FolderOwner::FolderOwner(const std::string& folder, Saver self, Deadline deadline, OwnerPatience patience)
    : folder_(folder),
      path_(fmt::format("{}/{}", folder, kFileName)),
      patience_(patience),
      pid_(::getpid()),
      self_(std::move(self)) {
  claim(deadline);
}

FolderOwner::~FolderOwner() { end(); }

std::shared_ptr<FolderOwner> FolderOwner::of(const std::string& folder, Deadline deadline) {
  static Owners owners;
  return owners.of(folder, deadline);
}

void FolderOwner::end() noexcept {
  if (beats_ && pid_ == ::getpid()) beats_->end();
}

void FolderOwner::claim(Deadline deadline) {
  Watch watch{folder_, patience_};
  const Saver before = self_;
  std::optional<Saver> living;
  for (;;) {
    base::UniqueFd file{::open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666)};
    if (!file) {
      throw base::system_error(fmt::format("opening '{}'", path_), errno,
                               errno == ELOOP ? "it is a link: remove it" : "it says which job saves there");
    }
    const Lock lock = lock_file(file.get());
    const Reading reading = read_owner(path_);
    const Judgement judgement = judge(reading, self_, lock);
    if (judgement == Judgement::lives) {
      if (std::exchange(living, reading.saver) == reading.saver) throw refusal(folder_, self_, *reading.saver);
      file.reset();
      std::this_thread::sleep_for(patience_.beat / 50);  // the lock's holder may be about to write its own name
      continue;
    }
    if (judgement == Judgement::watch && !watch.look(reading, self_).value_or(false)) {
      file.reset();  // and with it the lock
      if (deadline.expired()) {
        throw owner_error(ErrorCode::timeout, folder_, "no time was left to see whether another job saves there",
                          "raise the timeout of checkpoints");
      }
      std::this_thread::sleep_for(std::min(deadline.remaining(), patience_.beat / 10));
      continue;
    }
    self_.locked = lock == Lock::held;
    self_.formers = before.formers;
    if (reading.saver) {
      if (reading.saver->claim != self_.claim) self_.formers.push_back(reading.saver->claim);
      self_.formers.insert(self_.formers.end(), reading.saver->formers.begin(), reading.saver->formers.end());
      if (reading.saver->saves)
        base::log(base::LogLevel::info, "'{}' is taken over from {}", folder_, reading.saver->name());
    }
    self_.formers.resize(std::min(self_.formers.size(), kMostFormers));
    put(file.get(), path_, self_);
    const bool first = reading.text.empty() && self_.locked;
    const bool same_host = reading.saver && reading.saver->boot == self_.boot && self_.locked;
    if (!first && !same_host) std::this_thread::sleep_for(patience_.settle);
    const Reading own = read_owner(path_);
    if (!own.saver) continue;  // another process has removed it, or is writing to it
    if (own.saver->claim != self_.claim) throw refusal(folder_, self_, *own.saver);
    end();
    beats_ = std::shared_ptr<Beats>(
        new Beats{.file = base::UnsharedFd{std::move(file)}, .path = path_, .self = self_, .beat = patience_.beat});
    base::start_thread([beats = beats_] { beats->run(); }).detach();
    return;
  }
}

void FolderOwner::check(Deadline deadline) {
  const Reading reading = read_owner(path_);
  if (reading.saver && reading.saver->claim == self_.claim) return;
  if (!reading.there) return claim(deadline);
  throw owner_error(ErrorCode::conflict, folder_,
                    fmt::format("{} has taken the folder over from {}",
                                reading.saver ? reading.saver->name() : "another job", self_.name()),
                    fmt::format("if both are to continue, give each a folder of its own; a job counts as gone once it "
                                "is requeued, or shows no "
                                "sign of life for {} s",
                                patience_.silence.count() / 1000));
}

std::string FolderOwner::new_save_id() const { return fmt::format("{}{:08x}", self_.claim, std::random_device{}()); }

bool FolderOwner::inherits(std::string_view save_id) const {
  const std::string_view claim = save_id.substr(0, kClaimDigits);
  return claim == self_.claim || std::find(self_.formers.begin(), self_.formers.end(), claim) != self_.formers.end();
}

}  // namespace ddp::training
