#include "kvs/pmi2_store.hpp"

#include <algorithm>
#include <charconv>
#include <numeric>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "kvs/store_contract.hpp"

namespace ddp::kvs {
namespace {

constexpr std::chrono::seconds kCloseTimeout{2};
constexpr std::size_t kLookupsBetweenChecks = 64;
constexpr std::size_t kMaxLastLookups = 4096;  // of all ranks together; each takes some 0.2 ms
// Name and largest size of the published list of absent ranks.
constexpr std::string_view kAbsentName = "absent";
constexpr std::size_t kMaxAbsentListBytes = 900;

void require_equal(std::string_view what, std::string_view variable, std::optional<int> expected, int answered) {
  if (!expected || *expected == answered) return;
  throw Error{{.code = ErrorCode::conflict,
               .attempted = "joining the job through PMI-2",
               .cause = fmt::format("{} says {} {}, the PMI-2 server says {}", variable, what, *expected, answered),
               .hint = "do not set PMI_* variables by hand, and start programs with srun only"}};
}

std::string list_text(std::uint64_t fence, const std::vector<int>& ranks) {
  return fmt::format("{}:{}", fence, fmt::join(ranks, ","));
}

// The ranks of a published list, if it belongs to this fence.
std::optional<std::vector<int>> parse_list(std::string_view text, std::uint64_t fence, int world_size) {
  const std::string prefix = fmt::format("{}:", fence);
  if (!text.starts_with(prefix)) return std::nullopt;
  std::vector<int> ranks;
  const char* at = text.data() + prefix.size();
  const char* const end = text.data() + text.size();
  while (at < end) {
    int rank = -1;
    const auto [next, status] = std::from_chars(at, end, rank);
    if (status != std::errc{} || rank < 0 || rank >= world_size) return std::nullopt;
    ranks.push_back(rank);
    at = next < end ? next + 1 : end;
  }
  return ranks;
}

Pmi2Identity identity_of(const base::Environment& environment) {
  return {.job_id = environment.raw("PMI_JOBID").value_or(""),
          .rank = environment.number("PMI_RANK"),
          .size = environment.number("PMI_SIZE")};
}

}  // namespace

Pmi2Store::Pmi2Store(const base::Environment& environment, Deadline deadline)
    : Pmi2Store(base::UniqueFd{environment.number("PMI_FD").value_or(-1)}, identity_of(environment), deadline) {}

Pmi2Store::Pmi2Store(base::UniqueFd fd, const Pmi2Identity& expected, Deadline deadline)
    : channel_(std::in_place, std::move(fd)) {
  channel_->greet(deadline);
  const PmiMessage init = request({.command = "fullinit",
                                   .fields = {{"pmijobid", expected.job_id},
                                              {"pmirank", std::to_string(expected.rank.value_or(0))},
                                              {"threaded", "FALSE"}}},
                                  "fullinit-response", deadline);
  const auto rank = init.number("rank");
  const auto size = init.number("size");
  if (!rank || !size || *rank < 0 || *rank >= *size) {
    throw Error{{.code = ErrorCode::protocol,
                 .attempted = "joining the job through PMI-2",
                 .cause = fmt::format("the server says rank {} of {}", rank.value_or(-1), size.value_or(-1))}};
  }
  require_equal("rank", "PMI_RANK", expected.rank, *rank);
  require_equal("size", "PMI_SIZE", expected.size, *size);
  rank_ = *rank;
  world_size_ = *size;
  job_id_ = request({.command = "job-getid"}, "job-getid-response", deadline).find("jobid").value_or("");
  // Never ask for attributes that may not exist: Slurm (22.05 to 25.11) answers some unknown names with another
  // attribute's value.
  const PmiMessage mapping = request({.command = "info-getjobattr", .fields = {{"key", "PMI_process_mapping"}}},
                                     "info-getjobattr-response", deadline);
  if (mapping.find("found") == "TRUE") process_mapping_ = mapping.find("value");
}

Pmi2Store::~Pmi2Store() { close(); }

void Pmi2Store::close() noexcept {
  usable_ = false;
  if (!channel_) return;
  log_failures([&] { request({.command = "finalize"}, "finalize-response", Deadline::after(kCloseTimeout)); });
  channel_.reset();
}

void Pmi2Store::put_text(Space space, const std::string& wire_key, const std::string& text, Deadline deadline) {
  const bool node = space == Space::node;
  request({.command = node ? "info-putnodeattr" : "kvs-put", .fields = {{"key", wire_key}, {"value", text}}},
          node ? "info-putnodeattr-response" : "kvs-put-response", deadline);
}

std::optional<std::string> Pmi2Store::read_text(Space space, const std::string& wire_key, Deadline deadline) {
  const bool node = space == Space::node;
  PmiMessage message{.command = node ? "info-getnodeattr" : "kvs-get", .fields = {{"key", wire_key}}};
  // Without it, slurmstepd holds the request until the attribute is put.
  if (node) message.fields.emplace_back("wait", "FALSE");
  const PmiMessage answer = request(message, node ? "info-getnodeattr-response" : "kvs-get-response", deadline);
  if (answer.find("found") != "TRUE") return std::nullopt;
  return std::string(answer.find("value").value_or(""));
}

void Pmi2Store::fence(Deadline deadline) {
  const std::string attempted = fmt::format("fence {} of {} ranks over PMI-2", fences_ + 1, world_size_);
  check_usable(usable_, attempted);
  usable_ = false;  // until the fence succeeds: no error below leaves the numbering of fences intact
  ++fences_;
  fence_answered_ = false;
  // Before the fence, not during it: while this rank is missing, srun cannot be sending the fence's answer to a
  // slurmstepd that waits for srun to answer this.
  publish(arrival_name(rank_), std::to_string(fences_), deadline);
  channel_->send({.command = "kvs-fence"}, deadline);
  if (await_fence(before_reserve(deadline))) {
    usable_ = true;
    return;
  }
  std::size_t unchecked = 0;
  std::vector<int> absent;
  Error failure = fence_timeout(attempted, {}, world_size_);
  try {
    absent = find_absent(deadline, unchecked);
  } catch (const Error& error) {
    ErrorDetail detail = failure.detail();
    detail.cause =
        fmt::format("not all ranks arrived before the deadline; which did not, is unknown ({})", error.what());
    throw Error{std::move(detail)};
  }
  if (fence_answered_) {
    usable_ = true;
    return;
  }
  failure = fence_timeout(attempted, std::move(absent), world_size_);
  if (unchecked == 0) throw failure;
  ErrorDetail detail = failure.detail();
  detail.cause += fmt::format(" ({} ranks could not be asked after in time)", unchecked);
  throw Error{std::move(detail)};
}

bool Pmi2Store::await_fence(Deadline deadline) {
  while (!fence_answered_) {
    const auto message = channel_->receive(deadline);
    if (!message) return false;
    if (message->command != "kvs-fence-response") {
      throw Error{{.code = ErrorCode::protocol,
                   .attempted = "waiting for a PMI-2 fence",
                   .cause = fmt::format("the server sent '{}'", message->command)}};
    }
    accept_fence(*message);
  }
  return true;
}

void Pmi2Store::accept_fence(const PmiMessage& message) {
  fence_answered_ = true;
  if (const int code = message.number("rc").value_or(-1); code != 0) {
    throw Error{{.code = ErrorCode::peer_lost,
                 .attempted = fmt::format("fence {} of {} ranks over PMI-2", fences_, world_size_),
                 .cause = fmt::format("the server gave up: {}", message.find("errmsg").value_or("no reason given")),
                 .native = pmi_code_name(2, code),
                 .hint = "see srun's own messages"}};
  }
}

// srun serves names one request at a time, so looking up every rank from every rank would not scale. Ranks take turns,
// and each starts from the list of one that is done: since then it can only have become shorter.
std::vector<int> Pmi2Store::find_absent(Deadline deadline, std::size_t& unchecked) {
  const auto stagger = (deadline.remaining() / 2) * rank_ / world_size_;
  if (await_fence(Deadline::after(stagger))) return {};
  std::vector<int> candidates(static_cast<std::size_t>(world_size_));
  std::iota(candidates.begin(), candidates.end(), 0);
  std::vector<int> absent;
  const Deadline last_lookup{deadline.when() - deadline.remaining() / 8};
  const std::string list_name = fmt::format("ddp-{}-{}", job_id_, kAbsentName);
  bool own_list = true;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (own_list && i % kLookupsBetweenChecks == 0) {
      const auto list = look_up(list_name, deadline);
      if (auto ranks = list ? parse_list(*list, fences_, world_size_) : std::nullopt) {
        candidates = std::move(*ranks);
        absent.clear();
        own_list = false;
        if (candidates.empty()) break;
        i = 0;
      }
    }
    if (last_lookup.expired()) {
      unchecked = candidates.size() - i;
      return absent;
    }
    const int rank = candidates[i];
    if (rank == rank_) continue;
    if (!arrived(rank, deadline)) absent.push_back(rank);
    if (fence_answered_) return {};
  }
  if (own_list) {
    if (std::string text = list_text(fences_, absent); text.size() <= kMaxAbsentListBytes) {
      publish(list_name, text, deadline);
    }
  }
  // Some ranks may have arrived meanwhile: look up a short list once more.
  if (await_fence(last_lookup) || absent.size() * static_cast<std::size_t>(world_size_) > kMaxLastLookups)
    return absent;
  std::erase_if(absent, [&](int rank) { return arrived(rank, deadline); });
  if (absent.empty()) await_fence(deadline);
  return absent;
}

