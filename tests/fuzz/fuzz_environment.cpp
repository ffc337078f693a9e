// Environments, the files that NCCL reads, its constants, and dumps, all of which come from outside:
// never crash the report, and what it prints is one line a variable and a document that can be read back.
#include "base/message.hpp"
#include "diagnostics/environment/environment_fold.hpp"
#include "diagnostics/environment/environment_message.hpp"
#include "diagnostics/environment/redaction.hpp"
#include "env/dump_file.hpp"
#include "fuzz/fuzz.hpp"

namespace {

bool one_line(const ddp::Error& error) { return std::string_view(error.what()).find('\n') == std::string_view::npos; }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddp::diagnostics;
  using ddp::tools::env::parse_dump;
  const std::string_view bytes{reinterpret_cast<const char*>(data), size};
  // An environment block, and after two NULs the file and the constants.
  const auto end = bytes.find(std::string_view("\0\0", 2));
  const std::string_view rest = end == std::string_view::npos ? std::string_view{} : bytes.substr(end + 2);
  EnvironmentSource source{.now = parse_environ(bytes.substr(0, end))};
  source.files.push_back({.path = "/etc/nccl.conf", .digest = 1, .settings = ddp::base::parse_nccl_conf(rest)});
  scan_constants(rest, source.nccl);
  if (size % 2 == 0) source.at_exec = parse_environ(rest);
  if (bytes.find("0123456789abcdefghij") == std::string_view::npos) {  // whatever stands before a token
    const std::string safe = without_secrets(std::string(bytes) + " hf_0123456789abcdefghij");
    require(safe.find("0123456789abcdefghij") == std::string::npos);
  }
  const RankEnvironment own = describe(source, 0, "host", true);
  const ddp::Bytes message = encode(own);
  RankEnvironment other = ddp::base::decode<RankEnvironment>(message);
  if (other.variables.size() == own.variables.size()) require(other == own);
  other.rank = 1;
  if (!other.variables.empty()) other.variables.pop_back();
  const ddp::EnvironmentReport report = fold({own, other});
  require(report.to_text().find_first_of("\x1b\r\x07") == std::string::npos);
  const auto again = parse_dump(report.to_json(), "dump");
  require(again.variables.size() == report.variables.size() && again.findings.size() == report.findings.size());
  require(!ddp::tools::env::format_diff(report, again).empty());
  try {
    (void)parse_dump(bytes, "fuzzed").to_text();
  } catch (const ddp::Error& error) {
    require(one_line(error));
  }
  return 0;
}
