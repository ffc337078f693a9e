#include "collectives/tcp/tcp_backend.hpp"

#include <algorithm>
#include <exception>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/env_table.hpp"
#include "collectives/backend.hpp"
#include "collectives/tcp/context.hpp"

namespace ddp::collectives::tcp {
namespace {

// The clock is read at every so many polls.
constexpr unsigned kClockEvery = 8;

class TcpBackend;

class TcpRequest final : public Request {
 public:
  explicit TcpRequest(TcpBackend& backend) : backend_(&backend) {}

  void prepare(std::span<const Operation> operations, Deadline deadline);
  void post() noexcept override;
  Outcome poll() noexcept override;
  Failure failure() const override { return failure_; }
  bool waits(std::size_t operation) const noexcept override;
  void release() noexcept override;

 private:
  void post_transfers(Context& context);
  Outcome advance();
  Outcome time_out();
  bool is_done(const Context& context) const;

  TcpBackend* backend_;
  std::span<const Operation> operations_;
  Deadline deadline_ = Deadline::after(std::chrono::seconds(0));
  bool transfers_ = false;
  std::vector<Transfer> messages_;  // in place from post to the end
  std::size_t messages_left_ = 0;
  std::optional<Context::Ticket> last_;
  unsigned polls_ = 0;
  Outcome outcome_ = Outcome::running;
  Failure failure_;
};

class TcpBackend final : public Backend {
 public:
  TcpBackend(std::shared_ptr<TcpMesh> mesh, std::uint16_t context, std::vector<int> members, bool owns_mesh)
      : mesh_(std::move(mesh)), context_(&mesh_->open_context(context, std::move(members))), owns_mesh_(owns_mesh) {}

  const BackendTraits& traits() const noexcept override { return kCpuTraits; }
  Bytes address() const override { return owns_mesh_ ? mesh_->address() : Bytes{}; }
  void connect(const std::vector<Bytes>& addresses, Deadline /*connections are made when first needed*/) override {
    if (owns_mesh_) mesh_->connect(addresses);
  }
  Request& init(std::span<const Operation> operations, Deadline deadline) override {
    if (free_.empty()) {
      requests_.push_back(std::make_unique<TcpRequest>(*this));
      free_.reserve(requests_.size());
      free_.push_back(requests_.back().get());
    }
    TcpRequest& request = *free_.back();
    free_.pop_back();
    request.prepare(operations, deadline);
    return request;
  }
  void abort() noexcept override { mesh_->abort(); }
  void close(Deadline deadline) noexcept override { mesh_->close(deadline); }
  void rest(std::chrono::microseconds limit) noexcept override { mesh_->rest(limit); }

  TcpMesh& mesh() { return *mesh_; }
  Context& context() { return *context_; }
  void put_back(TcpRequest& request) noexcept { free_.push_back(&request); }

