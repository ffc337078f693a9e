// The job's console, which another process writes for the ranks of all nodes, as the log pump of one node sees it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "control/connection.hpp"
#include "control/messages.hpp"
#include "logs/console.hpp"

namespace ddp::launcher {

/// One stream of it. What has been sent is kept until the console has taken it: where the connection is lost, that and
/// all that follows goes to a console of this process instead, so that lines may appear twice, but none is lost.
class RemoteConsole : public Console {
 public:
  using MakeOwn = std::function<std::unique_ptr<Console>()>;

  /// @param link must outlive the object; shared with the other stream
  /// @param window_bytes what may be on its way
  /// @param make_own makes the console of this process
  RemoteConsole(control::Connection& link, int epoch, bool error, std::size_t window_bytes, std::string name,
                MakeOwn make_own);

  void append(const void* owner, std::string_view bytes) override;
  void append_line(const void* owner, std::string_view prefix, const LinePiece& piece) override;

  void flush() override;
  bool ready() const override;
  std::size_t queued() const override;
  std::optional<int> awaited() const override;
  void abandon() override;
  void close() override;
  std::uint64_t taken_bytes() const override;
  std::uint64_t abandoned_bytes() const override;

  /// control::ConsoleTaken
  void taken(std::int64_t messages);
  /// The connection is lost.
  void fall_back();

 private:
  struct Batch {
    control::ConsoleOutput output;
    std::size_t bytes = 0;
  };
  control::ConsolePiece& add(const void* owner, std::size_t bytes, bool mergeable);
  bool dropped(std::size_t bytes);

  control::Connection& link_;
  int epoch_;
  bool error_;
  std::size_t window_bytes_;
  MakeOwn make_own_;
  std::unique_ptr<Console> own_;  ///< after fall_back()
  std::deque<Batch> unsent_, untaken_;
  std::size_t unsent_bytes_ = 0, untaken_bytes_ = 0;
  std::map<const void*, int> writers_;
  std::vector<const void*> owners_;  ///< by writer
  bool gone_ = false;                ///< abandoned or closed
  std::uint64_t taken_bytes_ = 0;
  std::uint64_t abandoned_bytes_ = 0;
};

/// Puts @p piece on @p console. @param owner of the piece's writer
void write_piece(Console& console, const void* owner, const control::ConsolePiece& piece);

}  // namespace ddp::launcher
