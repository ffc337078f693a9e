// The public face: checks what can be checked without the other ranks.
#include <ddp/named_operations.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/errors.hpp"
#include "named/comparison.hpp"
#include "named/engine.hpp"

namespace ddp {

struct NamedHandle::State {
  std::shared_ptr<named::Engine> engine;
  std::shared_ptr<named::Pending> pending;
};

class NamedOperations::Impl {
 public:
  explicit Impl(std::shared_ptr<named::Engine> made) : engine(std::move(made)) {}
  std::shared_ptr<named::Engine> engine;
};

namespace {

using named::Key;

void check_rows(const Key& key, const NamedCall& call) {
  for (const TensorView& tensor : call.tensors) {
    if (!tensor.shape().empty()) continue;
    base::throw_invalid_argument(named::name_of(key), "a tensor has no dimension",
                                 "give tensors of one dimension or more: it is cut, or joined, along the first");
  }
}

void check_splits(const Key& key, const NamedCall& call, std::size_t ranks) {
  if (call.tensors.size() != 1) base::throw_invalid_argument(named::name_of(key), "it takes one tensor", {});
  if (call.splits.size() != ranks) {
    base::throw_invalid_argument(named::name_of(key), fmt::format("{} splits for {} ranks", call.splits.size(), ranks),
                                 "give the number of rows for each rank of the set");
  }
  const auto negative = std::any_of(call.splits.begin(), call.splits.end(), [](std::int64_t rows) { return rows < 0; });
  const std::int64_t rows = call.tensors.front().shape().front();
  std::int64_t left = rows;
  for (const std::int64_t split : call.splits) left -= std::min(split, left + 1);
  if (negative || left < 0) {
    base::throw_invalid_argument(named::name_of(key),
                                 negative
                                     ? "a split is negative"
                                     : fmt::format("its splits add up to more than the {} rows of the tensor", rows),
                                 {});
  }
}

void check(const Key& key, const NamedCall& call, named::Engine& engine) {
  if (key.name.size() > named::kMostNameBytes) {
    base::throw_invalid_argument(named::name_of(key), fmt::format("its name has {} bytes", key.name.size()),
                                 fmt::format("names have at most {}", named::kMostNameBytes));
  }
  for (const TensorView& tensor : call.tensors) {
    if (tensor.device().type != DeviceType::cpu)
      base::throw_invalid_argument(named::name_of(key), "a tensor is on a GPU", "give a copy on the CPU");
  }
  switch (call.kind) {
    case NamedKind::all_gather: return check_rows(key, call);
    case NamedKind::all_to_all: return check_rows(key, call), check_splits(key, call, engine.ranks_of(call.set).size());
    case NamedKind::reduce_scatter: check_rows(key, call); [[fallthrough]];
    case NamedKind::all_reduce:
      for (const TensorView& tensor : call.tensors) {
        if (tensor.dtype() == DType::boolean && call.op == ReduceOp::avg)
          base::throw_invalid_argument(named::name_of(key), "booleans have no average", "use another op");
      }
      return;
    case NamedKind::broadcast: {
      const std::vector<int> ranks = engine.ranks_of(call.set);
      if (std::find(ranks.begin(), ranks.end(), call.root) == ranks.end())
        base::throw_invalid_argument(named::name_of(key),
                                     fmt::format("root rank {} is not in the process set", call.root), {});
      return;
    }
    case NamedKind::barrier: return;
  }
}

}  // namespace

bool NamedHandle::done() const { return state_->engine->done(*state_->pending); }
bool NamedHandle::wait(Deadline deadline) const { return state_->engine->wait(*state_->pending, deadline); }
std::optional<Error> NamedHandle::error() const { return done() ? state_->pending->error : std::nullopt; }
const std::vector<NamedResult>& NamedHandle::results() const { return state_->pending->subject->results; }
int NamedHandle::last_joined() const { return state_->pending->last_joined; }

NamedOperations::NamedOperations(const ProcessGroup& parent, const NamedOptions& options)
    : impl_(std::make_shared<Impl>(std::make_shared<named::Engine>(parent, options))) {
  impl_->engine->start();
}
NamedOperations::~NamedOperations() { shutdown(); }

NamedHandle NamedOperations::submit(NamedCall call) {
  named::Engine& engine = *impl_->engine;
  named::Request request{
      .key = {.kind = named::kind_of(call.kind), .name = std::move(call.name), .number = call.number},
      .facts = {.op = call.op,
                .device = call.device,
                .root = call.kind == NamedKind::broadcast ? call.root : 0,
                .prescale = call.prescale,
                .postscale = call.postscale}};
  check(request.key, call, engine);
  for (const TensorView& tensor : call.tensors)
    request.facts.tensors.push_back({.dtype = tensor.dtype(), .shape = {tensor.shape().begin(), tensor.shape().end()}});
  auto pending = engine.submit(std::move(request), std::move(call));
  return NamedHandle(std::make_shared<NamedHandle::State>(NamedHandle::State{impl_->engine, std::move(pending)}));
}

NamedHandle NamedOperations::join() {
  return NamedHandle(std::make_shared<NamedHandle::State>(NamedHandle::State{impl_->engine, impl_->engine->join()}));
}
int NamedOperations::add_set(const std::vector<int>& ranks, Deadline deadline) {
  return impl_->engine->add_set(ranks, deadline);
}
void NamedOperations::remove_set(int set, Deadline deadline) { impl_->engine->remove_set(set, deadline); }
std::vector<int> NamedOperations::ranks_of(int set) const { return impl_->engine->ranks_of(set); }
void NamedOperations::shutdown() noexcept { impl_->engine->shutdown(); }
void NamedOperations::start_timeline(const std::string& file, bool mark_exchanges, bool essential) {
  impl_->engine->start_timeline(file, mark_exchanges, essential);
}
void NamedOperations::stop_timeline() { impl_->engine->stop_timeline(); }
bool NamedOperations::recording() const { return impl_->engine->recording(); }
void NamedOperations::record(std::string name, std::int64_t ready, std::int64_t started, std::int64_t done) {
  impl_->engine->record(std::move(name), ready, started, done);
}
NamedCounts NamedOperations::counts() const { return impl_->engine->counts(); }

}  // namespace ddp
