// Whether the ranks of a node have a processor each: then a rank that waits may spin.
#pragma once

#include <filesystem>

namespace ddp::collectives {

/// Processors that this process may use.
struct ProcessorShare {
  int in_mask = 1;     ///< of the affinity mask
  double quota = 0;    ///< processors' time that its cgroups allow; 0: no limit
  int on_machine = 1;  ///< online

  /// Reads it anew. @param root of the file system, for tests.
  static ProcessorShare read(const std::filesystem::path& root = "/");

  /// Whether @p ranks on this node, launched alike, have one each. A mask smaller than the machine that has too few for
  /// all is taken for this rank's own part: launchers bind ranks to different cores.
  bool enough_for(int ranks) const noexcept;
};

}  // namespace ddp::collectives
