#include "diagnostics/environment/environment_dump.hpp"

#include <atomic>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/files.hpp"
#include "base/host_name.hpp"
#include "base/log.hpp"
#include "base/message.hpp"
#include "diagnostics/environment/environment_fold.hpp"
#include "diagnostics/environment/environment_message.hpp"

namespace ddp::diagnostics {

RankEnvironment describe_process(int rank) {
  return describe(EnvironmentSource::process(), rank, base::host_name(), false);
}

void put_environment(KeyValueStore& store, std::string_view key, const RankEnvironment& own) {
  store.put(key, encode(own));
}

EnvironmentReport collect_environments(KeyValueStore& store, std::string_view key, Deadline deadline) {
  std::vector<RankEnvironment> ranks;
  std::vector<int> silent;
  for (int rank = 0; rank < store.world_size(); ++rank) {
    Bytes message;
    try {
      message = store.get(rank, key, deadline);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::not_found) throw;
      silent.push_back(rank);
      continue;
    }
    ranks.push_back(base::decode<RankEnvironment>(message));
    if (ranks.back().rank == rank) continue;
    throw Error{{.code = ErrorCode::protocol,
                 .attempted = fmt::format("reading the environment of rank {}", rank),
                 .cause = fmt::format("it says that it is of rank {}", ranks.back().rank),
                 .ranks = {rank}}};
  }
  EnvironmentReport report = fold(ranks);
  report.hosts.resize(static_cast<std::size_t>(store.world_size()));
  if (!silent.empty()) {
    report.findings.push_back({.rule = "env-absent",
                               .error = false,
                               .text = "DDP_DUMP_ENV is not set on all ranks: these have not reported",
                               .remedy = "export it to all ranks",
                               .ranks = std::move(silent)});
  }
  return report;
}

void write_report(const EnvironmentReport& report, const std::string& destination) {
  if (destination == "stderr") {
    std::string text = report.to_text();
    text.pop_back();  // its newline
    base::write_stderr_line(text);
  } else {
    base::write_file(base::WholeFile{.path = destination, .is_private = true}, report.to_json());
  }
}

}  // namespace ddp::diagnostics

namespace ddp {

EnvironmentReport EnvironmentReport::of_process(bool all) {
  const auto source = diagnostics::EnvironmentSource::process();
  return diagnostics::fold({diagnostics::describe(source, 0, base::host_name(), all)});
}

std::optional<EnvironmentReport> EnvironmentReport::gather(KeyValueStore& store, Deadline deadline, bool all) {
  static std::atomic<unsigned> gathered{0};
  const std::string key = fmt::format("ddp-env.{}", gathered++);
  const auto source = diagnostics::EnvironmentSource::process();
  diagnostics::put_environment(store, key, diagnostics::describe(source, store.rank(), base::host_name(), all));
  store.fence(deadline);
  if (store.rank() != 0) return std::nullopt;
  return diagnostics::collect_environments(store, key, deadline);
}

}  // namespace ddp
