#include "collectives/hierarchy/requests.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace ddp::collectives::hierarchy {

Request& HierarchicalBackend::Collectives::begin(std::span<const Operation> operations, Deadline deadline) {
  while (tasks_.size() < operations.size()) tasks_.push_back(std::make_unique<Task>());
  for (std::size_t index = 0; index < operations.size(); ++index) {
    tasks_[index]->begin(backend_.layout_, operations[index], deadline, backend_.segment_bytes_);
  }
  count_ = operations.size();
  used_ = true;
  return *this;
}

void HierarchicalBackend::Collectives::post() noexcept {
  for (std::size_t index = 0; index < count_; ++index) backend_.tasks_.push_back(tasks_[index].get());
  backend_.progress();
}

Outcome HierarchicalBackend::Collectives::poll() noexcept {
  backend_.progress();
  Outcome all = Outcome::ok;
  for (std::size_t index = 0; index < count_; ++index) {
    const Outcome each = backend_.outcome_of(*tasks_[index]);
    if (each == Outcome::running) return each;
    if (each != Outcome::ok) all = each;
  }
  return all;
}

void HierarchicalBackend::Collectives::release() noexcept {
  for (std::size_t index = 0; index < count_; ++index) backend_.drop(*tasks_[index]);
  used_ = false;
}

Request& HierarchicalBackend::Messages::begin(std::span<const Operation> operations, Deadline deadline) {
  const Layout& layout = backend_.layout_;
  refused_ = std::any_of(operations.begin(), operations.end(),
                         [](const Operation& operation) { return operation.tag == kOwnTag; });
  used_ = true;
  broken_ = false;
  for (Share& share : shares_) {
    share.operations.clear();
    share.late.clear();
  }
  places_.clear();
  if (refused_) return *this;
  for (const Operation& operation : operations) {
    const bool near = layout.domain_of(operation.root) == layout.domain();
    Operation& made = shares_[near ? 0 : 1].operations.emplace_back(operation);
    if (near) made.root = layout.index_of(operation.root);
    places_.emplace_back(near ? 0 : 1, shares_[near ? 0 : 1].operations.size() - 1);
  }
  for (Share& share : shares_) {
    if (share.operations.empty()) continue;
    share.request = &backend_.part(share.lane).backend()->init(share.operations, deadline);
    backend_.part(share.lane).add_busy(1);
  }
  return *this;
}

void HierarchicalBackend::Messages::post() noexcept {
  for (Share& share : shares_) {
    if (share.request != nullptr) share.request->post();
  }
}

Outcome HierarchicalBackend::Messages::poll() noexcept {
  if (refused_) return Outcome::mismatch;
  bool running = false;
  for (Share& share : shares_) {
    if (share.request == nullptr) continue;
    const Outcome outcome = share.request->poll();
    if (outcome == Outcome::running) {
      running = true;
      continue;
    }
    if (outcome != Outcome::ok) {
      broken_ = true;
      for (std::size_t i = 0; i < share.operations.size(); ++i) share.late.push_back(share.request->waits(i));
      backend_.note(outcome, backend_.part(share.lane).in_group(share.request->failure()), share.lane);
    }
    end(share);
  }
  if (broken_) backend_.progress();
  if (running) return Outcome::running;
  return broken_ ? backend_.outcome_ : Outcome::ok;
}

void HierarchicalBackend::Messages::look() noexcept {
  for (const Share& share : shares_) {
    if (share.request != nullptr) share.request->poll();
  }
}

Failure HierarchicalBackend::Messages::failure() const {
  if (!refused_) return backend_.failure_;
  return {.ranks = {backend_.layout_.rank()},
          .cause = fmt::format("tag {} is used by the backend itself; choose a smaller one", kOwnTag)};
}

bool HierarchicalBackend::Messages::waits(std::size_t operation) const noexcept {
  if (refused_) return true;
  const auto [share, place] = places_[operation];
  if (place < shares_[share].late.size()) return shares_[share].late[place];
  const Request* const request = shares_[share].request;
  return request != nullptr && request->waits(place);
}

void HierarchicalBackend::Messages::release() noexcept {
  for (Share& share : shares_) {
    if (share.request != nullptr) end(share);
  }
  used_ = false;
}

void HierarchicalBackend::Messages::end(Share& share) {
  share.request->release();
  share.request = nullptr;
  backend_.part(share.lane).add_busy(-1);
}

}  // namespace ddp::collectives::hierarchy
