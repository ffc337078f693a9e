#include "flight/rank_dump.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <limits>
#include <map>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ddp/error.hpp>

#include "command/json_files.hpp"

namespace ddp::tools::flight {
namespace {

using nlohmann::json;

constexpr std::string_view kSchema = "ddp-flight/1";
// More than any job has; bounds the memory that a wrong file can claim.
constexpr int kMaxRank = 10'000'000;

/// Thrown within this file; becomes the cause of an Error.
struct Malformed {
  std::string cause;
};

[[noreturn]] void reject(std::string cause) { throw Malformed{std::move(cause)}; }

const json& member(const json& object, const char* name) {
  if (!object.is_object()) reject(fmt::format("there should be an object with '{}'", name));
  const auto found = object.find(name);
  if (found == object.end()) reject(fmt::format("'{}' is missing", name));
  return *found;
}

template <class Integer>
Integer integer(const json& object, const char* name, Integer lowest, Integer highest) {
  const json& value = member(object, name);
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number <= static_cast<std::uint64_t>(highest) &&
        (lowest <= 0 || number >= static_cast<std::uint64_t>(lowest))) {
      return static_cast<Integer>(number);
    }
  } else if (value.is_number_integer()) {
    const auto number = value.get<std::int64_t>();
    if (number >= static_cast<std::int64_t>(lowest)) return static_cast<Integer>(number);
  } else {
    reject(fmt::format("'{}' is not a whole number", name));
  }
  reject(fmt::format("'{}' is out of range", name));
}

std::uint64_t count(const json& object, const char* name) {
  return integer<std::uint64_t>(object, name, 0, std::numeric_limits<std::uint64_t>::max());
}

/// Returns 0 for null.
std::int64_t time(const json& object, const char* name) {
  return member(object, name).is_null()
             ? 0
             : integer<std::int64_t>(object, name, 0, std::numeric_limits<std::int64_t>::max());
}

/// Text of one line, safe to print.
std::string text(const json& object, const char* name) {
  const json& value = member(object, name);
  if (!value.is_string()) reject(fmt::format("'{}' is not a text", name));
  std::string found = value.get<std::string>();
  std::replace_if(
      found.begin(), found.end(), [](unsigned char each) { return each < 0x20 || each == 0x7f; }, ' ');
  return found;
}

/// The enumerator whose to_string() is the text, among those up to @p last.
template <class Enum>
Enum word(const json& object, const char* name, Enum last) {
  const std::string found = text(object, name);
  for (int value = 0; value <= static_cast<int>(last); ++value) {
    if (to_string(static_cast<Enum>(value)) == found) return static_cast<Enum>(value);
  }
  reject(fmt::format("'{}' is not known as '{}'", found, name));
}

CallState state(const json& object) {
  constexpr std::array<std::string_view, 4> kWords{"queued", "started", "done", "failed"};
  const std::string found = text(object, "state");
  const auto* place = std::find(kWords.begin(), kWords.end(), found);
  if (place == kWords.end()) reject(fmt::format("'{}' is not known as 'state'", found));
  return static_cast<CallState>(place - kWords.begin());
}

std::uint64_t fingerprint(const json& object) {
  const std::string digits = text(object, "fingerprint");
  std::uint64_t value = 0;
  const char* last = digits.data() + digits.size();
  const auto [end, status] = std::from_chars(digits.data(), last, value, 16);
  if (status != std::errc{} || end != last) reject("'fingerprint' is not a hexadecimal number");
  return value;
}

const json& list(const json& object, const char* name) {
  const json& value = member(object, name);
  if (!value.is_array()) reject(fmt::format("'{}' is not a list", name));
  return value;
}

std::vector<int> ranks_of(const json& object) {
  std::vector<int> ranks;
  for (const json& rank : list(object, "ranks")) {
    ranks.push_back(integer<int>(json{{"ranks", rank}}, "ranks", 0, kMaxRank));
  }
  return ranks;
}

