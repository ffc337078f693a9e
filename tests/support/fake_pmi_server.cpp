#include "support/fake_pmi_server.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include <fmt/format.h>

#include "kvs/pmi1_wire.hpp"

namespace ddp::test {

using kvs::PmiMessage;

FakePmiServer::FakePmiServer(Options options) : options_(std::move(options)) {
  for (int rank = 0; rank < options_.world_size; ++rank) {
    std::array<int, 2> pair{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0) throw std::runtime_error("socketpair");
    Connection connection;
    connection.fd.reset(pair[0]);
    connections_.push_back(std::move(connection));
    clients_.emplace_back(pair[1]);
  }
  std::array<int, 2> stop{};
  if (::pipe2(stop.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  stop_read_.reset(stop[0]);
  stop_write_.reset(stop[1]);
  thread_ = std::thread([this] { serve(); });
}

FakePmiServer::~FakePmiServer() {
  stop_write_.reset();
  thread_.join();
}

void FakePmiServer::serve() {
  for (;;) {
    std::vector<pollfd> entries{{.fd = stop_read_.get(), .events = POLLIN, .revents = 0}};
    for (const Connection& connection : connections_) {
      entries.push_back({.fd = connection.fd.get(), .events = POLLIN, .revents = 0});
    }
    ::poll(entries.data(), entries.size(), -1);
    if (entries[0].revents != 0) return;
    for (std::size_t i = 1; i < entries.size(); ++i) {
      if (entries[i].revents != 0) handle_bytes(static_cast<int>(i) - 1);
    }
  }
}

void FakePmiServer::handle_bytes(int rank) {
  Connection& connection = connections_[static_cast<std::size_t>(rank)];
  std::array<char, 4096> buffer{};
  const ssize_t count = ::recv(connection.fd.get(), buffer.data(), buffer.size(), 0);
  if (count <= 0) return connection.fd.reset();
  connection.received.append(buffer.data(), static_cast<std::size_t>(count));
  if (options_.version == 1) return handle_lines(rank);
  if (!connection.greeted) {
    const auto end = connection.received.find('\n');
    if (end == std::string::npos) return;
    connection.received.erase(0, end + 1);
    connection.greeted = true;
    ::send(connection.fd.get(), options_.greeting.data(), options_.greeting.size(), MSG_NOSIGNAL);
  }
  while (connection.fd && connection.received.size() >= 6) {
    const std::size_t length = kvs::parse_pmi2_length(connection.received.substr(0, 6));
    if (connection.received.size() < 6 + length) return;
    const PmiMessage request = kvs::parse_pmi2(connection.received.substr(6, length));
    connection.received.erase(0, 6 + length);
    handle(rank, request);
  }
}

bool FakePmiServer::misbehave(int rank, const std::string& command) {
  Connection& connection = connections_[static_cast<std::size_t>(rank)];
  if (command == options_.silent_command) return true;
  if (command == options_.fatal_command) {
    connection.fd.reset();
    return true;
  }
  const auto raw = options_.raw.find(command);
  if (raw == options_.raw.end()) return false;
  ::send(connection.fd.get(), raw->second.data(), raw->second.size(), MSG_NOSIGNAL);
  return true;
}

void FakePmiServer::handle_lines(int rank) {
  Connection& connection = connections_[static_cast<std::size_t>(rank)];
  for (std::size_t end = 0; connection.fd && (end = connection.received.find('\n')) != std::string::npos;) {
    const PmiMessage request = kvs::parse_pmi1(connection.received.substr(0, end));
    connection.received.erase(0, end + 1);
    handle_1(rank, request);
  }
}

void FakePmiServer::handle_1(int rank, const PmiMessage& request) {
  Connection& connection = connections_[static_cast<std::size_t>(rank)];
  const std::string& command = request.command;
  const auto field = [&](std::string_view name) { return std::string(request.find(name).value_or("")); };
  if (misbehave(rank, command)) return;
  if (command == "initack") {  // as on a connection to PMI_PORT
    answer(rank, {.command = "initack"});
    answer(rank, {.command = "set", .fields = {{"size", std::to_string(options_.world_size)}}});
    answer(rank, {.command = "set", .fields = {{"rank", std::to_string(rank + options_.rank_offset)}}});
    answer(rank, {.command = "set", .fields = {{"debug", "0"}}});
  } else if (command == "init") {
    answer(rank,
           {.command = "response_to_init", .fields = {{"pmi_version", "1"}, {"pmi_subversion", "1"}, {"rc", "0"}}});
  } else if (command == "get_maxes") {
    answer(rank,
           {.command = "maxes", .fields = {{"kvsname_max", "256"}, {"keylen_max", "64"}, {"vallen_max", "1024"}}});
  } else if (command == "get_my_kvsname") {
    answer(rank, {.command = "my_kvsname", .fields = {{"kvsname", "kvs_0"}}});
  } else if (command == "put") {
    pending_[field("key")] = field("value");
    answer(rank, {.command = "put_result", .fields = {{"rc", "0"}, {"msg", "success"}}});
  } else if (command == "get") {
    visible_["PMI_process_mapping"] = fmt::format("(vector,(0,1,{}))", options_.world_size);
    const auto found = visible_.find(field("key"));
    PmiMessage reply{.command = "get_result", .fields = {{"rc", "-1"}, {"msg", "not_found"}, {"value", "unknown"}}};
    if (found != visible_.end()) reply.fields = {{"rc", "0"}, {"msg", "success"}, {"value", found->second}};
    answer(rank, reply);
  } else if (command == "barrier_in") {
    connection.in_fence = true;
    finish_fence();
  } else if (command == "finalize") {
    answer(rank, {.command = "finalize_ack"});
    connection.fd.reset();
  }
}

void FakePmiServer::handle(int rank, const PmiMessage& request) {
  Connection& connection = connections_[static_cast<std::size_t>(rank)];
  const std::string& command = request.command;
  const auto field = [&](std::string_view name) { return std::string(request.find(name).value_or("")); };
  if (misbehave(rank, command)) return;
  PmiMessage reply{.command = command + "-response", .fields = {{"rc", "0"}}};
  if (command == "fullinit") {
    reply.fields.emplace_back("rank", std::to_string(rank + options_.rank_offset));
    reply.fields.emplace_back("size", std::to_string(options_.world_size));
  } else if (command == "job-getid") {
    reply.fields.emplace_back("jobid", "77.0");
  } else if (command == "info-getjobattr") {
    reply.fields.emplace_back("found", "TRUE");
    reply.fields.emplace_back("value", fmt::format("(vector,(0,1,{}))", options_.world_size));
  } else if (command == "kvs-put") {
    pending_[field("key")] = field("value");
  } else if (command == "kvs-get") {
    const auto found = visible_.find(field("key"));
    reply.fields.emplace_back("found", found != visible_.end() ? "TRUE" : "FALSE");
    if (found != visible_.end()) reply.fields.emplace_back("value", found->second);
  } else if (command == "info-putnodeattr") {
    node_attributes_[field("key")] = field("value");
  } else if (command == "info-getnodeattr") {
    const auto found = node_attributes_.find(field("key"));
    if (found == node_attributes_.end() && field("wait") != "FALSE") return;  // as slurmstepd, which then waits
    reply.fields.emplace_back("found", found != node_attributes_.end() ? "TRUE" : "FALSE");
    if (found != node_attributes_.end()) reply.fields.emplace_back("value", found->second);
  } else if (command == "kvs-fence") {
    connection.in_fence = true;
    return finish_fence();
  } else if (command == "name-publish") {
    names_[field("name")] = field("port");
  } else if (command == "name-lookup") {
    const auto found = names_.find(field("name"));
    if (found == names_.end()) {
      reply.fields = {{"rc", "1"}};
    } else {
      reply.fields.emplace_back("value", found->second);
    }
  }
  answer(rank, reply);
  if (command == "finalize") connection.fd.reset();
}

void FakePmiServer::answer(int rank, const PmiMessage& message) {
  const std::string text = options_.version == 1 ? kvs::encode_pmi1(message) : kvs::encode_pmi2(message);
  ::send(connections_[static_cast<std::size_t>(rank)].fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
}

void FakePmiServer::finish_fence() {
  const auto in_fence = [](const Connection& connection) { return connection.in_fence; };
  if (!std::all_of(connections_.begin(), connections_.end(), in_fence)) return;
  for (auto& [key, value] : pending_) visible_[key] = value;
  pending_.clear();
  for (int rank = 0; rank < options_.world_size; ++rank) {
    connections_[static_cast<std::size_t>(rank)].in_fence = false;
    const char* const end = options_.version == 1 ? "barrier_out" : "kvs-fence-response";
    answer(rank, {.command = end, .fields = {{"rc", "0"}}});
  }
}

}  // namespace ddp::test
