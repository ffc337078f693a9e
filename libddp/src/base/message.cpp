// How messages are refused, and why.
#include "base/message.hpp"

#include <cmath>

#include <fmt/format.h>

namespace ddp::base::message {
namespace {

std::string name_of(const Place& place) { return fmt::format("{}: '{}'", place.owner, place.field); }

bool is_control(unsigned char c) { return c < ' ' || c == 0x7f; }

}  // namespace

void refuse_number(const ByteReader& in, const Place& place, const std::string& number, const std::string& least,
                   const std::string& most) {
  in.refuse(fmt::format("{} is {}, which is not between {} and {}", name_of(place), number, least, most));
}

void refuse_kind(const ByteReader& in, std::size_t kind) {
  in.refuse(fmt::format("there is no message of kind {}", kind));
}

void check_finite(const ByteReader& in, const Place& place, double number) {
  if (!std::isfinite(number)) in.refuse(fmt::format("{} is not a finite number", name_of(place)));
}

void check_count(const ByteReader& in, const Place& place, std::size_t count) {
  const Rule& rule = place.rule;
  if (count < rule.fewest || count > rule.count)
    in.refuse(fmt::format("{} has {} elements, not {} to {}", name_of(place), count, rule.fewest, rule.count));
}

void check_text(const ByteReader& in, const Place& place, std::string_view text) {
  if (place.rule.plain) {
    if (text.size() > place.rule.longest ||
        std::any_of(text.begin(), text.end(), [](unsigned char c) { return c == '/' || is_control(c); }))
      in.refuse(fmt::format("{} is longer than {} bytes, or has a '/' or a control character", name_of(place),
                            place.rule.longest));
  }
  check_length(in, place, text.size());
}

void check_length(const ByteReader& in, const Place& place, std::size_t bytes) {
  if (bytes > place.rule.longest)
    in.refuse(fmt::format("{} has {} bytes, more than {}", name_of(place), bytes, place.rule.longest));
}

void check_version(ByteReader& in, std::uint8_t version) {
  if (const auto found = in.integer<std::uint8_t>(); found != version)
    in.refuse(fmt::format("it has version {}, this libddp knows {}", found, version));
}

void check_size(const Heading& heading, std::size_t bytes) {
  if (bytes <= heading.most_bytes) return;
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = fmt::format("sending the {}", heading.name),
               .cause = fmt::format("it has {} bytes, more than {}", bytes, heading.most_bytes),
               .hint = heading.shorten}};
}

void check_size(const ByteReader& in, const Heading& heading) {
  if (in.left() > heading.most_bytes)
    in.refuse(fmt::format("it has {} bytes, more than {}", in.left(), heading.most_bytes));
}

}  // namespace ddp::base::message
