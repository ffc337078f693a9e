#include "completion_queue.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <ddp/error.hpp>

#include "interpreter.hpp"

namespace ddp::python {

struct CompletionQueue::State {
  struct Ended {
    std::uint64_t number;
    Ended* next = nullptr;
  };

  static std::vector<std::uint64_t> numbers_of(Ended* chain) {
    std::vector<std::uint64_t> numbers;
    while (chain != nullptr) {
      const std::unique_ptr<Ended> ended(chain);
      numbers.push_back(ended->number);
      chain = ended->next;
    }
    std::reverse(numbers.begin(), numbers.end());
    return numbers;
  }

  explicit State(int descriptor) : event(descriptor) {}
  State& operator=(State&&) = delete;
  ~State() {
    numbers_of(box.take());
    ::close(event);
  }

  const int event;
  Mailbox<Ended> box;
};

CompletionQueue::CompletionQueue() {
  const int event = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (event < 0) {
    const int number = errno;
    throw Error{{.code = ErrorCode::system,
                 .attempted = "making a queue for the ends of operations (eventfd)",
                 .cause = std::strerror(number),
                 .native = "errno " + std::to_string(number)}};
  }
  state_ = std::make_shared<State>(event);
}

int CompletionQueue::fileno() const noexcept { return state_->event; }

void CompletionQueue::watch(const Work& work, std::uint64_t number) {
  work.on_finish([queue = std::weak_ptr(state_), number](const Work&) {
    const auto state = queue.lock();
    if (!state) return;
    state->box.post(new State::Ended{.number = number});
    const std::uint64_t one = 1;
    static_cast<void>(!::write(state->event, &one, sizeof one));  // a full counter is readable, too
  });
}

std::vector<std::uint64_t> CompletionQueue::take() {
  std::uint64_t count = 0;
  static_cast<void>(!::read(state_->event, &count, sizeof count));  // first: what is posted later is told again
  return State::numbers_of(state_->box.take());
}

namespace {

/// Never destroyed: threads of libddp may still end operations while the process exits.
Mailbox<HeldObject>& dropped() {
  static auto* const box = new Mailbox<HeldObject>;
  return *box;
}

}  // namespace

std::shared_ptr<const void> hold(HeldObject* chain) {
  return {chain, [](HeldObject* all) { dropped().post(all); }};
}

const StorageFunctions* storage_functions = nullptr;

void release(HeldObject* chain) noexcept {
  while (chain != nullptr) {
    const std::unique_ptr<HeldObject> held(chain);
    chain = held->next;
    or_stop([&] {  // finalizers are Python code
      if (held->buffer.obj != nullptr) PyBuffer_Release(&held->buffer);
      Py_XDECREF(held->object);
      if (held->storage != nullptr) storage_functions->release(held->storage);
    });
  }
}

void release_dropped_objects() noexcept { release(dropped().take()); }

}  // namespace ddp::python
