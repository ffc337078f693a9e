// Removes temporary folders of ddprun left behind when Slurm killed all of a step's processes: the user's next ddprun
// or ddp-step on the node does so. launcher/pmix_server/scratch_directory.hpp makes them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include <ddp/deadline.hpp>

namespace ddp::base {

// A folder is "ddprun.XXXXXX", of mode 0700. Its file "lock" has the host's name, and is locked (flock(2)) while
// somebody uses the folder.
inline constexpr std::string_view kScratchPrefix = "ddprun.";
inline constexpr std::size_t kScratchLetters = 6;
inline constexpr const char* kScratchLock = "lock";
inline constexpr const char* kMemoryFolder = "/dev/shm";  // some are there, the others in TMPDIR

/// Removes the lock last, for the next one to try where this process is killed. Throws
/// std::filesystem::filesystem_error.
void remove_scratch_contents(const std::filesystem::path& folder);

/// Removes what this user's processes on this host left in @p parent. Begins no folder after @p deadline. Follows no
/// links.
void remove_left_scratch(const std::string& parent, Deadline deadline) noexcept;

}  // namespace ddp::base
