#include "base/nccl_conf.hpp"

#include <pwd.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "base/byte_stream.hpp"

namespace ddp::base {
namespace {

constexpr std::size_t kLongest = 1023;  // of a name and of a value, in NCCL
constexpr std::size_t kLargestFile = std::size_t{1} << 20;

std::optional<NcclConf> read_conf(const std::string& root, const std::string& path) {
  std::error_code status;
  if (!std::filesystem::is_regular_file(root + path, status)) return std::nullopt;  // opening a FIFO may block forever
  std::ifstream file(root + path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string text(kLargestFile, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return std::nullopt;
  text.resize(static_cast<std::size_t>(file.gcount()));
  NcclConf conf{.path = path, .digest = 0, .settings = parse_nccl_conf(text)};
  Fnv1a digest;
  for (const auto& [name, value] : conf.settings) digest.add(name).add("=").add(value).add("\n");
  conf.digest = digest.value();
  return conf;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> parse_nccl_conf(std::string_view text) {
  std::vector<std::pair<std::string, std::string>> settings;
  while (!text.empty()) {
    const auto newline = text.find('\n');
    std::string_view line = text.substr(0, newline);
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
    line = line.substr(0, line.find('\0'));
    const auto equals = line.find('=');
    if (line.starts_with('#') || equals == std::string_view::npos || equals == 0) continue;
    settings.emplace_back(line.substr(0, equals).substr(0, kLongest), line.substr(equals + 1).substr(0, kLongest));
  }
  return settings;
}

std::vector<NcclConf> read_nccl_conf(const Environment& environment, const std::string& home,
                                     const std::string& node_file, const std::string& root) {
  std::vector<NcclConf> found;
  const auto named = environment.raw("NCCL_CONF_FILE");
  const std::string of_user = named && !named->empty() ? *named : home.empty() ? "" : home + "/.nccl.conf";
  for (const std::string& path : {of_user, node_file}) {
    if (path.empty()) continue;
    if (auto conf = read_conf(root, path)) found.push_back(std::move(*conf));
  }
  return found;
}

std::string home_folder(const Environment& environment) {
  const auto home = environment.raw("HOME");
  return home && !home->empty() ? *home : home_by_password_file().value_or("");
}

std::optional<std::string> home_by_password_file() {
  passwd entry{};
  passwd* found = nullptr;
  std::array<char, 16384> texts{};
  if (::getpwuid_r(::getuid(), &entry, texts.data(), texts.size(), &found) != 0 || found == nullptr)
    return std::nullopt;
  return entry.pw_dir;
}

NcclConfValue value_in(const std::vector<NcclConf>& files, std::string_view name) {
  for (const NcclConf& file : files) {
    for (const auto& [known, value] : file.settings) {
      if (known == name) return {&file, &value};
    }
  }
  return {};
}

}  // namespace ddp::base
