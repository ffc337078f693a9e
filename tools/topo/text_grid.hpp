// Columns of text, each as wide as its widest cell.
#pragma once

#include <string>
#include <vector>

namespace ddp::tools {

class TextGrid {
 public:
  void add_row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  bool empty() const { return rows_.empty(); }

  /// Left-aligned, two blanks between columns, no blanks at the end of a line. Cells become printable ASCII.
  /// @param indent blanks before each line.
  std::string to_string(std::size_t indent = 0) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace ddp::tools
