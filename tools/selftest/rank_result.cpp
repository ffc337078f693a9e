#include "selftest/rank_result.hpp"

#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/byte_stream.hpp"
#include "command/rank_message.hpp"

namespace ddp::selftest {
namespace {

constexpr std::uint8_t kVersion = 1;

constexpr tools::MessageKind kMessage{.name = "rank's result", .program = "ddp-selftest"};

Severity read_severity(base::ByteReader& reader) {
  const auto number = reader.integer<std::uint8_t>();
  if (number > static_cast<std::uint8_t>(Severity::warning)) {
    tools::reject_message(kMessage, fmt::format("unknown severity {}", number));
  }
  return static_cast<Severity>(number);
}

}  // namespace

Bytes encode(const RankResult& result) {
  base::ByteWriter writer;
  writer.integer(kVersion).integer(result.rank).text(result.host).text(result.cpus.to_string());
  writer.integer(static_cast<std::uint32_t>(result.findings.size()));
  for (const Finding& finding : result.findings) {
    writer.integer(static_cast<std::uint8_t>(finding.severity)).text(finding.check);
    writer.text(std::string_view{finding.what}.substr(0, kLongestText));
    tools::write_numbers(writer, finding.blamed);
  }
  return std::move(writer).bytes();
}

RankResult decode_rank_result(std::span<const std::byte> bytes) {
  base::ByteReader reader{bytes, kMessage.name};
  tools::expect_version(reader, kVersion, kMessage);
  RankResult result;
  result.rank = reader.integer<int>();
  result.host = reader.text();
  result.cpus = tools::read_cpus(reader, kMessage);
  // An untrusted count: each element takes bytes, so a wrong one ends in a reader error.
  for (auto left = reader.integer<std::uint32_t>(); left > 0; --left) {
    Finding finding;
    finding.severity = read_severity(reader);
    finding.check = reader.text();
    finding.what = reader.text();
    finding.blamed = tools::read_numbers(reader);
    result.findings.push_back(std::move(finding));
  }
  reader.expect_end();
  return result;
}

}  // namespace ddp::selftest