 private:
  std::shared_ptr<TcpMesh> mesh_;
  Context* context_;
  bool owns_mesh_;
  std::vector<std::unique_ptr<TcpRequest>> requests_;
  std::vector<TcpRequest*> free_;
};

void TcpRequest::prepare(std::span<const Operation> operations, Deadline deadline) {
  operations_ = operations;
  deadline_ = deadline;
  transfers_ = !operations.empty() && operations.front().is_transfer();
  messages_.clear();
  messages_.resize(transfers_ ? operations.size() : 0);
  messages_left_ = messages_.size();
  last_.reset();
  polls_ = 0;
  outcome_ = Outcome::running;
  failure_ = {};
}

void TcpRequest::post_transfers(Context& context) {
  for (std::size_t i = 0; i < operations_.size(); ++i) {
    const Operation& operation = operations_[i];
    const bool sends = operation.kind == OperationKind::send;
    Transfer& transfer = messages_[i];
    transfer.sends = sends;
    transfer.peer = context.mesh_rank(operation.root);
    transfer.tag = operation.tag;
    transfer.fingerprint = operation.fingerprint();
    transfer.data = static_cast<std::byte*>((sends ? operation.input : operation.output).data());
    transfer.bytes = operation.count * size_of(operation.dtype);
    transfer.left = &messages_left_;
    transfer.operation = &operation;
    context.transfers().post(transfer);
  }
}

void TcpRequest::post() noexcept {
  if (backend_->mesh().aborted() || backend_->mesh().failure()) return;  // poll says so
  try {
    Context& context = backend_->context();
    if (transfers_) return post_transfers(context);
    for (const Operation& operation : operations_) last_ = context.post(operation);
    context.advance();
  } catch (const std::exception& error) {  // no memory
    backend_->mesh().give_up(Outcome::aborted, {}, error.what());
  }
}

bool TcpRequest::waits(std::size_t operation) const noexcept {
  if (!transfers_ || messages_[operation].left == nullptr) return true;  // never posted: the group was aborted before
  return backend_->context().transfers().waits(messages_[operation]);
}

bool TcpRequest::is_done(const Context& context) const {
  return transfers_ ? messages_left_ == 0 : last_ && context.is_done(*last_);
}

Outcome TcpRequest::advance() {
  TcpMesh& mesh = backend_->mesh();
  Context& context = backend_->context();
  if (is_done(context)) return Outcome::ok;
  if (mesh.aborted()) {
    mesh.give_up(Outcome::aborted, {}, "the group was aborted");
    failure_ = {.cause = "the group was aborted"};
    return Outcome::aborted;
  }
  mesh.progress();
  context.advance();
  if (is_done(context)) return Outcome::ok;
  if (mesh.failure()) {
    if (mesh.lingers()) return Outcome::running;
    const MeshFailure& why = *mesh.failure();
    failure_ = {.ranks = context.ranks_here(why.ranks),
                .cause = why.cause,
                .native = why.native,
                .message = context.message_here(why),
                .elsewhere = why.elsewhere};
    return why.outcome;
  }
  if (++polls_ % kClockEvery == 0 && deadline_.expired()) return time_out();
  return Outcome::running;
}

Outcome TcpRequest::time_out() {
  TcpMesh& mesh = backend_->mesh();
  Context& context = backend_->context();
  std::vector<int> awaited;
  if (transfers_) {
    for (const Operation& operation : operations_) awaited.push_back(operation.root);
    std::sort(awaited.begin(), awaited.end());
    awaited.erase(std::unique(awaited.begin(), awaited.end()), awaited.end());
  } else {
    awaited = context.awaited();
  }
  std::string cause = "the deadline passed";
  if (!awaited.empty()) cause += fmt::format("; nothing has come from {}", format_ranks(awaited));
  cause += mesh.missing();
  // In a collective of more than two ranks, the one that this rank waits for may itself wait for another.
  const bool sure = transfers_ ? operations_.size() == 1 : context.size() == 2;
  if (!sure) awaited.clear();
  std::vector<int> in_mesh;
  for (const int rank : awaited) in_mesh.push_back(context.mesh_rank(rank));
  failure_ = {.ranks = awaited, .cause = cause};
  mesh.give_up(Outcome::timeout, std::move(in_mesh), std::move(cause));
  return Outcome::timeout;
}

Outcome TcpRequest::poll() noexcept {
  if (outcome_ != Outcome::running) return outcome_;
  try {
    outcome_ = advance();
  } catch (const std::exception& error) {  // no memory
    backend_->mesh().give_up(Outcome::aborted, {}, error.what());
    outcome_ = Outcome::aborted;
  }
  return outcome_;
}

void TcpRequest::release() noexcept {
  // only after abort: nothing may touch the tensors any more
  if (outcome_ == Outcome::running) backend_->mesh().give_up(Outcome::aborted, {}, "the group was aborted");
  backend_->put_back(*this);
}

}  // namespace

std::shared_ptr<TcpMesh> make_mesh(const BackendConfig& config, std::uint64_t first_ordinal) {
  return std::make_shared<TcpMesh>(MeshConfig{.group = config.group,
                                              .rank = config.rank,
                                              .size = config.size,
                                              .interface_address = config.interface_address,
                                              .connect_timeout = config.connect_timeout,
                                              .peer_timeout = base::peer_timeout(base::Environment::process()),
                                              .first_ordinal = first_ordinal});
}

std::unique_ptr<Backend> make_backend(const BackendConfig& config, std::uint64_t first_ordinal) {
  std::vector<int> members(static_cast<std::size_t>(config.size));
  std::iota(members.begin(), members.end(), 0);
  return std::make_unique<TcpBackend>(make_mesh(config, first_ordinal), std::uint16_t{0}, std::move(members), true);
}

std::unique_ptr<Backend> make_backend(std::shared_ptr<TcpMesh> mesh, std::uint16_t context, std::vector<int> members) {
  return std::make_unique<TcpBackend>(std::move(mesh), context, std::move(members), false);
}

}  // namespace ddp::collectives::tcp
