// Survivors agree on one verdict, whatever the order in which messages arrive, and whoever dies meanwhile: in all
// orders of a small group, and in some thousand of larger ones.
#include "collectives/failure_detector.hpp"

#include "support/sanitized.hpp"

namespace ddp::collectives {
namespace {

using Ranks = std::vector<int>;

/// Decides what happens next.
class Choices {
 public:
  virtual ~Choices() = default;
  virtual std::size_t choose(std::size_t options) = 0;
};

class RandomChoices final : public Choices {
 public:
  explicit RandomChoices(unsigned seed) : random_(seed) {}
  std::size_t choose(std::size_t options) override { return random_() % options; }

 private:
  std::mt19937 random_;
};

/// Goes through all there are, one after the other.
class AllChoices final : public Choices {
 public:
  std::size_t choose(std::size_t options) override {
    if (depth_ == path_.size()) path_.push_back({0, options});
    return path_[depth_++].first;
  }
  /// False after the last.
  bool advance() {
    depth_ = 0;
    while (!path_.empty() && ++path_.back().first == path_.back().second) path_.pop_back();
    return !path_.empty();
  }

 private:
  std::vector<std::pair<std::size_t, std::size_t>> path_;
  std::size_t depth_ = 0;
};

Error naming(Ranks ranks) {
  return Error{{.code = ErrorCode::peer_lost, .attempted = "a", .cause = "b", .ranks = std::move(ranks)}};
}

/// The members of a group, some of which have found verdicts, and the messages between them.
class Survivors {
 public:
  Survivors(int size, Ranks nodes, Choices& choices) : choices_(choices), members_(static_cast<std::size_t>(size)) {
    group_.nodes = std::move(nodes);
    group_.global_ranks.resize(members_.size());
    std::iota(group_.global_ranks.begin(), group_.global_ranks.end(), 0);
  }

  void kill(int rank) { of(rank).alive = false; }
  /// Those may be given up by others though they live.
  void make_silent(int rank) { of(rank).silent = true; }
  void find(int rank, const Ranks& named) {
    proposed_.insert(named);
    of(rank).way.emplace(group_, naming(named), absent_);
    go_on(rank);
  }
  /// Those that all know to be dead.
  void note_dead() { absent_ = dead(); }
  Ranks dead() const {
    Ranks ranks;
    for (int rank = 0; rank < group_.size(); ++rank) {
      if (!of(rank).alive) ranks.push_back(rank);
    }
    return ranks;
  }

  /// Until nothing more happens; those of @p mortal may die at any time.
  void run(Ranks mortal) {
    while (!messages_.empty()) {
      std::vector<Event> events;
      for (std::size_t i = 0; i < messages_.size(); ++i) {
        events.push_back({Event::arrival, i});
        const Message& message = messages_[i];
        if (!of(message.from).alive) events.push_back({Event::loss, i});
        const bool waits = message.kind == Message::proposal && message.awaited && of(message.from).alive;
        if (waits && of(message.to).silent) events.push_back({Event::patience_ends, i});
      }
      for (std::size_t i = 0; i < mortal.size(); ++i) events.push_back({Event::death, i});
      const Event event = events[choices_.choose(events.size())];
      if (event.kind == Event::death) {
        kill(mortal[event.number]);
        mortal.erase(mortal.begin() + static_cast<std::ptrdiff_t>(event.number));
      } else if (event.kind == Event::patience_ends) {
        messages_[event.number].awaited = false;  // it may arrive all the same
        skip(messages_[event.number].from);
      } else {
        const Message message = messages_[event.number];
        messages_.erase(messages_.begin() + static_cast<std::ptrdiff_t>(event.number));
        event.kind == Event::loss ? lose(message) : deliver(message);
      }
    }
  }

