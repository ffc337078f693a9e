#include "topology/inventory/sysfs.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <system_error>

#include "base/unique_fd.hpp"

namespace ddp::topology {
namespace {

constexpr std::string_view kWhiteSpace = " \t\r\n";

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(kWhiteSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kWhiteSpace) - begin + 1);
}

/// The whole file; empty if it cannot be read. Every rank reads such files before its first fence, and an ifstream
/// costs several times the system calls.
std::string content_of(const std::filesystem::path& file) {
  const base::UniqueFd fd{::open(file.c_str(), O_RDONLY | O_CLOEXEC)};
  std::string content;
  if (!fd) return content;
  char block[4096];  // an attribute's limit: PAGE_SIZE (Linux, Documentation/filesystems/sysfs.rst)
  for (;;) {
    const ssize_t count = ::read(fd.get(), block, sizeof block);
    if (count < 0 && errno == EINTR) continue;
    if (count > 0) content.append(block, static_cast<std::size_t>(count));
    if (count < static_cast<ssize_t>(sizeof block)) return content;  // the end, or an error
  }
}

}  // namespace

std::optional<std::string> read_attribute(const std::filesystem::path& file) {
  const std::string content = content_of(file);
  const std::string_view text = trimmed(std::string_view(content).substr(0, content.find('\n')));
  if (text.empty()) return std::nullopt;
  return std::string(text);
}

std::optional<long long> read_number(const std::filesystem::path& file) {
  const auto text = read_attribute(file);
  if (!text) return std::nullopt;
  std::string_view digits = *text;
  int base = 10;
  if (digits.starts_with("0x")) {
    digits.remove_prefix(2);
    base = 16;
  }
  long long number = 0;
  const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), number, base);
  if (status != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  return number;
}

std::optional<std::string> read_field(const std::filesystem::path& file, std::string_view key, char separator) {
  const std::string content = content_of(file);
  for (std::string_view rest = content; !rest.empty();) {
    const auto end = rest.find('\n');
    const std::string_view text = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (text.starts_with(key) && text.substr(key.size()).starts_with(separator)) {
      return std::string(trimmed(text.substr(key.size() + 1)));
    }
  }
  return std::nullopt;
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code status;
  std::filesystem::directory_iterator entry(folder, status);
  while (!status && entry != std::filesystem::directory_iterator{}) {
    names.push_back(entry->path().filename().string());
    entry.increment(status);
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool has_entry(const std::filesystem::path& path) {
  std::error_code status;
  return std::filesystem::exists(std::filesystem::symlink_status(path, status));
}

std::string link_name(const std::filesystem::path& link) {
  std::error_code status;
  return std::filesystem::read_symlink(link, status).filename().string();
}

std::optional<PciAddress> pci_address_of(const std::filesystem::path& entry) {
  std::error_code status;
  // The link's text names the whole way; resolving "device" would read one link for each part of it.
  std::filesystem::path device = std::filesystem::read_symlink(entry, status);
  if (status) device = std::filesystem::canonical(entry / "device", status);
  if (status) return std::nullopt;
  for (auto part = device; part.has_relative_path(); part = part.parent_path()) {
    if (const auto address = PciAddress::parse(part.filename().string())) return address;
  }
  return std::nullopt;
}

std::vector<PciAddress> pci_functions(const std::filesystem::path& sys, const std::vector<unsigned>& base_classes) {
  std::vector<PciAddress> found;
  for (const std::string& name : names_in(sys / "bus/pci/devices")) {
    const auto address = PciAddress::parse(name);
    if (!address) continue;
    const auto code = read_number(sys / "bus/pci/devices" / name / "class");  // class, subclass, interface: 24 bits
    if (!code || *code < 0) continue;
    const auto base_class = static_cast<unsigned>(*code >> 16);
    if (std::find(base_classes.begin(), base_classes.end(), base_class) != base_classes.end()) {
      found.push_back(*address);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::filesystem::path pci_folder(const std::filesystem::path& sys, const PciAddress& address) {
  return sys / "bus/pci/devices" / address.to_string();
}

}  // namespace ddp::topology
