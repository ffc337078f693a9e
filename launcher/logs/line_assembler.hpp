// Assembles whole lines from the bytes of a worker, however they were cut.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::launcher {

/// A line without its end, or a part of a line that is longer than LineAssembler::kMaxLineBytes.
struct LinePiece {
  std::string_view text;
  bool begins = true;        ///< the line starts here
  bool ends = true;          ///< the line ends here
  bool overwritten = false;  ///< "\r" ended it: on a terminal, the next line takes its place
};

/// Lines end with "\n", "\r\n" or "\r", as in Python's text files: torchrun reads workers' output that way, and a
/// progress bar then gives one line per update. A "\r" at the start of a line gives no empty line.
class LineAssembler {
 public:
  /// A longer line is handed out in pieces of this size, cut between UTF-8 characters, so that memory stays bounded.
  static constexpr std::size_t kMaxLineBytes = 65'536;

  /// The lines, and pieces of too long lines, that @p bytes complete. Valid until the next call and while @p bytes are.
  std::span<const LinePiece> take(std::string_view bytes);

  /// What a progress bar shows now: the unfinished line, where it follows a "\r" or ends in one. Valid as take()'s.
  std::optional<std::string_view> bar() const;

  /// The unfinished line, as ended; nothing if there is none. Valid until the next call.
  std::span<const LinePiece> take_rest();

 private:
  void end_line(std::string_view text, bool overwritten);
  void hand_out(std::string_view text, bool ends, bool overwritten = false);

  std::vector<LinePiece> pieces_;
  std::string unfinished_;     ///< beginning of the current line, or of its current piece
  std::string joined_;         ///< what pieces_ refers to when the first line came in several parts
  bool inside_ = false;        ///< pieces of the current line have been handed out
  bool undecided_ = false;     ///< the last byte was "\r", which a "\n" may follow
  bool after_return_ = false;  ///< the unfinished line follows one that was overwritten
};

}  // namespace ddp::launcher
