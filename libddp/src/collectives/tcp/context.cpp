#include "collectives/tcp/context.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "collectives/tcp/mesh.hpp"

namespace ddp::collectives::tcp {
namespace {

// Bytes that one call combines at most before it returns to the connections.
constexpr std::size_t kCombinedAtOnceBytes = 1024 * 1024;

}  // namespace

Context::Context(TcpMesh& mesh, std::uint16_t number, std::vector<int> members)
    : mesh_(&mesh),
      number_(number),
      members_(std::move(members)),
      transfers_(mesh, number),
      posted_(mesh.first_ordinal()),
      started_(posted_),
      finished_(posted_) {
  const auto own = std::find(members_.begin(), members_.end(), mesh.rank());
  rank_ = static_cast<int>(own - members_.begin());
}

std::vector<int> Context::ranks_here(const std::vector<int>& mesh_ranks) const {
  std::vector<int> here;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (std::find(mesh_ranks.begin(), mesh_ranks.end(), members_[i]) != mesh_ranks.end())
      here.push_back(static_cast<int>(i));
  }
  return here;
}

Context::Ticket Context::post(const Operation& operation) {
  waiting_.push_back(&operation);
  return ++posted_;
}

bool Context::advance() {
  const auto before = position();
  while (!mesh_->failure()) {
    if (started_ == finished_) {
      if (waiting_.empty()) break;
      const Operation& operation = *waiting_.front();
      waiting_.pop_front();
      start(operation);
    }
    if (!step()) break;
    finished_ = started_;
  }
  return position() != before;
}

void Context::start(const Operation& operation) {
  make_plan(operation, rank_, size(), plan_);
  ++started_;
  fingerprint_ = operation.fingerprint();
  next_receive_ = next_sink_ = next_send_ = arrived_ = actions_ = 0;
  sends_left_ = 0;
  receives_left_ = plan_.receives.size() + plan_.sinks.size();
}

void Context::post_receives(std::vector<ReceiveStep>& steps, std::size_t& next) {
  for (; next < steps.size() && steps[next].after_actions <= actions_; ++next) {
    Incoming& message = steps[next].message;
    message.context = number_;
    message.ordinal = started_;
    message.left = &receives_left_;
    mesh_->expect(mesh_rank(steps[next].peer), message);
  }
}

/// @return whether the collective is over.
bool Context::step() {
  std::size_t combined = 0;
  for (bool moved = true; moved && combined < kCombinedAtOnceBytes && !mesh_->failure();) {
    moved = false;
    post_receives(plan_.receives, next_receive_);
    post_receives(plan_.sinks, next_sink_);
    for (; next_send_ < plan_.sends.size(); ++next_send_) {
      SendStep& step = plan_.sends[next_send_];
      if (step.after_receives > arrived_ || step.after_actions > actions_) break;
      step.message.frame.context = number_;
      step.message.frame.ordinal = started_;
      step.message.frame.fingerprint = fingerprint_;
      step.message.left = &sends_left_;
      ++sends_left_;
      mesh_->send(mesh_rank(step.peer), step.message);
    }
    const std::size_t before = arrived_;
    while (arrived_ < next_receive_ && plan_.receives[arrived_].message.done) ++arrived_;
    moved = arrived_ != before;
    if (actions_ == plan_.actions.size()) continue;
    const Action& action = plan_.actions[actions_];
    if (action.after_receives > arrived_ || (action.after_all_sends && sends_left_ != 0)) continue;
    execute(action);
    combined += action.bytes + action.elements * plan_.element_bytes * action.num_sources;
    ++actions_;
    moved = true;
  }
  return receives_left_ == 0 && sends_left_ == 0 && next_send_ == plan_.sends.size() &&
         actions_ == plan_.actions.size() && !mesh_->failure();
}

void Context::execute(const Action& action) {
  const std::span sources =
      std::span<const void* const>(plan_.sources).subspan(action.first_source, action.num_sources);
  if (action.elements != 0) {
    plan_.reduction->combine(action.to, sources, action.elements);
  } else if (action.bytes != 0) {
    std::memcpy(action.to, sources.front(), action.bytes);
  }
}

std::vector<int> Context::awaited() const {
  std::vector<int> ranks;
  for (const auto* steps : {&plan_.receives, &plan_.sinks}) {
    for (const ReceiveStep& step : *steps) {
      if (!step.message.done) ranks.push_back(step.peer);
    }
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

std::optional<UnfitMessage> Context::message_here(const MeshFailure& failure) const {
  const std::vector<int> sender = ranks_here(failure.ranks);
  std::optional<UnfitMessage> message = failure.message;
  if (!message || sender.size() != 1) return std::nullopt;
  message->receive.root = sender.front();
  return message;
}

Context::Found Context::find(Link& link, const Frame& frame) {
  if (static_cast<std::int64_t>(frame.ordinal - started_) > 0) return {.kind = Placement::Kind::not_yet};
  const bool running = started_ != finished_ && frame.ordinal == started_;
  if (running && frame.fingerprint == fingerprint_) {
    for (Incoming* message = link.expected(); message != nullptr; message = message->next) {
      if (message->context != number_ || message->ordinal != frame.ordinal || message->step != frame.step) continue;
      if (message->bytes != frame.total || frame.bytes > message->bytes - message->received) break;
      return {.kind = Placement::Kind::here, .message = message};
    }
    if (next_receive_ < plan_.receives.size() || next_sink_ < plan_.sinks.size())
      return {.kind = Placement::Kind::not_yet};
  }
  mesh_->fail_mismatch(link.rank(),
                       fmt::format("rank {} and rank {} have called different collectives, or with different arguments",
                                   mesh_->rank(), link.rank()));
  return {.kind = Placement::Kind::refuse};
}

}  // namespace ddp::collectives::tcp
