// Another process's flight recorder, found below /proc and read while the process runs or hangs, without its help.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "flight/flight_view.hpp"

namespace ddp::flight {

/// Keeps the memory of one recorder mapped, since finding it takes ten times as long as reading it. Not thread-safe.
class FlightWindow {
 public:
  /// Of process @p pid, the one with the most records if there are several; nothing where it has none or the kernel
  /// does not let this user read it. @param proc "/proc".
  static std::optional<FlightWindow> open(const std::string& proc, pid_t pid);
  FlightWindow(FlightWindow&& other) noexcept;
  FlightWindow& operator=(FlightWindow&& other) noexcept;
  ~FlightWindow();

  /// Nothing once the process has ended or runs another program.
  std::optional<FlightView> view() const;

 private:
  /// @param path below /proc. Nothing where that is no memory of a flight recorder.
  static std::optional<FlightWindow> open_file(std::string path);
  FlightWindow(std::string path, std::span<const std::byte> pages, dev_t device, ino_t inode)
      : path_(std::move(path)), pages_(pages), device_(device), inode_(inode) {}

  std::string path_;
  std::span<const std::byte> pages_;
  dev_t device_;
  ino_t inode_;
};

/// What a window on @p pid shows, for those who look once.
std::optional<FlightView> view_flight(const std::string& proc, pid_t pid);

}  // namespace ddp::flight
