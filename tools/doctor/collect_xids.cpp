// What NVIDIA's driver has told the kernel's log of GPUs that failed (Xids). Only root may read it, or all users where
// kernel.dmesg_restrict is 0.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "base/unique_fd.hpp"
#include "doctor/collect.hpp"
#include "topology/inventory/sysfs.hpp"

namespace ddp::tools::doctor {
namespace {

namespace fs = std::filesystem;

// Records are at most 8 KiB (Linux, Documentation/ABI/testing/dev-kmsg); a log of 16 MiB has no more.
constexpr std::size_t kRecordBytes = 8192;
constexpr int kMostRecords = 200'000;
constexpr std::size_t kMostXids = 100;
// Of Xids that are not a program's own fault.
constexpr std::array kFailures{48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140, 143};

template <class Number>
std::optional<Number> number_at(std::string_view& text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

bool skip(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

/// "4,1234,5678901,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, ...": level and facility, number, microseconds since the
/// machine's start.
std::optional<XidFacts> parse_xid(std::string_view record, double uptime_s) {
  XidFacts xid;
  if (!number_at<int>(record) || !skip(record, ",") || !number_at<std::uint64_t>(record) || !skip(record, ","))
    return std::nullopt;
  const auto at_us = number_at<std::uint64_t>(record);
  const auto text = record.find(';');
  if (!at_us || text == std::string_view::npos) return std::nullopt;
  record.remove_prefix(text + 1);
  if (!skip(record, "NVRM: Xid (PCI:")) return std::nullopt;
  const auto end = record.find("): ");
  if (end == std::string_view::npos || end > 20) return std::nullopt;
  xid.gpu = record.substr(0, end);
  record.remove_prefix(end + 3);
  const auto number = number_at<int>(record);
  if (!number || std::find(kFailures.begin(), kFailures.end(), *number) == kFailures.end()) return std::nullopt;
  xid.number = *number;
  xid.age_s = std::max<std::int64_t>(static_cast<std::int64_t>(uptime_s - static_cast<double>(*at_us) * 1e-6), 0);
  return xid;
}

void add(std::vector<XidFacts>& xids, const XidFacts& found) {
  const auto same = [&](const XidFacts& each) { return each.gpu == found.gpu && each.number == found.number; };
  const auto known = std::find_if(xids.begin(), xids.end(), same);
  if (known != xids.end()) {
    ++known->times;
    known->age_s = found.age_s;  // records come in the order of time
  } else if (xids.size() < kMostXids) {
    xids.push_back(found);
  }
}

}  // namespace

void collect_xids(NodeFacts& node, const fs::path& root) {
  const base::UniqueFd log{::open((root / "dev/kmsg").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)};
  const std::string uptime_text = topology::read_attribute(root / "proc/uptime").value_or("");
  char* end = nullptr;
  const double uptime_s = std::strtod(uptime_text.c_str(), &end);
  if (!log || end == uptime_text.c_str()) return;
  std::string text;  // one record a read, but a file gives several at once
  for (int i = 0; i < kMostRecords; ++i) {
    std::array<char, kRecordBytes> buffer{};
    const ssize_t size = ::read(log.get(), buffer.data(), buffer.size());
    if (size < 0 && (errno == EINTR || errno == EPIPE)) continue;  // EPIPE: records have been overwritten meanwhile
    if (size <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(size));
    for (std::size_t line = text.find('\n'); line != std::string::npos; line = text.find('\n')) {
      if (const auto xid = parse_xid(std::string_view(text).substr(0, line), uptime_s)) add(node.xids, *xid);
      text.erase(0, line + 1);
    }
  }
}

}  // namespace ddp::tools::doctor
