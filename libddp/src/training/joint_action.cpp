#include "training/joint_action.hpp"

#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include "base/byte_stream.hpp"
#include "collectives/all_gather_bytes.hpp"

namespace ddp::training {
namespace {

constexpr std::uint8_t kSucceeded = 0;
constexpr std::uint8_t kFailed = 1;

Bytes report_of(const std::function<Bytes()>& action) {
  base::ByteWriter report;
  ErrorDetail failure{.code = ErrorCode::system};
  try {
    const Bytes result = action();
    report.integer(kSucceeded).raw(result);
    return std::move(report).bytes();
  } catch (const Error& error) {
    failure = error.detail();
  } catch (const std::exception& error) {  // no memory
    failure.attempted = "doing a rank's part of a joint action";
    failure.cause = error.what();
  }
  report.integer(kFailed).integer(static_cast<std::uint8_t>(failure.code));
  report.text(failure.attempted).text(failure.cause).text(failure.native).text(failure.hint);
  return std::move(report).bytes();
}

ErrorDetail read_failure(base::ByteReader& report) {
  const auto code = report.integer<std::uint8_t>();
  const auto last = static_cast<std::uint8_t>(ErrorCode::aborted);
  ErrorDetail failure{.code = code <= last ? static_cast<ErrorCode>(code) : ErrorCode::protocol};
  for (std::string* text : {&failure.attempted, &failure.cause, &failure.native, &failure.hint}) *text = report.text();
  return failure;
}

}  // namespace

std::vector<Bytes> act_jointly(ProcessGroup& group, Deadline deadline, const std::function<Bytes()>& action) {
  std::vector<Bytes> reports = collectives::all_gather_bytes(group, report_of(action), deadline);
  std::optional<ErrorDetail> first;
  std::vector<int> failed;
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    base::ByteReader report(reports[rank], "report of a rank's action");
    if (report.integer<std::uint8_t>() != kSucceeded) {
      ErrorDetail failure = read_failure(report);
      if (!first) first = std::move(failure);
      failed.push_back(group.global_ranks()[rank]);
    } else {
      reports[rank].erase(reports[rank].begin());
    }
  }
  if (!first) return reports;
  first->ranks = std::move(failed);
  throw Error{std::move(*first)};
}

}  // namespace ddp::training
