#include "collectives/flight/flight_dump.hpp"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <ddp/version.hpp>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/host_name.hpp"
#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "base/unique_fd.hpp"

namespace ddp::collectives {
namespace {

using Json = nlohmann::ordered_json;

// Version of PyTorch's schema; its analyser derives the layout of coalesced entries from it.
constexpr const char* kPyTorchVersion = "2.10";

std::string_view state_word(FlightState state) {
  switch (state) {
    case FlightState::queued: return "queued";
    case FlightState::started: return "started";
    case FlightState::done: return "done";
    case FlightState::failed: return "failed";
  }
  return "unknown";
}

/// PyTorch has no failed operations: they stay started.
std::string_view torch_state(const FlightSnapshot::Record& record) {
  if (record.state == FlightState::done) return "completed";
  return record.started_ns == 0 ? "scheduled" : "started";
}

/// c10's name: "Float", "BFloat16".
std::string_view torch_dtype(DType dtype) {
  switch (dtype) {
    case DType::float32: return "Float";
    case DType::float64: return "Double";
    case DType::float16: return "Half";
    case DType::bfloat16: return "BFloat16";
    case DType::int8: return "Char";
    case DType::int32: return "Int";
    case DType::int64: return "Long";
    case DType::uint8: return "Byte";
    case DType::boolean: return "Bool";
    case DType::uint32: return "UInt32";
    case DType::uint64: return "UInt64";
    case DType::float8_e4m3fn: return "Float8_e4m3fn";
    case DType::float8_e5m2: return "Float8_e5m2";
    case DType::complex64: return "ComplexFloat";
    case DType::complex128: return "ComplexDouble";
  }
  return "Undefined";
}

/// PyTorch's analyser accepts only PyTorch's backends.
std::string_view torch_backend(std::string_view backend) { return backend == "nccl" ? "nccl" : "gloo"; }

/// The analyser counts a group's ranks in the order of their ranks in the world.
int torch_rank(const FlightGroupFacts& group, int member) {
  if (member < 0 || member >= static_cast<int>(group.global_ranks.size())) return member;
  const int global = group.global_ranks[static_cast<std::size_t>(member)];
  return static_cast<int>(
      std::count_if(group.global_ranks.begin(), group.global_ranks.end(), [&](int other) { return other < global; }));
}

std::string torch_name(const FlightGroupFacts& group, OperationKind kind, int root) {
  std::string name = fmt::format("{}:{}", torch_backend(group.backend), to_string(kind));
  const int own = torch_rank(group, group.rank);
  if (kind == OperationKind::send) name += fmt::format(" {}->{}", own, torch_rank(group, root));
  if (kind == OperationKind::recv) name += fmt::format(" {}<-{}", own, torch_rank(group, root));
  return name;
}

std::string time_or_null(std::int64_t ns) { return ns == 0 ? "null" : fmt::to_string(ns); }

/// Quotes and escapes the text.
std::string json_text(std::string_view text) { return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace); }

/// The operation as it was called, without tensors.
Operation operation_of(const FlightFields& fields) {
  Operation operation;
  operation.kind = static_cast<OperationKind>(fields.kind);
  operation.dtype = static_cast<DType>(fields.dtype);
  operation.reduce_op = static_cast<ReduceOp>(fields.reduce_op);
  operation.root = fields.root;
  operation.tag = fields.tag;
  operation.count = fields.count;
  operation.sequence = operation.is_transfer() ? 0 : fields.sequence;
  return operation;
}

/// Text rather than a JSON object, which would take twenty times as long: a failure waits for it.
void append_entry(std::string& text, const FlightSnapshot::Record& record, const FlightGroup& group) {
  const FlightFields& fields = record.fields;
  const Operation operation = operation_of(fields);
  const bool transfer = operation.is_transfer();
  // Parts may differ in size here, but the analyser would report that as an error.
  const std::uint64_t inputs = operation.kind == OperationKind::all_gather_v || operation.kind == OperationKind::recv
                                   ? fields.outputs
                                   : fields.inputs;
  const std::uint64_t outputs = operation.kind == OperationKind::send ? fields.inputs : fields.outputs;
  const std::string dtypes =
      operation.kind == OperationKind::barrier ? "[]" : fmt::format("[\"{}\"]", torch_dtype(operation.dtype));
  const std::size_t element = size_of(operation.dtype);
  fmt::format_to(
      std::back_inserter(text),
      R"({{"record_id":{},"pg_id":{},"process_group":[{},"undefined"],"collective_seq_id":{},"p2p_seq_id":{},)"
      R"("op_id":{},"profiling_name":"{}","time_created_ns":{},"time_discovered_started_ns":{},)"
      R"("time_discovered_completed_ns":{},"input_sizes":[[{}]],"input_dtypes":{},"output_sizes":[[{}]],)"
      R"("output_dtypes":{},"state":"{}","is_p2p":{},"retired":{},"timeout_ms":{},"frames":[],)",
      record.number, group.id(), json_text(group.facts().name), transfer ? 0 : fields.sequence,
      transfer ? fields.sequence : 0, record.number, torch_name(group.facts(), operation.kind, operation.root),
      record.queued_ns, time_or_null(record.started_ns), time_or_null(record.finished_ns), inputs, dtypes, outputs,
      dtypes, torch_state(record), transfer, record.finished_ns != 0, group.facts().timeout.count());
  fmt::format_to(std::back_inserter(text),
                 R"("ddp":{{"operation":"{}","sequence":{},"dtype":"{}","count":{},"reduction":"{}","root":{},)"
                 R"("tag":{},"input_bytes":{},"output_bytes":{},"fingerprint":"{:016x}","state":"{}","label":{}}}}})",
                 to_string(operation.kind), fields.sequence, to_string(operation.dtype), fields.count,
                 to_string(operation.reduce_op), fields.root, fields.tag, fields.inputs * element,
                 fields.outputs * element, fields.fingerprint != 0 ? fields.fingerprint : operation.fingerprint(),
                 state_word(record.state), record.label().empty() ? "\"\"" : json_text(record.label()));
}

/// The highest sequence of a collective that has reached @p reached; -1, as in PyTorch, if there is none.
template <class Reached>
std::int64_t last_collective(const FlightSnapshot& snapshot, std::uint32_t group, Reached reached) {
  std::int64_t last = -1;
  for (const FlightSnapshot::Record& record : snapshot.records) {
    const auto kind = static_cast<OperationKind>(record.fields.kind);
    if (record.fields.group != group || kind == OperationKind::send || kind == OperationKind::recv) continue;
    if (reached(record)) last = std::max(last, static_cast<std::int64_t>(record.fields.sequence));
  }
  return last;
}

}  // namespace

