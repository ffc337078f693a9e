// What named operations wait for when they wait too long: rank 0 reports it, and asks the missing ranks what they do
// instead. Those answer by a thread of the library, as their program does not get on.
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/files.hpp"
#include "base/library_search.hpp"
#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "base/message.hpp"
#include "diagnostics/stacks/proc_stack.hpp"
#include "diagnostics/stacks/stack_tools.hpp"
#include "flight/flight_memory.hpp"
#include "flight/flight_view.hpp"
#include "named/comparison.hpp"
#include "named/engine.hpp"

namespace ddp::named {
namespace {

// For a rank to say what it does; py-spy takes some of a second of it.
constexpr std::chrono::seconds kToAnswer{3};
constexpr std::chrono::seconds kMore{1};
// For all answers.
constexpr std::chrono::seconds kToHear{5};

/// This process's line of Python, by py-spy where that is installed; else empty.
std::string python_line() {
  // not getenv(): the program's threads may be changing its environment
  const std::string all = base::read_file("/proc/self/environ").value_or(std::string{});
  std::vector<std::string> environment;
  std::string path = "/bin:/usr/bin";
  for (std::size_t at = 0; at < all.size(); at += environment.back().size() + 1) {
    environment.emplace_back(all.c_str() + at);
    if (environment.back().starts_with("PATH=")) path = environment.back().substr(5);
  }
  const std::string prefix = base::python_prefix();
  const std::string folder = prefix.empty() ? prefix : prefix + "/bin";
  auto tools = diagnostics::StackTools::find(folder, path, std::move(environment));
  if (tools.py_spy.empty()) return {};
  tools.gdb.clear();
  const auto stack = diagnostics::read_stack(tools, ::getpid(), Deadline::after(kToAnswer));
  for (const std::string& note : stack.notes) base::log(base::LogLevel::debug, "{}", note);
  return stack.tool == "py-spy" ? diagnostics::main_frames(stack.text) : std::string{};
}

}  // namespace

struct Engine::Inquiry {
  std::uint64_t number = 0;
  Deadline limit = Deadline::after(kToHear);
  std::set<int> due{};  ///< who has not answered
  std::map<int, std::string> answers{};

