// Reads and writes files whose place others may write to: whole ones, new ones, and the place that they come to.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"

namespace ddp::base {

// Where a file that is to be written lies. Whoever may write to a folder above it can put a link there, so links are
// followed as the kernel's fs.protected_symlinks does in /tmp, in all folders.

/// A name in an open folder, whatever their path means by now.
struct FilePlace {
  UniqueFd folder{};
  std::string name{};
  std::optional<struct stat> there{};  ///< of what has the name; nothing: nothing has
  bool is_open_file = false;           ///< links lead to a name of names_open_file(), which is to be opened by its path
};

enum class LastLink { followed, refused };

/// Follows links that belong to this user, to root, or to the owner of the folder in which they are. Throws
/// Error(invalid_argument) for another's, Error(system) for all but a last name that is not there. @p attempted: as in
/// Error. @param last whether the last name may be a link.
FilePlace find_place(const std::string& attempted, const std::string& path, LastLink last = LastLink::followed);

/// Opens @p path for lines of a log, mode 0666 less the umask: at its end, non-blocking. Throws as find_place() does,
/// also for a pipe of another user.
UniqueFd open_to_append(const std::string& attempted, const std::string& path);

/// Whether @p path is a standard stream or another open file, by its name in /dev or /proc.
bool names_open_file(const std::string& path);

/// Throws Error(invalid_argument) if what has the name, a pipe or a socket, is neither this user's, nor root's, nor of
/// the owner of its folder. @param facts of it
void check_special_file(const std::string& attempted, const FilePlace& place, const struct stat& facts);

// Files that are there whole or not at all: an incomplete write is an error, whatever the file system, and others read
// the old one or the new one.

/// 0, or errno of the failed write(2).
int write_all(int fd, std::string_view text);

struct WholeFile {
  std::string path;
  std::string attempted{};  ///< as in Error; empty: "writing '<path>'"
  /// For this user only, as what has an environment's values; else 0666 less the umask, or the mode of this user's file
  /// that is replaced.
  bool is_private = false;
  LastLink last = LastLink::followed;
  std::chrono::milliseconds limit{5'000};  ///< of what nothing reads
};

/// Replaces the file atomically: writes a temporary one beside it and renames that. A symbolic link stays, and its
/// target is replaced, if find_place() follows it. What is no regular file (device, pipe), and a standard stream by its
/// name in /dev or /proc, is written to directly; a program that writes to pipes ignores SIGPIPE. Throws Error(system),
/// and Error(invalid_argument) as find_place() does; the old file is unchanged then.
void write_file(const WholeFile& file, std::string_view text);
inline void write_file(const std::string& path, std::string_view text) { write_file(WholeFile{.path = path}, text); }

/// Checks that write_file() is likely to succeed, and changes nothing. Throws what that throws.
void check_file(const WholeFile& file);

/// All that is in the file at @p path, which may be one of /proc or a FIFO. Nothing where it cannot be opened or read
/// (some of /proc open for who may not read them): errno says why.
std::optional<std::string> read_file(const std::string& path);

// A file that takes its name, and the place of the one that has it, when all of it is on the disk.

/// Lies beside its later place under a temporary name, and is removed unless committed. All throw Error(system).
class NewFile {
 public:
  /// A link that has the name is replaced. @param mode less the umask.
  NewFile(std::string path, mode_t mode);
  /// At @p place, which outlives it. @param attempted as in Error.
  NewFile(std::string attempted, const FilePlace& place, mode_t mode);
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile();

  void set_mode(mode_t mode);
  /// Appends.
  void write(std::string_view bytes);
  /// Once all is written: to the disk, then to its place.
  void commit();

 private:
  void open(mode_t mode);

  const std::string attempted_;
  const int folder_;
  const std::string path_;
  std::string name_;  ///< until the commit
  UniqueFd fd_;
};

// Removes temporary folders of ddprun left behind when Slurm killed all of a step's processes: the user's next ddprun
// or ddp-step on the node does so. launcher/pmix_server/scratch_directory.hpp makes them.

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