RankDump::Group parse_group(const json& object) {
  RankDump::Group group;
  group.name = text(object, "name");
  group.ranks = ranks_of(object);
  const std::set<int> distinct(group.ranks.begin(), group.ranks.end());
  if (group.ranks.empty()) reject(fmt::format("the group '{}' has no ranks", group.name));
  if (distinct.size() != group.ranks.size()) reject(fmt::format("a rank is in the group '{}' twice", group.name));
  group.rank = integer<int>(object, "rank", 0, static_cast<int>(group.ranks.size()) - 1);
  group.last_queued = count(object, "last_queued");
  return group;
}

Call parse_call(const json& entry, const std::map<std::uint64_t, std::size_t>& groups, const RankDump& dump) {
  const json& own = member(entry, "ddp");
  Call call;
  call.number = count(entry, "record_id");
  const auto group = groups.find(count(entry, "pg_id"));
  if (group == groups.end()) reject("'pg_id' names no group");
  call.group = group->second;
  call.kind = word(own, "operation", OperationKind::recv);
  call.sequence = count(own, "sequence");
  call.dtype = word(own, "dtype", DType::complex128);
  call.count = count(own, "count");
  call.reduce_op = word(own, "reduction", ReduceOp::product);
  call.root = integer<int>(own, "root", -1, kMaxRank);
  call.tag = integer<std::uint32_t>(own, "tag", 0, std::numeric_limits<std::uint32_t>::max());
  call.fingerprint = fingerprint(own);
  call.state = state(own);
  call.queued_ns = time(entry, "time_created_ns");
  call.started_ns = time(entry, "time_discovered_started_ns");
  call.finished_ns = time(entry, "time_discovered_completed_ns");
  call.label = text(own, "label");
  const auto members = static_cast<int>(dump.groups[call.group].ranks.size());
  if (call.is_transfer() && (call.root < 0 || call.root >= members)) reject("'root' is not a rank of its group");
  return call;
}

RankDump parse(const json& document, const std::string& file) {
  if (!document.is_object() || !document.contains("ddp")) {
    reject(document.is_object() && document.contains("pg_config") ? "a dump of PyTorch, not of libddp"
                                                                  : "it is not a dump of a flight recorder");
  }
  const json& own = member(document, "ddp");
  if (const std::string schema = text(own, "schema"); schema != kSchema) {
    reject(fmt::format("its schema is '{}', and this program knows '{}'", schema, kSchema));
  }
  RankDump dump;
  dump.file = file;
  dump.job = text(own, "job");
  dump.attempt = integer<int>(own, "attempt", 0, std::numeric_limits<int>::max());
  dump.rank = integer<int>(own, "rank", -1, kMaxRank);
  if (dump.rank < 0) reject("its process was in no group yet");
  dump.host = text(own, "host");
  dump.reason = text(own, "reason");
  if (const json& failure = member(own, "failure"); !failure.is_null()) {
    if (text(failure, "code") == to_string(ErrorCode::peer_lost)) dump.lost = ranks_of(failure);
  }
  dump.begun_ns = time(own, "begun_ns");
  dump.written_ns = time(own, "written_ns");
  std::map<std::uint64_t, std::size_t> ids;
  std::set<std::string> names;
  for (const json& object : list(own, "groups")) {
    dump.groups.push_back(parse_group(object));
    if (!names.insert(dump.groups.back().name).second) {
      reject(fmt::format("two groups are called '{}'", dump.groups.back().name));
    }
    if (!ids.emplace(count(object, "id"), dump.groups.size() - 1).second) reject("two groups have the same 'id'");
  }
  for (const json& entry : list(document, "entries")) dump.calls.push_back(parse_call(entry, ids, dump));
  std::sort(dump.calls.begin(), dump.calls.end(), [](const Call& a, const Call& b) { return a.number < b.number; });
  return dump;
}

}  // namespace

