// A Coordinator whose agents are the test itself, over socket pairs, and whose clock the test moves.
#pragma once

#include <fmt/ranges.h>

#include "base/process.hpp"
#include "coordinator/coordinator.hpp"

namespace ddp::launcher::test {

using Texts = std::vector<std::string>;

inline constexpr int kRanksPerNode = 2;
inline const control::AttemptCleaned kCleaned{.epoch = 0};

/// "SignalRanks SIGTERM groups", "EndAttempt 10000", "Finish 143".
inline std::string describe(const control::Message& message) {
  std::string text = control::name_of(message);
  if (const auto* order = std::get_if<control::SignalRanks>(&message)) {
    text += fmt::format(" {}{}{}", base::signal_name(order->signal), order->groups ? " groups" : "",
                        order->may_have_reached_ranks ? " by Slurm" : "");
  } else if (const auto* end = std::get_if<control::EndAttempt>(&message)) {
    text += fmt::format(" {}", end->drain_ms);
  } else if (const auto* resting = std::get_if<control::Resting>(&message)) {
    text += resting->rests ? " yes" : " no";
  } else if (const auto* taken = std::get_if<control::JoinTaken>(&message)) {
    text += taken->spare ? " as a spare" : "";
  } else if (const auto* change = std::get_if<control::NodesChange>(&message)) {
    text += fmt::format(" {}{}", change->waiting, change->pending ? " pending" : "");
  } else if (const auto* kill = std::get_if<control::KillRanks>(&message)) {
    text += fmt::format(" {}", fmt::join(kill->local_ranks, ","));
  } else if (const auto* finish = std::get_if<control::Finish>(&message)) {
    text += fmt::format(" {}", finish->exit_status);
  }
  return text;
}

inline control::Hello hello(const std::string& host) {
  return {.version = "1.0",
          .run_id = "run",
          .host = host,
          .addresses = {"10.0.0.1"},
          .order = -1,
          .nproc = kRanksPerNode,
          .role = "default",
          .program = "train.py",
          .pid = 7};
}

inline control::RankEnded rank_ended(int local_rank, int code, int epoch = 0) {
  return {.epoch = epoch, .local_rank = local_rank, .end = {.code = code, .by_signal = false, .core_dumped = false}};
}

/// Nodes a and b of two ranks each, whose agents have links 0 and 1.
class CoordinatorJob {
 public:
  CoordinatorJob() {
    options.membership = {.min_nodes = 2,
                          .max_nodes = 2,
                          .run_id = "run",
                          .version = "1.0",
                          .join_timeout = 600s,
                          .last_call = 30s,
                          .replaceable = false};
    options.failure_grace = 0ms;
    options.shutdown_timeout = 30s;
    options.ending_signals = {SIGTERM, SIGINT};
    options.forwarded_signals = {SIGUSR1};
  }

  CoordinatorOptions options;  ///< until connect()
  bool own_agent = false;      ///< that of link 0 is in the coordinator's process; until connect()
  Texts notes;
  Texts starts;  ///< "2 of 4 on 2"
  Texts descriptions;
  std::vector<std::pair<int, control::ConsoleOutput>> outputs;  ///< by link
  Texts restarts;                                               ///< "attempt 0, restart 1"
  Texts goings;                                                 ///< "generation 1: 1 of 2, with c"
  Texts inputs;                                                 ///< "wanted", "taken 3"
  Texts freed;                                                  ///< "n1 of 7"

  Coordinator& coordinator() { return *coordinator_; }

