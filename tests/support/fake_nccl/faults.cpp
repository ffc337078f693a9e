#include "faults.hpp"

#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "fake_nccl.hpp"

namespace fake_nccl {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

struct Order {
  std::string function;
  int rank = -1;    ///< -1: each
  int number = -1;  ///< -1: each
  Fault fault;
};

struct Orders {
  std::mutex mutex;
  std::vector<Order> orders;
  std::map<std::pair<std::string, int>, int> calls;
  std::atomic<int> releases{0};
  Orders();
};
Orders& orders() {
  static auto* orders = new Orders;  // NOLINT(*-owning-memory): threads outlive main
  return *orders;
}

std::optional<Action> action_of(std::string_view word) {
  constexpr std::array kWords{
      std::pair{"delay", Action::delay},
      std::pair{"hang", Action::hang},
      std::pair{"fail", Action::fail},
      std::pair{"kill", Action::kill},
      std::pair{"stop", Action::stop},
      std::pair{"launch_delay", Action::launch_delay},
      std::pair{"launch_hang", Action::launch_hang},
      std::pair{"kernel_delay", Action::kernel_delay},
      std::pair{"kernel_hang", Action::kernel_hang},
      std::pair{"kernel_stuck", Action::kernel_stuck},
      std::pair{"kernel_kill", Action::kernel_kill},
      std::pair{"kernel_stop", Action::kernel_stop},
      std::pair{"async", Action::async},
      std::pair{"version", Action::version},
  };
  for (const auto& known : kWords) {
    if (word == known.first) return known.second;
  }
  return std::nullopt;
}

std::optional<ncclResult_t> result_of(std::string_view word) {
  constexpr std::array kNames{"ncclSuccess",       "ncclUnhandledCudaError", "ncclSystemError",
                              "ncclInternalError", "ncclInvalidArgument",    "ncclInvalidUsage",
                              "ncclRemoteError",   "ncclInProgress",         "ncclTimeout"};
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (word == kNames[i]) return static_cast<ncclResult_t>(i);
  }
  return std::nullopt;
}

/// Takes what stands before @p separator off @p text.
std::string_view cut(std::string_view& text, char separator) {
  const auto end = text.find(separator);
  const std::string_view part = text.substr(0, end);
  text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
  return part;
}

std::optional<Order> parse(std::string_view text) {
  std::string_view what = text;
  std::string_view call = cut(what, '=');
  Order order;
  if (const auto hash = call.find('#'); hash != std::string_view::npos) {
    order.number = std::atoi(std::string(call.substr(hash + 1)).c_str());
    call = call.substr(0, hash);
  }
  if (const auto at = call.find('@'); at != std::string_view::npos) {
    order.rank = std::atoi(std::string(call.substr(at + 1)).c_str());
    call = call.substr(0, at);
  }
  order.function = call;
  const auto action = action_of(cut(what, ':'));
  if (!action || call.empty() || order.number == 0) return std::nullopt;
  order.fault.action = *action;
  if (*action == Action::fail || *action == Action::async) {
    const auto result = result_of(cut(what, ':'));
    if (!result) return std::nullopt;
    order.fault.result = *result;
  }
  order.fault.value = std::atol(std::string(what).c_str());
  return order;
}

std::optional<std::vector<Order>> parse_all(std::string_view text) {
  std::vector<Order> all;
  while (!text.empty()) {
    auto order = parse(cut(text, ','));
    if (!order) return std::nullopt;
    all.push_back(std::move(*order));
  }
  return all;
}

Orders::Orders() {
  const char* text = std::getenv("FAKE_NCCL_FAULTS");
  if (text == nullptr) return;
  auto parsed = parse_all(text);
  if (!parsed) {
    complain(std::string("FAKE_NCCL_FAULTS cannot be read: ") + text);
    std::abort();
  }
  orders = std::move(*parsed);
}

void sleep_for(milliseconds time, const Stop& stop) {
  const auto end = steady_clock::now() + time;
  wait_until([&] { return steady_clock::now() >= end; }, stop);
}

void hang(const Stop& stop) {
  const int before = orders().releases;
  wait_until([&] { return orders().releases != before; }, stop);
}

const Stop kNever = [] { return false; };

}  // namespace

bool wait_until(const Stop& ready, const Stop& stop) {
  constexpr int kShort = 50;
  constexpr int kLong = 1000;  // a tenth of a second, after which nobody minds a millisecond
  for (int turn = 0; !ready(); ++turn) {
    if (stop()) return false;
    if (turn < kShort) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(turn < kLong ? 100 : 1000));
    }
  }
  return true;
}

bool faults_are_ordered() {
  const std::lock_guard lock(orders().mutex);
  return !orders().orders.empty();
}

std::vector<Fault> take_faults(std::string_view function, int rank) {
  Orders& all = orders();
  const std::lock_guard lock(all.mutex);
  const int number = ++all.calls[{std::string(function), rank}];
  std::vector<Fault> faults;
  for (const Order& order : all.orders) {
    if (order.function == function && (order.rank < 0 || order.rank == rank) &&
        (order.number < 0 || order.number == number)) {
      faults.push_back(order.fault);
    }
  }
  return faults;
}

std::optional<ncclResult_t> suffer_call(const std::vector<Fault>& faults, const Stop& stop) {
  std::optional<ncclResult_t> result;
  for (const Fault& fault : faults) {
    if (fault.action == Action::delay) sleep_for(milliseconds(fault.value), kNever);
    if (fault.action == Action::hang) hang(stop);
    if (fault.action == Action::kill) kill(getpid(), SIGKILL);
    if (fault.action == Action::stop) kill(getpid(), SIGSTOP);
    if (fault.action == Action::fail) {
      note_error("a fault that a test ordered");
      result = fault.result;
    }
  }
  return result;
}

void suffer_launch(const std::vector<Fault>& faults, const Stop& stop) {
  for (const Fault& fault : faults) {
    if (fault.action == Action::launch_delay) sleep_for(milliseconds(fault.value), stop);
    if (fault.action == Action::launch_hang) hang(stop);
  }
}

void suffer_kernel(const std::vector<Fault>& faults, const Stop& stop) {
  for (const Fault& fault : faults) {
    if (fault.action == Action::kernel_delay) sleep_for(milliseconds(fault.value), stop);
    if (fault.action == Action::kernel_hang) wait_until(kNever, stop);
    if (fault.action == Action::kernel_stuck) hang(kNever);
    if (fault.action == Action::kernel_kill) kill(getpid(), SIGKILL);
    if (fault.action == Action::kernel_stop) kill(getpid(), SIGSTOP);
  }
}

}  // namespace fake_nccl

bool fake_nccl_faults(const char* faults) {
  auto parsed = fake_nccl::parse_all(faults);
  if (!parsed) return false;
  auto& all = fake_nccl::orders();
  const std::lock_guard lock(all.mutex);
  all.orders = std::move(*parsed);
  all.calls.clear();
  return true;
}

void fake_nccl_release() { ++fake_nccl::orders().releases; }

int fake_nccl_calls(const char* function, int rank) {
  auto& all = fake_nccl::orders();
  const std::lock_guard lock(all.mutex);
  int sum = 0;
  for (const auto& [call, count] : all.calls) {
    if (call.first == function && (rank < 0 || call.second == rank)) sum += count;
  }
  return sum;
}