FlightJob FlightJob::of(const base::Environment& environment) {
  const auto digits = [&](std::string_view variable) {
    const std::string text = environment.raw(variable).value_or("");
    const bool number = !text.empty() && text.size() < 10 && text.find_first_not_of("0123456789") == std::string::npos;
    return number ? text : std::string{};
  };
  FlightJob job;
  if (const std::string number = digits("SLURM_JOB_ID"); !number.empty()) {
    const std::string step = digits("SLURM_STEP_ID");
    job.name = fmt::format("job{}{}{}", number, step.empty() ? "" : ".", step);
  }
  // ddprun's generations count all starts of the ranks, restarts only those after a failed rank.
  for (const char* const variable : {"TORCHELASTIC_RESTART_COUNT", "DDP_GENERATION"}) {
    if (const std::string attempt = digits(variable); !attempt.empty())
      job.attempt = std::max(job.attempt, std::stoi(attempt));
  }
  return job;
}

std::string FlightJob::file_name(int rank) const {
  return fmt::format("{}{}.rank{}.json", name, attempt == 0 ? "" : fmt::format(".attempt{}", attempt), rank);
}

std::string to_json(const FlightSnapshot& snapshot, const FlightJob& job, std::string_view reason,
                    const Error* failure) {
  Json configuration = Json::object();
  Json status = Json::object();
  Json groups = Json::array();
  for (std::size_t i = 0; i < snapshot.groups.size(); ++i) {
    const FlightGroup& group = *snapshot.groups[i];
    const FlightGroupFacts& facts = group.facts();
    configuration[facts.name] = {{"name", facts.name},
                                 {"desc", "undefined"},
                                 {"ranks", fmt::format("[{}]", fmt::join(facts.global_ranks, ", "))}};
    const auto queued = static_cast<std::int64_t>(snapshot.last_queued[i]);
    status[facts.name] = {
        {"last_enqueued_collective", queued == 0 ? -1 : queued},
        {"last_started_collective",
         last_collective(snapshot, group.id(), [](const auto& record) { return record.started_ns != 0; })},
        {"last_completed_collective",
         last_collective(snapshot, group.id(), [](const auto& record) { return record.state == FlightState::done; })}};
    groups.push_back({{"id", group.id()},
                      {"name", facts.name},
                      {"backend", facts.backend},
                      {"rank", facts.rank},
                      {"ranks", facts.global_ranks},
                      {"last_queued", queued}});
  }
  Json error = nullptr;
  if (failure != nullptr) error = {{"code", to_string(failure->code())}, {"ranks", failure->ranks()}};
  Json document = {{"version", kPyTorchVersion},
                   {"pg_config", std::move(configuration)},
                   {"pg_status", std::move(status)},
                   {"ddp",
                    {{"schema", "ddp-flight/1"},
                     {"libddp", DDP_VERSION_STRING},
                     {"job", job.name},
                     {"attempt", job.attempt},
                     {"rank", snapshot.rank},
                     {"host", base::host_name()},
                     {"pid", ::getpid()},
                     {"reason", reason},
                     {"failure", std::move(error)},
                     {"begun_ns", snapshot.begun_ns},
                     {"written_ns", snapshot.taken_ns},
                     {"size", snapshot.size},
                     {"recorded", snapshot.recorded},
                     {"unreadable", snapshot.unreadable},
                     {"groups", std::move(groups)}}},
                   {"entries", Json::array()}};
  // One entry per line, for grep.
  std::string text = document.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.resize(text.size() - 2);  // "]}"
  std::string_view separator = "\n";
  for (const FlightSnapshot::Record& record : snapshot.records) {
    const auto group = std::find_if(snapshot.groups.begin(), snapshot.groups.end(),
                                    [&](const auto& each) { return each->id() == record.fields.group; });
    if (group == snapshot.groups.end()) continue;
    text += separator;
    append_entry(text, record, **group);
    separator = ",\n";
  }
  text += "\n]}\n";
  return text;
}

}  // namespace ddp::collectives