  /// The verdict of all that live, who find their own where nobody has told them; nothing if they differ.
  std::optional<Ranks> common(const Ranks& mortal) {
    for (int rank = 0; rank < group_.size(); ++rank) {
      if (of(rank).alive && !of(rank).record.verdict()) find(rank, dead());
      run(mortal);
    }
    std::set<Ranks> verdicts;
    for (const Member& member : members_) {
      if (!member.alive) continue;
      if (!member.record.verdict()) return std::nullopt;
      verdicts.insert(member.record.verdict()->ranks());
    }
    if (verdicts.size() != 1 || !proposed_.contains(*verdicts.begin())) return std::nullopt;
    return *verdicts.begin();
  }

 private:
  struct Member {
    bool alive = true;
    bool silent = false;
    VerdictRecord record;
    std::optional<Agreement> way;
  };
  struct Message {
    enum Kind { proposal, answer, told } kind;
    int from;
    int to;
    ProposalAnswer content;
    bool awaited = true;  ///< a proposal whose sender has not given it up
  };
  struct Event {
    enum Kind { arrival, loss, patience_ends, death } kind;
    std::size_t number;
  };

  Member& of(int rank) { return members_[static_cast<std::size_t>(rank)]; }
  const Member& of(int rank) const { return members_[static_cast<std::size_t>(rank)]; }

  void go_on(int rank) {
    Member& own = of(rank);
    while (!own.record.verdict()) {
      const auto witness = own.way->next();
      if (!witness) {
        own.record.decide(own.way->verdict());
        for (int other = 0; other < group_.size(); ++other) {
          if (other == rank || !of(other).alive || of(other).record.verdict()) continue;
          messages_.push_back({Message::told, rank, other, {.decided = true, .error = own.way->verdict()}});
        }
      } else if (*witness == rank) {
        own.way->pass(own.record.propose(own.way->verdict()));
      } else {
        messages_.push_back({Message::proposal, rank, *witness, {.decided = false, .error = own.way->verdict()}});
        return;
      }
    }
  }
  void skip(int rank) {
    if (!of(rank).alive) return;
    of(rank).way->skip();
    go_on(rank);
  }
  void deliver(const Message& message) {
    Member& receiver = of(message.to);
    switch (message.kind) {
      case Message::proposal:
        if (!receiver.alive) {
          if (message.awaited) skip(message.from);
          break;
        }
        {
          const ProposalAnswer answer = receiver.record.propose(message.content.error);
          if (message.awaited) messages_.push_back({Message::answer, message.to, message.from, answer});
        }
        break;
      case Message::answer:
        if (!receiver.alive || receiver.record.verdict()) break;
        receiver.way->pass(message.content);
        go_on(message.to);
        break;
      case Message::told:
        if (receiver.alive) receiver.record.decide(message.content.error);
    }
  }
  /// Of a sender that died.
  void lose(const Message& message) {
    if (message.kind == Message::answer) skip(message.to);
  }