// Whether @p rank has begun the current fence. Names are published before the fence is sent.
bool Pmi2Store::arrived(int rank, Deadline deadline) {
  const auto text = look_up(arrival_name(rank), deadline);
  std::uint64_t fence = 0;
  if (text) std::from_chars(text->data(), text->data() + text->size(), fence);
  return fence >= fences_;
}

std::string Pmi2Store::arrival_name(int rank) const { return fmt::format("ddp-{}-at-{}", job_id_, rank); }

std::optional<std::string> Pmi2Store::look_up(const std::string& name, Deadline deadline) {
  channel_->send({.command = "name-lookup", .fields = {{"name", name}}}, deadline);
  const PmiMessage answer = await("name-lookup-response", deadline);
  if (answer.number("rc").value_or(-1) != 0) return std::nullopt;  // Slurm: 1, whatever the reason
  // Slurm calls the field "value", the protocol "port".
  const auto value = answer.find("value");
  return std::string(value ? *value : answer.find("port").value_or(""));
}

void Pmi2Store::publish(const std::string& name, const std::string& value, Deadline deadline) {
  request({.command = "name-publish", .fields = {{"name", name}, {"port", value}}}, "name-publish-response", deadline);
}

PmiMessage Pmi2Store::request(const PmiMessage& message, std::string_view answer, Deadline deadline) {
  channel_->send(message, deadline);
  PmiMessage received = await(answer, deadline);
  if (const int code = received.number("rc").value_or(-1); code != 0) {
    throw Error{{.code = ErrorCode::unavailable,
                 .attempted = fmt::format("PMI-2 command {}", message.command),
                 .cause = fmt::format("the server refused: {}", received.find("errmsg").value_or("no reason given")),
                 .native = pmi_code_name(2, code),
                 .hint = "see the messages of slurmstepd in the job's output or on the node"}};
  }
  return received;
}

// Waits for the answer of that name. A fence's answer may arrive first: the server sends it when the last rank arrives.
PmiMessage Pmi2Store::await(std::string_view answer, Deadline deadline) {
  for (;;) {
    auto message = channel_->receive(deadline);
    if (!message) {
      throw Error{{.code = ErrorCode::timeout,
                   .attempted = fmt::format("waiting for the PMI-2 server's {}", answer),
                   .cause = "no answer before the deadline",
                   .hint = "is the slurmstepd of this node alive?"}};
    }
    if (message->command == answer) return std::move(*message);
    if (message->command != "kvs-fence-response" || fences_ == 0) {
      throw Error{{.code = ErrorCode::protocol,
                   .attempted = fmt::format("waiting for the PMI-2 server's {}", answer),
                   .cause = fmt::format("it sent '{}'", message->command)}};
    }
    accept_fence(*message);
  }
}

}  // namespace ddp::kvs
