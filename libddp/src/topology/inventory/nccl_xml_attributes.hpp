// Numbers in the attributes of NCCL's topology format, which has no schema.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>

#include <pugixml.hpp>

namespace ddp::topology {

/// A whole number in the notation of @p base; nothing if the text is anything else.
inline std::optional<int> number_in(std::string_view text, int base = 10) {
  int value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || status != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// "0x030200", "0x10de"; nothing for other text.
inline std::optional<unsigned> hex_attribute(const pugi::xml_node& node, const char* name) {
  std::string_view text = node.attribute(name).value();
  if (!text.starts_with("0x")) return std::nullopt;
  const auto value = number_in(text.substr(2), 16);
  return value && *value >= 0 ? std::optional<unsigned>(*value) : std::nullopt;
}

}  // namespace ddp::topology
