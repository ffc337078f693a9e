// A backend whose operations end after some polls, with no memory, lock or thread of its own: what a group costs by
// itself shows.
#pragma once

#include "collectives/group_engine.hpp"

namespace ddp::test {

class InlineBackend final : public Backend {
 public:
  /// What a test sees of it.
  struct View {
    std::atomic<int> posted{0};        ///< under way
    std::atomic<int> most_posted{0};   ///< at the same time
    std::atomic<int> inside{0};        ///< threads in poll or post
    std::atomic<bool> overlap{false};  ///< there was more than one
    std::atomic<int> ended{0};
    std::atomic<std::uint64_t> last{0};     ///< number of the last collective
    std::atomic<bool> out_of_order{false};  ///< one came before another whose number is smaller
  };

  explicit InlineBackend(int polls, int concurrent = 1, std::shared_ptr<View> view = std::make_shared<View>())
      : polls_(polls), view_(std::move(view)) {
    traits_.serves_cpu = true;
    traits_.completes_inline = true;
    traits_.concurrent_collectives = concurrent;
  }
  const BackendTraits& traits() const noexcept override { return traits_; }
  Bytes address() const override { return {}; }
  void connect(const std::vector<Bytes>& /*unused*/, Deadline /*immediate*/) override {}
  Request& init(std::span<const Operation> operations, Deadline /*ignored*/) override {
    if (const std::uint64_t number = operations.front().sequence; number != 0) {
      if (view_->last.exchange(number) + 1 != number) view_->out_of_order = true;
    }
    if (unused_.empty()) {
      unused_.reserve(requests_.size() + 1);
      unused_.push_back(&requests_.emplace_back(*this));
    }
    InlineRequest& request = *unused_.back();
    unused_.pop_back();
    return request;
  }
  void abort() noexcept override { aborted_ = true; }
  void close(Deadline /*immediate*/) noexcept override {}

 private:
  class InlineRequest final : public Request {
   public:
    explicit InlineRequest(InlineBackend& backend) : backend_(backend) {}
    void post() noexcept override {
      const Visit visit(*backend_.view_);
      left_ = backend_.polls_;
      const int posted = ++backend_.view_->posted;
      backend_.view_->most_posted = std::max<int>(backend_.view_->most_posted, posted);
    }
    Outcome poll() noexcept override {
      const Visit visit(*backend_.view_);
      const bool aborted = backend_.aborted_;
      if (left_-- > 0 && !aborted) return Outcome::running;
      --backend_.view_->posted;
      ++backend_.view_->ended;
      return aborted ? Outcome::aborted : Outcome::ok;
    }
    Failure failure() const override { return {}; }
    void release() noexcept override { backend_.unused_.push_back(this); }

   private:
    /// Shows when two threads are in the backend.
    struct Visit {
      explicit Visit(View& seen) : view(seen) {
        if (++view.inside > 1) view.overlap = true;
      }
      ~Visit() { --view.inside; }
      View& view;
    };
    InlineBackend& backend_;
    int left_ = 0;
  };

  BackendTraits traits_;
  int polls_;
  std::shared_ptr<View> view_;
  std::atomic<bool> aborted_{false};
  std::deque<InlineRequest> requests_;
  std::vector<InlineRequest*> unused_;
};

/// This rank is 0; the others have no address.
inline collectives::GroupMembers members_of(int size) {
  collectives::GroupMembers members{
      .name = "test", .rank = 0, .channel = nullptr, .peer_timeout = std::chrono::seconds(30)};
  for (int rank = 0; rank < size; ++rank) members.global_ranks.push_back(rank);
  members.endpoints.resize(static_cast<std::size_t>(size));
  return members;
}

/// A group over one backend.
inline ProcessGroup group_over(std::unique_ptr<Backend> backend, int size = 2,
                               std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  std::vector<collectives::GroupBackend> backends;
  backends.push_back({"test", std::move(backend)});
  return ProcessGroup{
      collectives::GroupEngine::make(members_of(size), std::move(backends), collectives::ConnectOptions{}, timeout)};
}

/// The group of the engine tests: over InlineBackend.
inline ProcessGroup inline_group(int polls, int concurrent = 1,
                                 std::shared_ptr<InlineBackend::View> view = std::make_shared<InlineBackend::View>()) {
  return group_over(std::make_unique<InlineBackend>(polls, concurrent, std::move(view)));
}

}  // namespace ddp::test
