#include "doctor/text_digest.hpp"

#include <cstdint>
#include <fstream>

#include <fmt/format.h>

namespace ddp::tools::doctor {

std::string digest_of(std::string_view bytes) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return fmt::format("{:016x}", hash);
}

std::string digest_of_lines(const std::filesystem::path& file) {
  std::ifstream stream(file);
  if (!stream) return {};
  std::string lines;
  for (std::string line; std::getline(stream, line);) {
    const auto begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos || line[begin] == '#') continue;
    lines += line.substr(begin, line.find_last_not_of(" \t\r") - begin + 1) + '\n';
  }
  return digest_of(lines);
}

}  // namespace ddp::tools::doctor
