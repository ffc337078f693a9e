#include "logs/line_format.hpp"

#include <array>
#include <ctime>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "logs/prefix_template.hpp"

namespace ddp::launcher {
namespace {

// ECMA-48 SGR: colours that can be told apart on dark and light terminals; no red, which stands for errors.
constexpr std::array<int, 8> kRankColours = {36, 33, 32, 35, 34, 96, 92, 95};

/// "2026-01-31T12:00:00.000" with so many digits after the point.
template <class Fraction>
std::string utc_time(std::chrono::system_clock::time_point time, int digits) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(time);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:0{}}", fmt::gmtime(std::chrono::system_clock::to_time_t(seconds)),
                     std::chrono::duration_cast<Fraction>(time - seconds).count(), digits);
}

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

LineFormat::LineFormat(const LogPumpOptions& options, const StreamRoute& route)
    : json_(options.format == LogFormat::json),
      in_place_(!json_ && (route.stream == Stream::out ? options.terminal_out : options.terminal_err)),
      timestamps_(options.timestamps),
      prefix_(fill_prefix_template(
          options.prefix_template.empty() ? kDefaultPrefixTemplate : std::string_view{options.prefix_template},
          {.role_name = route.role, .rank = route.rank, .local_rank = route.local_rank})),
      console_prefix_(prefix_),
      json_facts_(fmt::format(R"(,"host":{},"rank":{},"local_rank":{},"stream":"{}","line":)", json_text(options.host),
                              route.rank, route.local_rank, route.stream == Stream::out ? "stdout" : "stderr")) {
  if (in_place_ && !prefix_.empty()) {
    const auto colour = kRankColours[static_cast<std::size_t>(route.rank) % kRankColours.size()];
    console_prefix_ = fmt::format("\x1b[{}m{}\x1b[0m", colour, prefix_);
  }
}

std::string LineFormat::json_line(const LinePiece& piece, std::chrono::system_clock::time_point time) const {
  return fmt::format(R"({{"time":"{}Z"{}{}{}}})", utc_time<std::chrono::microseconds>(time, 6), json_facts_,
                     json_text(piece.text), piece.ends ? "" : R"(,"partial":true)");
}

std::string LineFormat::timestamp(std::chrono::system_clock::time_point time) const {
  return timestamps_ ? utc_time<std::chrono::milliseconds>(time, 3) + "Z " : std::string{};
}

}  // namespace ddp::launcher
