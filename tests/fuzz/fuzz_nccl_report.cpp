// What a rank says of its NCCL and GPU before NCCL starts. Whatever the bytes, parsing throws ddp::Error or gives a
// report that stays the same, and that can be compared with others.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include <ddp/error.hpp>

#include "collectives/nccl/rank_report.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using ddp::collectives::nccl::RankReport;
  const auto bytes = std::as_bytes(std::span{data, size});
  RankReport report;
  try {
    report = RankReport::parse({bytes.begin(), bytes.end()});
  } catch (const ddp::Error& error) {
    if (error.code() != ddp::ErrorCode::protocol) std::abort();
    return 0;
  }
  if (report.pack() != ddp::Bytes(bytes.begin(), bytes.end())) std::abort();
  RankReport other = report;
  other.device += "x";
  try {
    ddp::collectives::nccl::check_reports({report, other}, "fuzz", 1);
  } catch (const ddp::Error&) {
    std::abort();  // the same NCCL, and another GPU
  }
  try {
    ddp::collectives::nccl::check_reports({report, report}, "fuzz", 1);
    if (!report.may_share) std::abort();
  } catch (const ddp::Error& error) {
    if (error.code() != ddp::ErrorCode::conflict || report.may_share) std::abort();
  }
  return 0;
}
