#include "logs/prefix_template.hpp"

#include <optional>

#include "options/string_template.hpp"

namespace ddp::launcher {

std::string fill_prefix_template(std::string_view text, const PrefixValues& values) {
  return fill_template(text, [&values](std::string_view name) -> std::optional<std::string> {
    if (name == "role_name") return std::string{values.role_name};
    if (name == "rank") return std::to_string(values.rank);
    if (name == "local_rank") return std::to_string(values.local_rank);
    return std::nullopt;
  });
}

}  // namespace ddp::launcher