  /// A connection of an agent that has not said anything yet. @return its link
  int connect() {
    if (!coordinator_) make_coordinator();
    control::ConnectionPair pair = control::make_pair();
    control::Connection agent{std::move(pair.first), "an agent"};
    own_agent&& agents_.empty() ? coordinator_->add_own(std::move(agent)) : coordinator_->add(std::move(agent));
    agents_.emplace_back(std::in_place, std::move(pair.second), "the coordinator");
    return static_cast<int>(agents_.size()) - 1;
  }
  void turn() {
    loop_.run_once(Deadline{Deadline::Clock::now()});
    coordinator_->time_passed();
  }
  void pass(std::chrono::milliseconds time) {
    now_.steady += time;
    now_.wall += time;
    turn();
  }
  void say(int link, const control::Message& message) {
    agents_.at(static_cast<std::size_t>(link))->send(message);
    turn();
  }
  /// The agent shows life.
  void beat(int link) { agents_.at(static_cast<std::size_t>(link))->beat(); }
  void lose(int link) {
    agents_.at(static_cast<std::size_t>(link)).reset();
    turn();
  }
  std::vector<control::Message> heard(int link) { return agents_.at(static_cast<std::size_t>(link))->receive(); }
  Texts heard_texts(int link) {
    Texts texts;
    for (const control::Message& message : heard(link)) texts.push_back(describe(message));
    return texts;
  }
  template <class Kind>
  Kind heard_one(int link) {
    const std::vector<control::Message> messages = heard(link);
    EXPECT_EQ(messages.size(), 1U);
    const Kind* kind = messages.empty() ? nullptr : std::get_if<Kind>(&messages.back());
    EXPECT_NE(kind, nullptr);
    return kind != nullptr ? *kind : Kind{};
  }
  bool connected(int link) {
    heard(link);
    return agents_.at(static_cast<std::size_t>(link))->open();
  }
  void forget_all() {
    for (auto& agent : agents_) {
      if (agent) agent->receive();
    }
  }

  // What happens up to a phase, with all messages read.

  /// Only a has joined; b is connected.
  void gather() {
    connect();
    connect();
    say(0, hello("a"));
  }
  /// b is prepared.
  void prepare() {
    gather();
    say(1, hello("b"));
    say(1, control::AttemptPrepared{.epoch = 0, .store_port = 0});
    forget_all();
  }
  void run() {
    prepare();
    say(0, control::AttemptPrepared{.epoch = 0, .store_port = 29500});
    forget_all();
  }
  /// All ranks have ended with @p code.
  void clean(int code = 0) {
    run();
    end_ranks(0, code);
    end_ranks(1, code);
    forget_all();
  }
  void finish() {
    clean();
    say(0, control::AttemptCleaned{.epoch = 0});
    say(1, control::AttemptCleaned{.epoch = 0});
    forget_all();
  }
  void end_ranks(int link, int code, int epoch = 0) {
    for (int local = 0; local < kRanksPerNode; ++local) say(link, rank_ended(local, code, epoch));
  }
  /// All ranks of a and b end by SIGTERM's order, and both have cleaned up.
  void end_generation(int epoch = 0) {
    for (const int link : {0, 1}) end_ranks(link, 143, epoch);
    forget_all();
    for (const int link : {0, 1}) say(link, control::AttemptCleaned{.epoch = epoch});
  }

 private:
  void make_coordinator() {
    CoordinatorEvents events{
        .detail = [](const std::string&) {},
        .note = [this](const std::string& text) { notes.push_back(text); },
        .joined = [](int, int) {},
        .started = [this](int started, int size,
                          int nodes) { starts.push_back(fmt::format("{} of {} on {}", started, size, nodes)); },
        .described = [this](const std::string& text) { descriptions.push_back(text); },
        .output = [this](int link, const control::ConsoleOutput& output) { outputs.emplace_back(link, output); },
        .restarting =
            [this](const JobOutcome&, int attempt, int restart) {
              restarts.push_back(fmt::format("attempt {}, restart {}", attempt, restart));
            }};
    events.going_on = [this](const JobOutcome&, int generation, const RosterChange& change) {
      goings.push_back(fmt::format("generation {}: {} of {}{}{}", generation, change.survivors, change.before,
                                   change.joined.empty() ? "" : ", with ", fmt::join(change.joined, ", ")));
      for (const std::string& host : change.parked) goings.back() += fmt::format(", {} waits", host);
      if (!change.asked_by.empty()) goings.back() += ", by " + change.asked_by;
      for (const std::string& host : change.left) goings.back() += ", without " + host;
    };
    events.input_wanted = [this](bool anew) { inputs.push_back(anew ? "wanted anew" : "wanted"); };
    events.input_taken = [this](std::int64_t bytes) { inputs.push_back(fmt::format("taken {}", bytes)); };
    events.node_freed = [this](const std::string& allocation, const std::string& node) {
      freed.push_back(fmt::format("{} of {}", node, allocation));
    };
    events.waiting_hint = [] { return std::string("look at b"); };
    coordinator_.emplace(options, loop_, std::move(events), [this] { return now_; });
  }

  stream::EventLoop loop_;
  Moment now_ = Moment::now();
  std::optional<Coordinator> coordinator_;
  std::vector<std::optional<control::Connection>> agents_;  ///< by link
};

}  // namespace ddp::launcher::test
