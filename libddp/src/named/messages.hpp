// Messages between ranks and rank 0 about their named operations.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include <ddp/error.hpp>
#include <ddp/named_operations.hpp>

#include "base/message_fields.hpp"

namespace ddp::named {

inline constexpr std::size_t kMostNameBytes = 4096;

/// NamedKind and what only the engine asks for.
enum class Kind : std::uint8_t {
  all_reduce,
  all_gather,
  broadcast,
  all_to_all,
  reduce_scatter,
  barrier,
  add_set,
  remove_set
};
inline Kind kind_of(NamedKind kind) noexcept { return static_cast<Kind>(kind); }

/// What belongs together within a set.
struct Key {
  Kind kind = Kind::barrier;
  std::string name{};
  std::uint64_t number = 0;  ///< as NamedCall::number; in a cycle: counts in it
  friend auto operator<=>(const Key&, const Key&) = default;
};
/// What all operations without a name that are counted together have in common.
inline Key series_of(const Key& key) { return {.kind = key.kind, .name = key.name}; }
struct KeyHash {
  std::size_t operator()(const Key& key) const noexcept {
    return std::hash<std::string>{}(key.name) + static_cast<std::size_t>(key.kind) + key.number * 31;
  }
};
constexpr auto description(const Key*) {
  return base::describe({"key of a named operation"}, base::fields<&Key::kind>(base::kUpTo<Kind::remove_set>),
                        base::fields<&Key::name>(base::Rule{.longest = kMostNameBytes}), base::fields<&Key::number>());
}

struct TensorFacts {
  DType dtype = DType::float32;
  std::vector<std::int64_t> shape{};
  friend bool operator==(const TensorFacts&, const TensorFacts&) = default;
};
constexpr auto description(const TensorFacts*) {
  return base::describe({"facts of a tensor"}, base::fields<&TensorFacts::dtype>(base::kUpTo<DType::complex128>),
                        base::fields<&TensorFacts::shape>(base::kCount));
}

/// What must fit together, besides the key.
struct Facts {
  std::vector<TensorFacts> tensors{};
  ReduceOp op = ReduceOp::sum;
  DeviceType device = DeviceType::cpu;
  int root = 0;
  double prescale = 1;
  double postscale = 1;
  std::vector<int> ranks{};  ///< of add_set; of remove_set its number
  friend bool operator==(const Facts&, const Facts&) = default;
};
constexpr auto description(const Facts*) {
  return base::describe({"facts of a named operation"}, base::fields<&Facts::tensors>(),
                        base::fields<&Facts::op>(base::kUpTo<ReduceOp::product>),
                        base::fields<&Facts::device>(base::kUpTo<DeviceType::cuda>), base::fields<&Facts::root>(),
                        base::fields<&Facts::prescale, &Facts::postscale>(), base::fields<&Facts::ranks>(base::kCount));
}

struct Request {
  Key key{};
  Facts facts{};
};
constexpr auto description(const Request*) {
  return base::describe({"named operation"}, base::fields<&Request::key, &Request::facts>());
}

// From a rank.

/// Operations that it has got. Epochs count a set's changes between negotiation (even) and a learned order (odd).
struct Announcement {
  int set = 0;
  std::uint64_t epoch = 0;
  std::vector<Request> requests{};
};
constexpr auto description(const Announcement*) {
  return base::describe({"announcement of named operations"}, base::fields<&Announcement::set>(base::kCount),
                        base::fields<&Announcement::epoch, &Announcement::requests>());
}
struct Joined {
  std::uint8_t nothing = 0;
};
constexpr auto description(const Joined*) {
  return base::describe({"announcement of a join"}, base::fields<&Joined::nothing>());
}
/// It takes part in nothing any more, and why.
struct Leaving {
  ErrorDetail error{};
};
constexpr auto description(const Leaving*) {
  return base::describe({"announcement of a rank's end"}, base::fields<&Leaving::error>());
}
/// It has waited in a set's learned order: all shall leave that, so that rank 0 sees what is missing.
struct Stuck {
  int set = 0;
  std::uint64_t epoch = 0;
};
constexpr auto description(const Stuck*) {
  return base::describe({"report of a rank that waits"}, base::fields<&Stuck::set>(base::kCount),
                        base::fields<&Stuck::epoch>());
}
/// What it does while others wait for it, as text, to Question `number`.
struct Doing {
  std::uint64_t number = 0;
  std::string text{};
};
constexpr auto description(const Doing*) {
  return base::describe({"what a rank does"}, base::fields<&Doing::number>(),
                        base::fields<&Doing::text>(base::Rule{.longest = kMostNameBytes}));
}
/// What a rank did with one operation, in microseconds since the epoch by its clock.
struct Span {
  Key key{};
  std::int64_t submitted = 0;
  std::int64_t agreed = 0;   ///< on which rank takes part, and when
  std::int64_t started = 0;  ///< no other operation of the set was before it any more
  std::int64_t packed = 0;   ///< the exchange began
  std::int64_t exchanged = 0;
  std::int64_t done = 0;
  bool fused = false;  ///< it shared the exchange with others
  bool first = false;  ///< of those
};
constexpr auto description(const Span*) {
  return base::describe(
      {"span of a named operation"}, base::fields<&Span::key>(),
      base::fields<&Span::submitted, &Span::agreed, &Span::started, &Span::packed, &Span::exchanged, &Span::done>(),
      base::fields<&Span::fused, &Span::first>());
}
/// For the timeline: at once where recording begins or ends, else now and then.
struct Spans {
  std::int64_t asked = 0;  ///< rank 0's clock in the Recording that this answers; 0: none
  std::int64_t now = 0;
  bool last = false;          ///< the rank does not record any more
  std::uint64_t dropped = 0;  ///< that are missing
  std::vector<Span> spans{};
};
constexpr auto description(const Spans*) {
  return base::describe({"spans of named operations"}, base::fields<&Spans::asked, &Spans::now>(),
                        base::fields<&Spans::last, &Spans::dropped, &Spans::spans>());
}
struct ToCoordinator {
  std::variant<Announcement, Joined, Leaving, Stuck, Doing, Spans> content{};
};
constexpr auto description(const ToCoordinator*) {
  return base::describe({"message of a rank about named operations", 1}, base::fields<&ToCoordinator::content>());
}

// From rank 0.

struct Failure {
  Key key{};
  ErrorDetail error{};
};
constexpr auto description(const Failure*) {
  return base::describe({"failure of a named operation"}, base::fields<&Failure::key, &Failure::error>());
}
/// What is ready, in the order in which all ranks of the set take it; the requests of one list go together.
struct Decision {
  int set = 0;
  std::vector<std::vector<Request>> batches{};  ///< facts only for joined ranks
  std::vector<Failure> failures{};
};
constexpr auto description(const Decision*) {
  return base::describe({"decision on named operations"}, base::fields<&Decision::set>(base::kCount),
                        base::fields<&Decision::batches, &Decision::failures>());
}
/// From now on the set takes these in turn, beginning with the first. What was announced and not decided is forgotten.
struct Learned {
  int set = 0;
  std::uint64_t epoch = 0;  ///< of the learned order
  std::vector<std::vector<Key>> batches{};
  std::vector<std::int64_t> eager{};  ///< of each batch: bytes that go with what ranks tell each other; 0: none do
  std::uint64_t fusion_bytes = 0;     ///< most of one exchange of several batches
};
constexpr auto description(const Learned*) {
  return base::describe({"learned order of named operations"}, base::fields<&Learned::set>(base::kCount),
                        base::fields<&Learned::epoch, &Learned::batches>(), base::fields<&Learned::eager>(base::kCount),
                        base::fields<&Learned::fusion_bytes>());
}
struct AllJoined {
  int last = 0;
};
constexpr auto description(const AllJoined*) {
  return base::describe({"end of a join"}, base::fields<&AllJoined::last>(base::kCount));
}
/// Nothing goes on any more.
struct Ended {
  ErrorDetail error{};
};
constexpr auto description(const Ended*) {
  return base::describe({"end of named operations"}, base::fields<&Ended::error>());
}
/// Others wait for this rank: what does it do?
struct Question {
  std::uint64_t number = 0;
};
constexpr auto description(const Question*) {
  return base::describe({"question what a rank does"}, base::fields<&Question::number>());
}
/// Ranks are to send their Spans from now on, or no more.
struct Recording {
  bool on = false;
  std::int64_t now = 0;  ///< by rank 0's clock
};
constexpr auto description(const Recording*) {
  return base::describe({"request for a timeline"}, base::fields<&Recording::on, &Recording::now>());
}
struct FromCoordinator {
  std::variant<Decision, Learned, AllJoined, Ended, Stuck, Question, Recording> content{};  ///< Stuck: as it came
};
constexpr auto description(const FromCoordinator*) {
  return base::describe({"answer about named operations", 1}, base::fields<&FromCoordinator::content>());
}

}  // namespace ddp::named
