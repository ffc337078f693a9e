#include "kvs/pmi1_store.hpp"

#include <chrono>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/socket.hpp"
#include "kvs/store_contract.hpp"

namespace ddp::kvs {
namespace {

constexpr std::chrono::seconds kPmi1CloseTimeout{2};
constexpr const char* kJoiningPmi1 = "joining the job through PMI-1";

base::UniqueFd open_pmi1(const base::Environment& environment, Deadline deadline) {
  if (const auto fd = environment.number("PMI_FD")) return base::UniqueFd{*fd};
  const Pmi1Address address = parse_pmi_port(environment.raw("PMI_PORT").value_or(""));
  return base::connect_tcp(address.host, address.port, deadline);
}

Pmi1Identity pmi1_identity_of(const base::Environment& environment) {
  Pmi1Identity identity{
      .rank = environment.number("PMI_RANK"), .size = environment.number("PMI_SIZE"), .port_id = std::nullopt};
  if (!environment.has("PMI_FD")) identity.port_id = environment.number("PMI_ID").value_or(0);
  return identity;
}

}  // namespace

Pmi1Store::Pmi1Store(const base::Environment& environment, Deadline deadline)
    : Pmi1Store(open_pmi1(environment, deadline), pmi1_identity_of(environment), deadline) {}

Pmi1Store::Pmi1Store(base::UniqueFd fd, const Pmi1Identity& identity, Deadline deadline)
    : channel_(std::in_place, std::move(fd)) {
  join(identity, deadline);
}

void Pmi1Store::join(const Pmi1Identity& identity, Deadline deadline) {
  rank_ = identity.rank.value_or(-1);
  world_size_ = identity.size.value_or(-1);
  if (identity.port_id) introduce(*identity.port_id, deadline);
  if (rank_ < 0 || rank_ >= world_size_) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = kJoiningPmi1,
                 .cause = fmt::format("the launcher says rank {} of {} (PMI_RANK, PMI_SIZE)", rank_, world_size_),
                 .hint = "keep the PMI_* variables that the launcher sets"}};
  }
  if ((identity.rank && *identity.rank != rank_) || (identity.size && *identity.size != world_size_)) {
    throw Error{
        {.code = ErrorCode::conflict,
         .attempted = kJoiningPmi1,
         .cause = fmt::format("PMI_RANK and PMI_SIZE say rank {} of {}, the server says {} of {}",
                              identity.rank.value_or(rank_), identity.size.value_or(world_size_), rank_, world_size_),
         .hint = "do not set PMI_* variables by hand"}};
  }
  const PmiMessage greeting = request({.command = "init", .fields = {{"pmi_version", "1"}, {"pmi_subversion", "1"}}},
                                      "response_to_init", deadline);
  if (greeting.number("pmi_version") != 1) {
    throw Error{{.code = ErrorCode::unavailable,
                 .attempted = "PMI-1 command init",
                 .cause = fmt::format("the server speaks version {}",
                                      pmi_excerpt(greeting.find("pmi_version").value_or("unknown")))}};
  }
  const Pmi1Maxes maxes = read_pmi1_maxes(request({.command = "get_maxes"}, "maxes", deadline));
  kvs_name_ = request({.command = "get_my_kvsname"}, "my_kvsname", deadline).find("kvsname").value_or("");
  if (kvs_name_.empty()) throw_pmi_protocol("the answer to get_my_kvsname has no kvsname");
  text_bytes_ = pmi1_text_bytes(maxes, kvs_name_.size());
  process_mapping_ = read_text(Space::job, "PMI_process_mapping", deadline);
}

Pmi1Store::~Pmi1Store() { close(); }

// Says who this task is on a connection to PMI_PORT, and learns its rank. What follows is as over PMI_FD.
void Pmi1Store::introduce(int id, Deadline deadline) {
  request({.command = "initack", .fields = {{"pmiid", std::to_string(id)}}}, "initack", deadline);
  for (const auto& [name, place] : {std::pair{"size", &world_size_}, {"rank", &rank_}, {"debug", nullptr}}) {
    const PmiMessage told = await("initack", "set", deadline);
    const auto value = told.number(name);
    if (!value) throw_pmi_protocol(fmt::format("the answer to initack lacks {}", name));
    if (place != nullptr) *place = *value;
  }
}