std::string Call::description() const {
  Operation operation;
  operation.kind = kind;
  operation.dtype = dtype;
  operation.reduce_op = reduce_op;
  operation.root = root;
  operation.tag = tag;
  operation.count = count;
  operation.sequence = is_transfer() ? 0 : sequence;
  return label.empty() ? operation.description() : fmt::format("{} ({})", operation.description(), label);
}

RankDump parse_rank_dump(std::string_view text, const std::string& file) {
  std::string cause;
  try {
    return parse(json::parse(text), file);
  } catch (const json::parse_error& error) {
    const bool whole = error.byte <= text.size();
    cause = text.empty() ? "it is empty"
                         : fmt::format("it is {} JSON (byte {})", whole ? "not" : "cut off, or not", error.byte);
  } catch (const json::exception& error) {  // a number out of range
    cause = error.what();
  } catch (const Malformed& malformed) {
    cause = malformed.cause;
  }
  throw Error{{.code = ErrorCode::protocol, .attempted = fmt::format("reading '{}'", file), .cause = std::move(cause)}};
}

namespace {

namespace fs = std::filesystem;

// Largest expected difference between hosts' clocks.
constexpr std::int64_t kClocksDiffer = 60'000'000'000;

std::string job_of(const RankDump& dump) {
  return dump.attempt == 0 ? dump.job : fmt::format("{}, attempt {}", dump.job, dump.attempt);
}

}  // namespace

DumpFolder choose_job(std::vector<RankDump> dumps) {
  DumpFolder folder;
  if (dumps.empty()) return folder;
  std::stable_sort(dumps.begin(), dumps.end(),
                   [](const RankDump& a, const RankDump& b) { return a.written_ns > b.written_ns; });
  const std::string job = job_of(dumps.front());
  const std::int64_t begun = dumps.front().begun_ns;
  folder.job = job;
  std::map<int, RankDump> by_rank;
  for (RankDump& dump : dumps) {
    const auto used = by_rank.find(dump.rank);
    if (job_of(dump) != job) {
      folder.left_out.push_back(fmt::format("'{}': it is of {}, not of {}", dump.file, job_of(dump), job));
    } else if (dump.written_ns < begun - kClocksDiffer) {
      folder.left_out.push_back(
          fmt::format("'{}': it is of an earlier job, which had ended before this one began", dump.file));
    } else if (used != by_rank.end()) {
      folder.left_out.push_back(
          fmt::format("'{}': '{}' is a later dump of rank {}", dump.file, used->second.file, dump.rank));
    } else {
      by_rank.emplace(dump.rank, std::move(dump));
    }
  }
  for (auto& [rank, dump] : by_rank) folder.dumps.push_back(std::move(dump));
  return folder;
}

DumpFolder read_dump_folder(const std::string& path) {
  const auto files = list_json_files(path, "give the folder that DDP_FLIGHT_DIR named");
  std::vector<RankDump> dumps;
  std::vector<std::string> unreadable;
  for (const fs::path& file : files) {
    try {
      dumps.push_back(parse_rank_dump(read_json_file(file), file.filename().string()));
    } catch (const Error& problem) {
      unreadable.push_back(fmt::format("'{}': {}", file.filename().string(), problem.cause()));
    }
  }
  DumpFolder folder = choose_job(std::move(dumps));
  folder.left_out.insert(folder.left_out.end(), unreadable.begin(), unreadable.end());
  if (!folder.dumps.empty()) return folder;
  throw Error{{.code = ErrorCode::not_found,
               .attempted = fmt::format("looking for dumps in '{}'", path),
               .cause = unreadable.empty() ? "no file there is called *.json"
                                           : fmt::format("none can be used; {}", unreadable.front()),
               .hint = "ranks write them where DDP_FLIGHT_DIR says, when a process group fails"}};
}

}  // namespace ddp::tools::flight
