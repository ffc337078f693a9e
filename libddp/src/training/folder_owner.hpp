// One job at a time saves to a folder of checkpoints: its file "owner" says which, and whether that one still lives.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include <ddp/deadline.hpp>

#include "training/saver.hpp"

namespace ddp::training {

/// How long owners and those who come after them wait.
struct OwnerPatience {
  std::chrono::milliseconds beat{10'000};     ///< between two signs of life of an owner
  std::chrono::milliseconds silence{60'000};  ///< of an owner on another host: it is gone
  std::chrono::milliseconds old{600'000};     ///< so long ago was the last sign, by the file server's clock: no waiting
  std::chrono::milliseconds settle{1'000};    ///< two that take the folder at once without a lock see each other
};

/// Holds the file's lock (flock(2)) where the file system has locks, and gives signs of life by its time, since locks
/// may hold on one host only, or outlive a host that is cut off. An owner that another one has taken for gone learns it
/// from check(). Nothing is deleted but by the user. Thread-safe.
class FolderOwner {
 public:
  /// The file's name in the folder.
  static constexpr std::string_view kFileName = "owner";

  /// This process as the owner of @p folder, which exists: the same object while anybody has it. Waits for signs of
  /// life of the one before. Throws Error(conflict) with the names of both if that lives, Error(system),
  /// Error(timeout).
  static std::shared_ptr<FolderOwner> of(const std::string& folder, Deadline deadline);

  /// The same, for @p self.
  FolderOwner(const std::string& folder, Saver self, Deadline deadline, OwnerPatience patience = {});
  FolderOwner& operator=(FolderOwner&&) = delete;
  /// Says in the file that it has ended, unless the file is another's.
  ~FolderOwner();

  /// What the destructor does.
  void end() noexcept;
  /// Throws Error(conflict), with the names of both, if the folder is another's by now. Takes it again if the file is
  /// gone.
  void check(Deadline deadline);
  /// A new id, kIdDigits long.
  std::string new_save_id() const;
  /// Whether files of the save of this id are this owner's, or were of one that it has taken the folder over from.
  bool inherits(std::string_view save_id) const;

 private:
  struct Beats;

  void claim(Deadline deadline);

  const std::string folder_;
  const std::string path_;
  const OwnerPatience patience_;
  const pid_t pid_;  ///< children of fork(2) are no owners
  Saver self_;
  std::shared_ptr<Beats> beats_;  ///< of the thread, which a file system may hold up for ever
};

}  // namespace ddp::training