namespace ddp {
namespace collectives {
namespace {

constexpr std::chrono::seconds kLongestWrite{5};  // fsync may take seconds on a busy file system

/// Two threads may have a reason to dump at the same time, but share one file.
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
    if (!written)
      warn(fmt::format("'{}' is not written after {} s; writing continues in the background", path,
                       kLongestWrite.count()));
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

namespace ddp::collectives {
namespace {

constexpr std::array<std::pair<std::string_view, int>, 4> kSignals{
    {{"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"HUP", SIGHUP}, {"WINCH", SIGWINCH}}};

std::atomic<int> event{-1};
std::atomic<pid_t> owner{0};

// Only records the call: nothing else is async-signal-safe. A forked child has the handler, but not the thread.
void note_signal(int) {
  if (::getpid() != owner.load(std::memory_order_relaxed)) return;
  const int before = errno;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(event.load(std::memory_order_relaxed), &one, sizeof(one));
  errno = before;
}

class SignalledDumps {
 public:
  SignalledDumps(std::string name, int number) : name_(std::move(name)), number_(number) {
    event_.reset(::eventfd(0, EFD_CLOEXEC));
    if (!event_) throw base::system_error("making an event for DDP_FLIGHT_SIGNAL", errno);
    event = event_.get();
    owner = ::getpid();
    thread_ = base::start_thread([this] { serve(); });
    struct sigaction handler {};
    handler.sa_handler = &note_signal;
    handler.sa_flags = SA_RESTART;
    sigemptyset(&handler.sa_mask);
    ::sigaction(number_, &handler, nullptr);
  }
  SignalledDumps& operator=(SignalledDumps&&) = delete;
  ~SignalledDumps() {
    ::signal(number_, SIG_IGN);  // a signal that arrives while the process ends must not kill it
    stopping_ = true;
    note_signal(number_);
    thread_.join();
    event = -1;
  }

 private:
  void serve() {
    for (;;) {
      std::uint64_t times = 0;
      if (::read(event_.get(), &times, sizeof(times)) < 0 && errno == EINTR) continue;
      if (stopping_) return;
      write_flight_file(fmt::format("SIG{}", name_));
    }
  }

  const std::string name_;
  const int number_;
  std::atomic<bool> stopping_{false};
  base::UniqueFd event_;
  std::thread thread_;
};

}  // namespace

void obey_flight_signal(const base::Environment& environment) {
  static std::mutex mutex;
  static std::unique_ptr<SignalledDumps> dumps;
  const std::string name = environment.text("DDP_FLIGHT_SIGNAL");
  const std::lock_guard lock(mutex);
  if (name.empty() || dumps) return;
  const auto reject = [&](ErrorCode code, std::string cause, std::string hint) {
    throw Error{{.code = code,
                 .attempted = "obeying the environment variable DDP_FLIGHT_SIGNAL",
                 .cause = std::move(cause),
                 .hint = std::move(hint)}};
  };
  if (environment.text("DDP_FLIGHT_DIR").empty()) {
    reject(ErrorCode::invalid_argument, "DDP_FLIGHT_DIR is not set", "set DDP_FLIGHT_DIR to a folder for the files");
  }
  int number = 0;
  for (const auto& [word, value] : kSignals) number = word == name ? value : number;
  struct sigaction current {};
  ::sigaction(number, nullptr, &current);
  if ((current.sa_flags & SA_SIGINFO) != 0 || (current.sa_handler != SIG_DFL && current.sa_handler != SIG_IGN)) {
    reject(ErrorCode::conflict, fmt::format("the program handles SIG{} itself", name), "choose another signal");
  }
  dumps = std::make_unique<SignalledDumps>(name, number);
}

}  // namespace ddp::collectives
