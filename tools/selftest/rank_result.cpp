#include "selftest/rank_result.hpp"

#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/byte_stream.hpp"

namespace ddp::selftest {
namespace {

constexpr std::uint8_t kVersion = 1;

[[noreturn]] void reject(std::string cause) {
  throw Error{{.code = ErrorCode::protocol,
               .attempted = "reading a rank's result",
               .cause = std::move(cause),
               .native = {},
               .ranks = {},
               .hint = "do all ranks run the same version of ddp-selftest?"}};
}

CpuSet read_cpus(base::ByteReader& reader) {
  const std::string text = reader.text();
  try {
    return CpuSet::parse(text);
  } catch (const Error& error) {
    reject(error.cause());
  }
}

Severity read_severity(base::ByteReader& reader) {
  const auto number = reader.integer<std::uint8_t>();
  if (number > static_cast<std::uint8_t>(Severity::warning)) reject(fmt::format("there is no severity {}", number));
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
    writer.integer(static_cast<std::uint32_t>(finding.blamed.size()));
    for (const int rank : finding.blamed) writer.integer(rank);
  }
  return std::move(writer).bytes();
}

RankResult decode_rank_result(std::span<const std::byte> bytes) {
  base::ByteReader reader{bytes, "rank's result"};
  if (const auto version = reader.integer<std::uint8_t>(); version != kVersion) {
    reject(fmt::format("it has version {} instead of {}", version, kVersion));
  }
  RankResult result;
  result.rank = reader.integer<int>();
  result.host = reader.text();
  result.cpus = read_cpus(reader);
  // The counts are not trusted: each element takes bytes, so a wrong one ends in an error of the reader.
  for (auto left = reader.integer<std::uint32_t>(); left > 0; --left) {
    Finding finding;
    finding.severity = read_severity(reader);
    finding.check = reader.text();
    finding.what = reader.text();
    for (auto ranks = reader.integer<std::uint32_t>(); ranks > 0; --ranks) {
      finding.blamed.push_back(reader.integer<int>());
    }
    result.findings.push_back(std::move(finding));
  }
  reader.expect_end();
  return result;
}

}  // namespace ddp::selftest
