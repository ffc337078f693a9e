#include "topo/xml_text.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace ddp::tools {
namespace {

/// Bytes of the character that begins the text; 0 if it is none that XML may hold (XML 1.0, 2.2).
std::size_t character_length(std::string_view text) {
  const auto byte = [text](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i])); };
  const std::uint32_t first = byte(0);
  if (first < 0x80) return first >= 0x20 || first == '\t' || first == '\n' || first == '\r' ? 1 : 0;
  const std::size_t length = first >= 0xf0 && first < 0xf8 ? 4 : first >= 0xe0 ? 3 : first >= 0xc0 ? 2 : 0;
  if (length == 0 || first >= 0xf8 || length > text.size()) return 0;
  std::uint32_t code = first & (0x7fU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80U) return 0;
    code = (code << 6U) | (byte(i) & 0x3fU);
  }
  const std::uint32_t smallest = length == 2 ? 0x80 : length == 3 ? 0x800 : 0x10000;
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  const bool refused = code < smallest || code > 0x10ffff || surrogate || code == 0xfffe || code == 0xffff;
  return refused ? 0 : length;
}

}  // namespace

std::string escape_xml(std::string_view text) {
  std::string escaped;
  while (!text.empty()) {
    const std::size_t length = character_length(text);
    const std::string_view character = text.substr(0, std::max<std::size_t>(length, 1));
    text.remove_prefix(character.size());
    if (length == 0) {
      escaped += '?';
    } else if (character == "&") {
      escaped += "&amp;";
    } else if (character == "<") {
      escaped += "&lt;";
    } else if (character == ">") {
      escaped += "&gt;";
    } else if (character == "\"") {
      escaped += "&quot;";
    } else if (character == "'") {
      escaped += "&apos;";
    } else {
      escaped += character;
    }
  }
  return escaped;
}

}  // namespace ddp::tools
