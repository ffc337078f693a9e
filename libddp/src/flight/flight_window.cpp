#include "flight/flight_window.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/unique_fd.hpp"
#include "flight/flight_memory.hpp"

namespace ddp::flight {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kLargestMemory = std::uint64_t{64} << 20U;

/// As the process sees itself, in its own namespace.
int own_pid(const std::string& proc, pid_t pid) {
  std::ifstream status(fmt::format("{}/{}/status", proc, pid));
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("NSpid:")) continue;
    const std::size_t last = line.find_last_of("\t ");
    return std::atoi(line.c_str() + last + 1);
  }
  return pid;
}

}  // namespace

std::optional<FlightWindow> FlightWindow::open_file(std::string path) {
  const base::UniqueFd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (!file) return std::nullopt;
  // Only what cannot be cut short while it is looked at, which would end in SIGBUS.
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  struct stat facts {};
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(file.get(), &facts) != 0) return std::nullopt;
  if (facts.st_size <= 0 || static_cast<std::uint64_t>(facts.st_size) > kLargestMemory) return std::nullopt;
  const auto size = static_cast<std::size_t>(facts.st_size);
  const void* const pages = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  if (pages == MAP_FAILED) return std::nullopt;
  return FlightWindow{std::move(path), {static_cast<const std::byte*>(pages), size}, facts.st_dev, facts.st_ino};
}

std::optional<FlightWindow> FlightWindow::open(const std::string& proc, pid_t pid) {
  const fs::path folder = fmt::format("{}/{}/fd", proc, pid);
  const std::string wanted = fmt::format("/memfd:{}", kMemoryName);
  std::optional<FlightWindow> best;
  std::uint64_t most = 0;
  std::error_code status;
  for (fs::directory_iterator entry{folder, status}, end; !status && entry != end; entry.increment(status)) {
    std::error_code ignored;
    if (!fs::read_symlink(entry->path(), ignored).native().starts_with(wanted)) continue;
    auto window = open_file(entry->path());
    if (!window) continue;
    const auto view = read_flight_memory(window->pages_);
    if (!view || view->pid != own_pid(proc, pid)) continue;  // inherited by a child
    if (best && view->recorded <= most) continue;
    most = view->recorded;
    best = std::move(window);
  }
  return best;
}

FlightWindow::FlightWindow(FlightWindow&& other) noexcept
    : path_(std::move(other.path_)),
      pages_(std::exchange(other.pages_, {})),
      device_(other.device_),
      inode_(other.inode_) {}

FlightWindow& FlightWindow::operator=(FlightWindow&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(pages_, other.pages_);
  std::swap(device_, other.device_);
  std::swap(inode_, other.inode_);
  return *this;
}

FlightWindow::~FlightWindow() {
  if (!pages_.empty()) ::munmap(const_cast<std::byte*>(pages_.data()), pages_.size());
}

std::optional<FlightView> FlightWindow::view() const {
  struct stat facts {};
  if (::stat(path_.c_str(), &facts) != 0 || facts.st_dev != device_ || facts.st_ino != inode_) return std::nullopt;
  return read_flight_memory(pages_);
}

std::optional<FlightView> view_flight(const std::string& proc, pid_t pid) {
  const auto window = FlightWindow::open(proc, pid);
  return window ? window->view() : std::nullopt;
}

}  // namespace ddp::flight
