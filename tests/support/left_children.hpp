// For tests of what starts processes: which it has left.
#pragma once

namespace ddp::test {

/// This process's children that have not been reaped, zombies included, as " pid (name)" each. Not llvm-symbolizer,
/// which Clang's thread sanitizer keeps to look up names for its suppressions.
inline std::string left_children() {
  std::ifstream list{"/proc/self/task/" + std::to_string(::getpid()) + "/children"};
  std::string found;
  for (std::string pid; list >> pid;) {
    std::string name;
    std::getline(std::ifstream{"/proc/" + pid + "/comm"}, name);
    if (!name.starts_with("llvm-symbolizer")) found += " " + pid + " (" + name + ")";
  }
  return found;
}

}  // namespace ddp::test