  std::string answer_of(int rank) const {
    const auto found = answers.find(rank);
    return fmt::format("rank {} {}", rank, found == answers.end() ? "does not answer" : found->second);
  }
};

std::optional<Deadline> Engine::report_stalls(const Lock& lock) {
  const auto oldest = coordinator_->oldest();
  if (!oldest || end_) {
    inquiry_.reset();
    return std::nullopt;
  }
  const auto now = Deadline::Clock::now();
  const auto since = reported_ ? std::max(*reported_, *oldest) : *oldest;
  const bool reports = options_.stall_check.count() > 0;
  auto overdue = coordinator_->overdue(now - limit_);
  if (!overdue && (!reports || now - since < options_.stall_check)) {
    inquiry_.reset();
    const Deadline end{*oldest + limit_};
    return reports ? earlier(end, Deadline{since + options_.stall_check}) : end;
  }
  const auto limit = now - (reports ? std::min(options_.stall_check, limit_) : limit_);
  const std::set<int> awaited = coordinator_->awaited(limit);
  if (!inquiry_) ask(lock, awaited);
  if (!inquiry_->due.empty() && !inquiry_->limit.expired()) return inquiry_->limit;
  const auto inquiry = std::move(inquiry_);
  if (overdue) {
    for (const int rank : overdue->ranks) overdue->cause += "; " + inquiry->answer_of(rank);
    const Error error{std::move(*overdue)};
    tell_end(lock, error);
    end_all(lock, error);
    return std::nullopt;
  }
  reported_ = now;
  const auto seconds = options_.stall_check.count() / 1000;
  for (const std::string& line : coordinator_->stalled(limit))
    base::log(base::LogLevel::warning, "for more than {} s, {}", seconds, line);
  for (const int rank : awaited) base::log(base::LogLevel::warning, "others wait: {}", inquiry->answer_of(rank));
  return earlier(Deadline{*oldest + limit_}, Deadline::after(options_.stall_check));
}

std::optional<Deadline> Engine::look_after_first(const Lock& lock) {
  if (first_due_ && !first_due_->expired()) return first_due_;
  PendingPointer oldest;
  for (const auto& [number, set] : sets_) {
    if (set->order) continue;  // whose tokens have deadlines
    for (const auto& [key, pending] : set->active) {
      const bool waits = pending->phase == Pending::Phase::announced;
      if (waits && (!oldest || pending->announced < oldest->announced)) oldest = pending;
    }
  }
  first_due_.reset();
  if (!oldest || end_) return std::nullopt;
  first_due_ = Deadline{oldest->announced + limit_ + 2 * kToHear};  // by then it would have asked, and failed it
  if (!first_due_->expired()) return first_due_;
  const int first = parent_.global_ranks().front();
  const Error error{{.code = ErrorCode::timeout,
                     .attempted = name_of(oldest->subject->request.key),
                     .cause = fmt::format("rank {}, which decides what is ready, does not answer", first),
                     .ranks = {first},
                     .hint = "see what it does: ddp-info status --stacks"}};
  tell_end(lock, error);
  end_all(lock, error);
  return std::nullopt;
}

void Engine::ask(const Lock& lock, const std::set<int>& ranks) {
  inquiry_ = std::make_shared<Inquiry>();
  inquiry_->number = ++inquiries_;
  inquiry_->due = ranks;
  const auto& world = parent_.global_ranks();
  const Bytes message = base::encode(FromCoordinator{Question{.number = inquiries_}});
  for (const int rank : ranks) {
    if (rank == own_) continue;
    ++counts_.messages;
    star_.send(static_cast<int>(std::find(world.begin(), world.end(), rank) - world.begin()), message);
  }
  if (ranks.contains(own_)) answer(lock, {.number = inquiries_});
}

void Engine::take_answer(const Lock& /*lock*/, int rank, Doing doing) {
  if (!inquiry_ || inquiry_->number != doing.number || inquiry_->due.erase(rank) == 0) return;
  inquiry_->answers.insert_or_assign(rank, std::move(doing.text));
  star_.wake();
}

/// "is in all_reduce #3 of group 'world'; it submitted broadcast 'x' last, 7 s ago".
std::string Engine::last_operation(const Lock& /*lock*/) const {
  std::vector<std::string> facts;
  const auto view = flight::read_flight_memory(flight::FlightMemory::process().bytes());
  const auto is_own = [this](const flight::FlightView::Call& call) {
    return std::any_of(sets_.begin(), sets_.end(),
                       [&](const auto& each) { return each.second->group.name() == call.group; });
  };
  if (view) {
    const auto call = std::find_if_not(view->unfinished.begin(), view->unfinished.end(), is_own);
    if (call != view->unfinished.end())
      facts.push_back(fmt::format("has been in {} for {:.0f} s", flight::describe(*call), call->age_s));
  }
  if (last_since_) {
    const std::chrono::duration<double> ago = Deadline::Clock::now() - *last_since_;
    facts.push_back(fmt::format("submitted {} last, {:.0f} s ago", name_of(last_key_), ago.count()));
  } else {
    facts.emplace_back("has submitted no named operation");
  }
  return fmt::format("{}", fmt::join(facts, "; it "));
}

void Engine::answer(const Lock& lock, Question question) {
  if (answers_) return;                          // an older one, which takes its time
  if (answering_.joinable()) answering_.join();  // it has given its answer
  answers_ = true;
  answering_ = base::start_thread([this, question, last = last_operation(lock)] {
    std::string line;
    try {
      // py-spy may lie in a file system that hangs
      line = base::abandonable_call(python_line, Deadline::after(kToAnswer + kMore)).value_or(std::string{});
    } catch (const std::exception& problem) {
      base::log(base::LogLevel::debug, "this process's line of Python cannot be read: {}", problem.what());
    }
    const Lock own_lock(mutex_);
    answers_ = false;
    std::string text = line.empty() ? last : fmt::format("is in {}; it {}", line, last);
    if (text.size() > kMostNameBytes) text.resize(kMostNameBytes);
    send(own_lock, {Doing{.number = question.number, .text = std::move(text)}});
  });
}

}  // namespace ddp::named
