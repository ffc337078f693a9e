#include "collectives/flight/flight_output.hpp"

#include <filesystem>
#include <mutex>

#include <fmt/format.h>

#include "base/env_table.hpp"
#include "base/files.hpp"
#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "collectives/flight/flight_dump.hpp"
#include "collectives/flight/flight_signal.hpp"

namespace ddp {
namespace collectives {
namespace {

constexpr std::chrono::seconds kLongestWrite{5};  // fsync may take seconds where the file system is busy

/// Two threads may have a reason at the same time; the file is one.
std::mutex& one_writer() {
  static auto& mutex = *new std::mutex;  // never destroyed: abandoned threads may hold it
  return mutex;
}

void warn(const std::string& why) { base::log(base::LogLevel::warning, "writing the flight recorder's file: {}", why); }

}  // namespace

std::shared_ptr<FlightGroup> join_flight_recorder(FlightGroupFacts facts) {
  auto group = FlightRecorder::process().join(std::move(facts));
  obey_flight_signal(base::Environment::process());
  return group;
}

void write_flight_file(const std::string& reason, const Error* failure) noexcept {
  try {
    const base::Environment environment = base::Environment::process();
    const std::string folder = environment.text("DDP_FLIGHT_DIR");
    if (folder.empty()) return;
    const FlightSnapshot snapshot = FlightRecorder::process().snapshot();
    if (snapshot.size == 0) return;
    const FlightJob job = FlightJob::of(environment);
    const std::string path = std::filesystem::path(folder) / job.file_name(snapshot.rank);
    const std::string text = to_json(snapshot, job, reason, failure);
    const auto written = base::abandonable_call(
        [path, text] {
          const std::lock_guard lock(one_writer());
          base::write_file(base::WholeFile{.path = path, .is_private = true, .last = base::LastLink::refused}, text);
          return true;
        },
        Deadline::after(kLongestWrite));
    if (!written) warn(fmt::format("'{}' is not written after {} s; it goes on alone", path, kLongestWrite.count()));
  } catch (const std::exception& error) {
    warn(error.what());
  }
}

void record_failure(FlightGroup& group, const Error& failure) noexcept {
  if (group.first_failure()) write_flight_file(failure.what(), &failure);
}

}  // namespace collectives

std::string flight_recorder_json() {
  return to_json(collectives::FlightRecorder::process().snapshot(),
                 collectives::FlightJob::of(base::Environment::process()), "requested by the program");
}

void dump_flight_recorder(const std::string& path) {
  const std::lock_guard lock(collectives::one_writer());
  base::write_file(base::WholeFile{.path = path, .is_private = true}, flight_recorder_json());
}

}  // namespace ddp
