// What `ddp-info topo` prints as text: the table of ranks, distances between devices, and one rank's placement
// explained.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "topo/report_model.hpp"

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

// The report for people: one block for each kind of node, with a table of its ranks.

/// Plain ASCII, lines of any length, a line break at the end.
std::string format_table(const Report& report);

/// Distances of the GPUs to each other and to the usable NICs, in the words of `nvidia-smi topo -m`; empty without
/// GPUs. Ends with a legend of the words that occur.
std::string format_matrices(const Topology& topology);

/// The meanings of those of @p words that are such words, one a line; empty where there are none.
std::string format_path_legend(const std::set<std::string>& words);

// Why one rank gets what it gets.

/// Every decision with the alternatives that it beat, every setting with its reason, the interface and, in a job, the
/// binding. Plain ASCII. Throws Error(invalid_argument) if there is no such rank.
std::string format_explanation(const Report& report, int rank);

}  // namespace ddp::tools
