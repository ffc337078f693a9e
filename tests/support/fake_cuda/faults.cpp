#include "tests/support/fake_cuda/faults.hpp"

#include <signal.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <thread>

namespace fake_cuda {
namespace {

thread_local std::optional<int> thread_rank;

bool read_number(std::string_view text, long& number) {
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  return status == std::errc{} && end == text.data() + text.size();
}

}  // namespace

bool Faults::read(std::string_view text, Rule& rule) {
  const auto equals = text.find('=');
  if (equals == std::string_view::npos) return false;
  std::string_view what = text.substr(0, equals);
  std::string_view action = text.substr(equals + 1);
  if (const auto hash = what.find('#'); hash != std::string_view::npos) {
    std::string_view number = what.substr(hash + 1);
    const bool open = !number.empty() && number.back() == '+';
    if (open) number.remove_suffix(1);
    if (!read_number(number, rule.first) || rule.first < 1) return false;
    rule.last = open ? 0 : rule.first;
    what = what.substr(0, hash);
  }
  if (const auto at = what.find('@'); at != std::string_view::npos) {
    long rank = 0;
    if (!read_number(what.substr(at + 1), rank)) return false;
    rule.rank = static_cast<int>(rank);
    what = what.substr(0, at);
  }
  rule.function = what;
  std::string_view value;
  if (const auto colon = action.find(':'); colon != std::string_view::npos) {
    value = action.substr(colon + 1);
    action = action.substr(0, colon);
  }
  if (action == "hang" || action == "kill" || action == "stop") {
    rule.action = action == "hang" ? Action::hang : action == "kill" ? Action::kill : Action::stop;
    return value.empty() && !what.empty();
  }
  rule.action = action == "fail" ? Action::fail : Action::delay;
  return (action == "fail" || action == "delay") && read_number(value, rule.value) && !what.empty();
}

bool Faults::add(std::string_view text) {
  std::vector<Rule> added;
  while (!text.empty()) {
    const auto end = text.find(';');
    if (!read(text.substr(0, end), added.emplace_back())) return false;
    text = end == std::string_view::npos ? "" : text.substr(end + 1);
  }
  const std::lock_guard lock(mutex_);
  rules_.insert(rules_.end(), added.begin(), added.end());
  any_ = !rules_.empty();
  return true;
}

void Faults::clear() {
  const std::lock_guard lock(mutex_);
  rules_.clear();
  any_ = false;
  ++clearings_;
  cleared_.notify_all();
}

std::optional<CUresult> Faults::meet(std::string_view function, int rank) {
  if (!any_) return std::nullopt;
  std::unique_lock lock(mutex_);
  long delay_ms = 0;
  bool hang = false;
  std::optional<CUresult> result;
  for (Rule& rule : rules_) {
    if (rule.function != function || (rule.rank && *rule.rank != rank)) continue;
    ++rule.calls;
    if (rule.calls < rule.first || (rule.last != 0 && rule.calls > rule.last)) continue;
    switch (rule.action) {
      case Action::fail: result = static_cast<CUresult>(rule.value); break;
      case Action::delay: delay_ms += rule.value; break;
      case Action::hang: hang = true; break;
      case Action::kill: kill(getpid(), SIGKILL); break;
      case Action::stop: kill(getpid(), SIGSTOP); break;
    }
  }
  if (hang) cleared_.wait(lock, [&, before = clearings_] { return clearings_ != before; });
  lock.unlock();
  if (delay_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
  return result;
}

Faults& faults() {
  static Faults& instance = *new Faults;  // streams' threads outlive the program's objects
  return instance;
}

int current_rank() {
  if (thread_rank) return *thread_rank;
  static const int process_rank = [] {
    for (const char* name : {"FAKE_CUDA_RANK", "PMIX_RANK", "PMI_RANK", "RANK"}) {
      long rank = 0;
      if (const char* text = getenv(name); text != nullptr && read_number(text, rank)) return static_cast<int>(rank);
    }
    return -1;
  }();
  return process_rank;
}

extern "C" {
int fake_cuda_add_faults(const char* rules) { return faults().add(rules) ? 1 : 0; }
void fake_cuda_clear_faults() { faults().clear(); }
void fake_cuda_set_rank(int rank) {
  thread_rank = rank;
  if (rank == -1) thread_rank.reset();
}
}

}  // namespace fake_cuda
