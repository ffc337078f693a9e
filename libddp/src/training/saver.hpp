// Who saves to a folder of checkpoints: what jobs read of each other in its file "owner".
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/env_table.hpp"

namespace ddp::training {

struct Saver {
  std::string claim;  ///< kClaimDigits hexadecimal digits, random; the save ids of this saver begin with them
  bool saves = true;  ///< false: it has ended in order
  std::string job{};  ///< "Slurm job 17"; empty: unknown
  std::string run{};  ///< that restarts keep: "17.0", torchrun's id; empty: unknown
  int requeues = 0;   ///< of the job
  int restarts = 0;   ///< of the run
  std::string host;
  std::string boot;                    ///< of its kernel; empty: unknown
  std::int64_t process = 0;            ///< its number on the host
  std::uint64_t space = 0;             ///< PID namespace of that number; 0: unknown
  bool locked = false;                 ///< it holds a lock of the file
  std::vector<std::string> formers{};  ///< claims of those before it, whose remains it may remove; the latest first

  /// For this process.
  static Saver process_of(const base::Environment& environment);
  /// "Slurm job 17, requeue 1, process 4711 on host n3".
  std::string name() const;
  /// Whether it is a later attempt of the job that @p other is of.
  bool succeeds(const Saver& other) const;

  friend bool operator==(const Saver&, const Saver&) = default;
};

inline constexpr std::size_t kClaimDigits = 8;
inline constexpr std::size_t kMostFormers = 64;
inline constexpr std::size_t kMostSaverBytes = 4096;

/// At most kMostSaverBytes of text: names are cut, control characters replaced.
std::string format_saver(const Saver& saver);
/// Throws Error(protocol), with what @p path names, for anything that format_saver() does not give.
Saver parse_saver(std::string_view text, const std::string& path);

}  // namespace ddp::training