void Pmi1Store::close() noexcept {
  usable_ = false;
  if (!channel_) return;
  log_failures([&] { request({.command = "finalize"}, "finalize_ack", Deadline::after(kPmi1CloseTimeout)); });
  channel_.reset();
}

void Pmi1Store::put_text(Space, const std::string& wire_key, const std::string& text, Deadline deadline) {
  request({.command = "put", .fields = {{"kvsname", kvs_name_}, {"key", wire_key}, {"value", text}}}, "put_result",
          deadline);
}

std::optional<std::string> Pmi1Store::read_text(Space, const std::string& wire_key, Deadline deadline) {
  const PmiMessage message{.command = "get", .fields = {{"kvsname", kvs_name_}, {"key", wire_key}}};
  channel_->transmit(encode_pmi1(message), deadline, "sending get to the PMI-1 server");
  const PmiMessage answer = await("get", "get_result", deadline);
  // Servers give different codes for an absent key, and no other reason to refuse.
  if (answer.number("rc").value_or(0) != 0) return std::nullopt;
  const auto value = answer.find("value");
  if (!value) throw_pmi_protocol("the answer to get has no value");
  return std::string(*value);
}

void Pmi1Store::fence(Deadline deadline) {
  const std::string attempted = fmt::format("fence {} of {} ranks over PMI-1", fences_ + 1, world_size_);
  check_usable(usable_, attempted);
  usable_ = false;  // until it succeeds: a barrier cannot be taken back
  ++fences_;
  channel_->transmit(encode_pmi1({.command = "barrier_in"}), deadline, "sending barrier_in to the PMI-1 server");
  in_barrier_ = true;
  const auto message = receive(deadline);
  if (!message) {
    ErrorDetail detail = fence_timeout(attempted, {}, world_size_).detail();
    detail.cause = "not all ranks arrived before the deadline; PMI-1 does not say which";
    throw Error{std::move(detail)};
  }
  if (message->command != "barrier_out")
    throw_pmi_protocol(fmt::format("it answered barrier_in with {}", pmi_excerpt(message->command)));
  in_barrier_ = false;
  if (const int code = message->number("rc").value_or(0); code != 0) {
    throw Error{{.code = ErrorCode::peer_lost,
                 .attempted = attempted,
                 .cause = "the server gave up",
                 .native = pmi_code_name(1, code),
                 .hint = "see the launcher's own messages"}};
  }
  usable_ = true;
}

PmiMessage Pmi1Store::request(const PmiMessage& message, std::string_view answer, Deadline deadline) {
  channel_->transmit(encode_pmi1(message), deadline, "sending " + message.command + " to the PMI-1 server");
  PmiMessage received = await(message.command, answer, deadline);
  if (const int code = received.number("rc").value_or(0); code != 0) {
    throw Error{
        {.code = ErrorCode::unavailable,
         .attempted = fmt::format("PMI-1 command {}", message.command),
         .cause = fmt::format("the server refused: {}", pmi_excerpt(received.find("msg").value_or("no reason given"))),
         .native = pmi_code_name(1, code),
         .hint = "see the launcher's own messages"}};
  }
  return received;
}

std::optional<PmiMessage> Pmi1Store::receive(Deadline deadline) {
  const auto line = channel_->read_line(kPmi1MostLineBytes, deadline);
  if (!line) return std::nullopt;
  return parse_pmi1(*line);
}

// The end of a barrier that was given up may come first.
PmiMessage Pmi1Store::await(const std::string& command, std::string_view answer, Deadline deadline) {
  for (;;) {
    auto message = receive(deadline);
    if (!message) {
      throw Error{{.code = ErrorCode::timeout,
                   .attempted = fmt::format("PMI-1 command {}", command),
                   .cause = "no answer before the deadline",
                   .hint = "is the launcher on this node alive, and is PMI_FD its socket?"}};
    }
    if (message->command == answer) return std::move(*message);
    if (!std::exchange(in_barrier_, false) || message->command != "barrier_out")
      throw_pmi_protocol(fmt::format("it answered {} with {}", command, pmi_excerpt(message->command)));
  }
}

}  // namespace ddp::kvs
