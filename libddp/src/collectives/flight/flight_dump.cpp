#include "collectives/flight/flight_dump.hpp"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <ddp/version.hpp>

#include "base/host_name.hpp"

namespace ddp::collectives {
namespace {

using Json = nlohmann::ordered_json;

// PyTorch's schema; its analyser takes this for how entries of coalesced operations look.
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

/// PyTorch knows no failed operations: they stay started.
std::string_view torch_state(const FlightSnapshot::Record& record) {
  if (record.state == FlightState::done) return "completed";
  return record.started_ns == 0 ? "scheduled" : "started";
}

/// "Float", "BFloat16": c10's names.
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

/// PyTorch's analyser wants one of PyTorch's backends.
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

/// With quotation marks, whatever is in it.
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

/// As text and not as an object, which would take twenty times as long: a failure waits for it.
void append_entry(std::string& text, const FlightSnapshot::Record& record, const FlightGroup& group) {
  const FlightFields& fields = record.fields;
  const Operation operation = operation_of(fields);
  const bool transfer = operation.is_transfer();
  // Parts of different size are no mistake here, but would be one to the analyser.
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

/// The highest sequence of a collective that has reached @p reached; -1 as PyTorch where there is none.
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
  if (const std::string attempt = digits("TORCHELASTIC_RESTART_COUNT"); !attempt.empty()) {
    job.attempt = std::stoi(attempt);
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
  // An entry a line, for grep.
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
