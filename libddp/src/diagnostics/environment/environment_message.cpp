#include "diagnostics/environment/environment_message.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/byte_stream.hpp"
#include "diagnostics/environment/variable_table.hpp"

namespace ddp::diagnostics {
namespace {

constexpr std::uint8_t kVersion = 1;
constexpr std::uint8_t kNoQuestion = 2;  // beside 0 and 1 of RankVariable::read
constexpr const char* kWhat = "rank's environment";

[[noreturn]] void reject_bytes(std::string cause) {
  throw Error{{.code = ErrorCode::protocol,
               .attempted = fmt::format("reading the {}", kWhat),
               .cause = std::move(cause),
               .hint = "do all ranks run the same version of libddp?"}};
}

Bytes encode_all(const RankEnvironment& environment) {
  base::ByteWriter writer;
  writer.integer(kVersion).integer(environment.rank).text(environment.host);
  const auto& nccl = environment.nccl;
  writer.text(nccl.path).text(nccl.found).text(nccl.version).integer(nccl.names).text(nccl.problem);
  writer.integer(static_cast<std::uint32_t>(environment.files.size()));
  for (const RankFile& file : environment.files) writer.text(file.path).integer(file.digest);
  writer.integer(static_cast<std::uint32_t>(environment.variables.size()));
  for (const RankVariable& variable : environment.variables) {
    writer.text(variable.name).text(variable.value).text(variable.origin);
    writer.integer(variable.read ? static_cast<std::uint8_t>(*variable.read) : kNoQuestion);
  }
  writer.integer(static_cast<std::uint32_t>(environment.findings.size()));
  for (const EnvironmentFinding& finding : environment.findings) {
    writer.text(finding.rule).integer(static_cast<std::uint8_t>(finding.error)).text(finding.variable);
    writer.text(finding.text).text(finding.remedy);
  }
  return std::move(writer).bytes();
}

std::uint8_t read_choice(base::ByteReader& reader, std::uint8_t highest) {
  const auto value = reader.integer<std::uint8_t>();
  if (value > highest) reject_bytes(fmt::format("it has {} where at most {} can be", value, highest));
  return value;
}

}  // namespace

Bytes encode(const RankEnvironment& environment) {
  Bytes bytes = encode_all(environment);
  if (bytes.size() <= kLargestMessageBytes) return bytes;
  RankEnvironment smaller = environment;
  std::erase_if(smaller.variables, [](const RankVariable& each) { return !family_of(each.name); });
  bytes = encode_all(smaller);
  if (bytes.size() <= kLargestMessageBytes) return bytes;
  const std::size_t size = bytes.size();
  smaller.variables.clear();
  smaller.files.clear();
  smaller.findings = {{.rule = "env-size",
                       .error = false,
                       .text = fmt::format("the variables are too large to be sent: {} bytes", size),
                       .remedy = "shorten them"}};
  return encode_all(smaller);
}

RankEnvironment decode_rank_environment(std::span<const std::byte> bytes) {
  if (bytes.size() > kLargestMessageBytes) reject_bytes(fmt::format("it has {} bytes", bytes.size()));
  base::ByteReader reader{bytes, kWhat};
  if (const auto version = reader.integer<std::uint8_t>(); version != kVersion) {
    reject_bytes(fmt::format("it is of version {}, not {}", version, kVersion));
  }
  RankEnvironment environment;
  environment.rank = reader.integer<int>();
  environment.host = reader.text();
  environment.nccl.path = reader.text();
  environment.nccl.found = reader.text();
  environment.nccl.version = reader.text();
  environment.nccl.names = reader.integer<int>();
  environment.nccl.problem = reader.text();
  for (auto left = reader.integer<std::uint32_t>(); left > 0; --left) {
    RankFile file;
    file.path = reader.text();
    file.digest = reader.integer<std::uint64_t>();
    environment.files.push_back(std::move(file));
  }
  for (auto left = reader.integer<std::uint32_t>(); left > 0; --left) {
    RankVariable variable;
    variable.name = reader.text();
    variable.value = reader.text();
    variable.origin = reader.text();
    const std::uint8_t read = read_choice(reader, kNoQuestion);
    if (read != kNoQuestion) variable.read = read == 1;
    environment.variables.push_back(std::move(variable));
  }
  for (auto left = reader.integer<std::uint32_t>(); left > 0; --left) {
    EnvironmentFinding finding;
    finding.rule = reader.text();
    finding.error = read_choice(reader, 1) == 1;
    finding.variable = reader.text();
    finding.text = reader.text();
    finding.remedy = reader.text();
    environment.findings.push_back(std::move(finding));
  }
  reader.expect_end();
  return environment;
}

}  // namespace ddp::diagnostics
