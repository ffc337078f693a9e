#include "settings.hpp"

#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "fake_nccl.hpp"

namespace fake_nccl {
namespace {

std::string variable(const char* name, std::string otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? std::move(otherwise) : value;
}

/// Never destroyed: threads of leaked communicators outlive main.
struct Texts {
  std::mutex mutex;
  std::string complaints;
  char last_error[1024]{};  // NOLINT(*-avoid-c-arrays): as NCCL's, written while others read it
};
Texts& texts() {
  static auto* texts = new Texts;  // NOLINT(*-owning-memory)
  return *texts;
}

}  // namespace

Settings::Settings()
    : folder(variable("FAKE_NCCL_DIR", "/dev/shm")),
      version(std::atoi(variable("FAKE_NCCL_VERSION", std::to_string(kDefaultVersion)).c_str())),
      strict(variable("FAKE_NCCL_MODE", "strict") == "strict"),
      report_peers(variable("FAKE_NCCL_PEERS", "report") == "report"),
      device_slots(std::atoi(variable("FAKE_NCCL_DEVICE_SLOTS", "0").c_str())),
      lazy_connect(variable("FAKE_NCCL_CONNECT", "eager") == "lazy"),
      jitter(static_cast<unsigned>(std::atoi(variable("FAKE_NCCL_JITTER", "0").c_str()))) {}

Settings& settings() {
  static auto* settings = new Settings;  // NOLINT(*-owning-memory): threads outlive main
  return *settings;
}

void jitter() {
  const unsigned seed = settings().jitter;
  if (seed == 0) return;
  thread_local std::minstd_rand random{seed ^ static_cast<unsigned>(gettid())};
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
}

void note_error(const std::string& text) {
  Texts& all = texts();
  const std::lock_guard lock(all.mutex);
  std::snprintf(all.last_error, sizeof all.last_error, "%s", text.c_str());
}

void complain(const std::string& text) {
  note_error(text);
  if (!settings().strict) return;
  std::fprintf(stderr, "fake NCCL: %s\n", text.c_str());
  Texts& all = texts();
  const std::lock_guard lock(all.mutex);
  all.complaints += text + "\n";
}

/// One text for all communicators (init.cc, ncclGetLastError; debug.cc).
FAKE_NCCL_EXPORT const char* ncclGetLastError(ncclComm_t /*comm*/) {
  thread_local std::string text;
  Texts& all = texts();
  const std::lock_guard lock(all.mutex);
  text = all.last_error;
  return text.c_str();
}

}  // namespace fake_nccl

const char* fake_nccl_complaints() {
  thread_local std::string text;
  auto& all = fake_nccl::texts();
  const std::lock_guard lock(all.mutex);
  text.clear();
  text.swap(all.complaints);
  return text.c_str();
}
void fake_nccl_set_version(int code) { fake_nccl::settings().version = code; }
void fake_nccl_set_strict(bool strict) { fake_nccl::settings().strict = strict; }
void fake_nccl_set_report_peers(bool report) { fake_nccl::settings().report_peers = report; }
void fake_nccl_set_device_slots(int slots) { fake_nccl::settings().device_slots = slots; }
void fake_nccl_set_lazy_connect(bool lazy) { fake_nccl::settings().lazy_connect = lazy; }
void fake_nccl_set_jitter(unsigned seed) { fake_nccl::settings().jitter = seed; }

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