  Choices& choices_;
  GroupMembers group_;
  std::vector<Member> members_;
  std::deque<Message> messages_;
  Ranks absent_;
  std::set<Ranks> proposed_;
};

TEST(VerdictAgreement, OfThreeSurvivorsHoldsInAllOrdersOfMessagesAndADeath) {
  AllChoices choices;
  long orders = 0;
  do {
    Survivors group(3, {}, choices);
    const auto victim = static_cast<int>(choices.choose(3));
    group.find(1, {7});
    group.find(2, {8});
    group.run({victim});
    ASSERT_TRUE(group.common({})) << "order " << orders;
    ++orders;
  } while (choices.advance());
  EXPECT_GT(orders, 10'000);
}

struct Trial {
  int size;
  Ranks nodes{};
  Ranks mortal{};
  Ranks dead{};
  Ranks silent{};
};

/// Of the first eight living witnesses one always stays, and is heard by all.
Trial trial_of(std::mt19937& random) {
  const auto below = [&random](int limit) { return static_cast<int>(random() % static_cast<unsigned>(limit)); };
  Trial trial{.size = 2 + below(14)};
  const int node_count = 1 + below(4);
  for (int rank = 0; rank < trial.size; ++rank) trial.nodes.push_back(below(node_count));
  Ranks order(static_cast<std::size_t>(trial.size));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  int troubled = below(std::min(trial.size, Agreement::kWitnesses));
  for (; troubled > 0; --troubled) {
    (below(3) == 0 ? trial.silent : trial.mortal).push_back(order.back());
    order.pop_back();
  }
  for (int dead = below(static_cast<int>(order.size())); dead > 0; --dead) {
    trial.dead.push_back(order.back());
    order.pop_back();
  }
  return trial;
}

TEST(VerdictAgreement, HoldsThoughMembersDieOrAreSilentMeanwhile) {
  std::mt19937 random{3};  // NOLINT(cert-msc51-cpp): the same in every run
  for (int number = 0; number < ::ddp::test::cases(5000); ++number) {
    const Trial trial = trial_of(random);
    RandomChoices choices(static_cast<unsigned>(number));
    Survivors group(trial.size, trial.nodes, choices);
    for (const int rank : trial.dead) group.kill(rank);
    group.note_dead();
    for (const int rank : trial.silent) group.make_silent(rank);
    for (int rank = 0; rank < trial.size; ++rank) {
      const bool lives = std::find(trial.dead.begin(), trial.dead.end(), rank) == trial.dead.end();
      // each has seen something else
      if (lives && random() % 3 != 0) group.find(rank, {rank, 100});
    }
    group.run(trial.mortal);
    ASSERT_TRUE(group.common(trial.mortal)) << "trial " << number << " of " << trial.size << " ranks";
  }
}

/// Whom a rank asks, if all answer.
Ranks witnesses(const GroupMembers& members, const Ranks& absent) {
  Agreement agreement(members, naming({5}), absent);
  Ranks ranks;
  while (const auto next = agreement.next()) {
    ranks.push_back(*next);
    agreement.pass({.decided = false, .error = agreement.verdict()});
  }
  return ranks;
}

TEST(VerdictAgreement, WitnessesAreOfAllNodes) {
  GroupMembers members;
  members.global_ranks.resize(12);
  EXPECT_EQ(witnesses(members, {}), (Ranks{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(witnesses(members, {1, 4}), (Ranks{0, 2, 3, 5, 6, 7, 8, 9}));
  members.nodes = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 2};
  EXPECT_EQ(witnesses(members, {}), (Ranks{0, 8, 10, 1, 9, 11, 2, 3}));
  members.global_ranks.resize(2);
  members.nodes = {0, 1};
  EXPECT_EQ(witnesses(members, {0}), Ranks{1});
}

TEST(VerdictAgreement, EndsAtAWitnessThatKnowsTheVerdict) {
  GroupMembers members;
  members.global_ranks.resize(4);
  Agreement agreement(members, naming({3}), {3});
  agreement.pass({.decided = true, .error = naming({1, 3})});
  EXPECT_FALSE(agreement.next());
  EXPECT_EQ(agreement.verdict().ranks(), (Ranks{1, 3}));
}

TEST(VerdictRecord, KeepsTheFirstProposalUntilTheVerdict) {
  VerdictRecord record;
  EXPECT_EQ(record.propose(naming({1})).error.ranks(), Ranks{1});
  EXPECT_EQ(record.propose(naming({2})).error.ranks(), Ranks{1});
  EXPECT_FALSE(record.verdict()) << "a proposal is none";
  EXPECT_EQ(record.decide(naming({3})).ranks(), Ranks{3});
  EXPECT_EQ(record.decide(naming({4})).ranks(), Ranks{3});
  const ProposalAnswer answer = record.propose(naming({2}));
  EXPECT_TRUE(answer.decided);
  EXPECT_EQ(answer.error.ranks(), Ranks{3});
}

}  // namespace
}  // namespace ddp::collectives
