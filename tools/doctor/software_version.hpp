// Versions of software, to look up which are known to fail.
#pragma once

#include <compare>
#include <cstdio>
#include <string>

namespace ddp::tools::doctor {

struct Version {
  int major = 0;
  int minor = 0;
  int patch = 0;
  friend auto operator<=>(const Version&, const Version&) = default;

  /// "5.0.8", "5.0.8rc1", "2.28.9+cuda13.0"; what is missing is 0.
  static Version of(const std::string& text) {
    Version version;
    std::sscanf(text.c_str(), "%d.%d.%d", &version.major, &version.minor, &version.patch);  // NOLINT(cert-err34-c)
    return version;
  }
};

/// From the first version on, below the second.
struct VersionRange {
  Version from;
  Version below;
  bool contains(const Version& version) const { return version >= from && version < below; }
};

}  // namespace ddp::tools::doctor
