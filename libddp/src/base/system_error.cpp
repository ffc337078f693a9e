#include "base/system_error.hpp"

#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace ddp::base {

std::string errno_name(int number) {
  const char* name = strerrorname_np(number);
  return name != nullptr ? fmt::format("{} ({})", name, number) : fmt::format("errno {}", number);
}

std::string errno_text(int number) {
  const char* text = strerrordesc_np(number);
  return text != nullptr ? text : fmt::format("unknown error {}", number);
}

Error system_error(std::string attempted, int number, std::string hint, ErrorCode code) {
  return Error{{.code = code,
                .attempted = std::move(attempted),
                .cause = errno_text(number),
                .native = errno_name(number),
                .hint = std::move(hint)}};
}

}  // namespace ddp::base
