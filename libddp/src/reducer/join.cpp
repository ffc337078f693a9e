#include <algorithm>
#include <exception>

#include <fmt/format.h>

#include <ddp/broadcast_coalesced.hpp>
#include <ddp/join.hpp>

#include "base/errors.hpp"
#include "base/log.hpp"
#include "reducer/options_check.hpp"
#include "reducer/reducer_impl.hpp"

namespace ddp {
namespace {

constexpr auto kJoining = "training on inputs of different length";
// An announcement: 0 from a rank that has run out of inputs, else 1 + event; plus the options, to compare them.
constexpr std::int32_t kOptions = 16;
constexpr int kManyShadows = 1000;  // as in PyTorch

std::int32_t code_of(const JoinOptions& options) {
  return kOptions * ((options.divide_by_initial_world_size ? 1 : 0) + (options.throw_on_early_termination ? 2 : 0));
}

}  // namespace

struct Join::Round {
  std::vector<std::int32_t> own = std::vector<std::int32_t>(1);
  std::vector<std::int32_t> all;
};

Join::Join(std::vector<Joinable*> joinables, JoinOptions options)
    : joinables_(std::move(joinables)), options_(options), exceptions_(std::uncaught_exceptions()) {
  if (!options_.enable) return;
  if (joinables_.empty()) base::throw_invalid_argument(kJoining, "there is nothing to join", "give a Joinable");
  group_ = joinables_.front()->join_group();
  last_ = group_->size() - 1;
  for (Joinable* const each : joinables_) {
    if (each->join_group().name() == group_->name()) continue;
    base::throw_invalid_argument(
        kJoining, fmt::format("groups '{}' and '{}' are joined", group_->name(), each->join_group().name()),
        "give Joinables of one group");
  }
  inside_ = true;
  try {
    for (; entered_ < joinables_.size(); ++entered_) joinables_[entered_]->enter_join(*this);
  } catch (...) {
    leave();
    throw;
  }
}

Join::~Join() {
  try {
    if (std::uncaught_exceptions() == exceptions_) finish();
  } catch (const std::exception& error) {
    base::log(base::LogLevel::error, "{}", error.what());
  }
  leave();
}

void Join::leave() noexcept {
  if (!inside_) return;
  inside_ = false;
  for (; entered_ > 0; --entered_) joinables_[entered_ - 1]->leave_join();
}

void Join::exchange(std::int32_t own) {
  read();
  round_ = std::make_shared<Round>();
  round_->own[0] = own + code_of(options_);
  round_->all.resize(static_cast<std::size_t>(group_->size()));
  under_way_ = group_->all_gather(round_->own, round_->all, {{}, round_});
}

void Join::read() {
  if (!under_way_) return;
  const auto done = std::exchange(under_way_, std::nullopt);
  try {
    done->wait_watched();
    check_round(*round_);
  } catch (...) {
    leave();  // the other ranks stop announcing, too
    throw;
  }
  active_.clear();
  for (std::size_t rank = 0; rank < round_->all.size(); ++rank) {
    const std::int32_t event = round_->all[rank] % kOptions;
    if (event == 0) continue;
    active_.push_back(static_cast<int>(rank));
    event_ = event;
  }
  if (!active_.empty()) last_ = active_.back();
}

void Join::check_round(const Round& round) const {
  std::vector<int> out;
  std::int32_t wanted = -1;
  for (std::size_t rank = 0; rank < round.all.size(); ++rank) {
    const std::int32_t code = round.all[rank];
    if (code % kOptions == 0) out.push_back(group_->global_ranks()[rank]);
    if (code / kOptions == round.all[0] / kOptions && (code % kOptions == 0 || wanted == -1 || wanted == code)) {
      if (code % kOptions != 0) wanted = code;
      continue;
    }
    throw Error{{.code = ErrorCode::mismatch,
                 .attempted = kJoining,
                 .cause = fmt::format("rank {} does something different from the ranks before it, or has other options",
                                      group_->global_ranks()[rank]),
                 .ranks = {group_->global_ranks()[rank]},
                 .hint = "take the same steps, and make the Join with the same options, on all ranks"}};
  }
  if (!options_.throw_on_early_termination || out.empty() || out.size() == round.all.size()) return;
  std::string who = format_ranks(out);
  who += out.size() == 1 ? " has" : " have";
  throw Error{{.code = ErrorCode::aborted,
               .attempted = kJoining,
               .cause = std::move(who) + " run out of inputs",
               .ranks = std::move(out),
               .hint = "this is what throw_on_early_termination asks for; without it the others continue"}};
}

void Join::announce(const Joinable& from, JoinEvent event) {
  if (!inside_ || &from != joinables_.front()) return;
  const bool first = round_ == nullptr;  // ranks with other options would wait for other things from here on
  exchange(1 + static_cast<std::int32_t>(event));
  if (first || options_.throw_on_early_termination) read();
}

int Join::active() {
  read();
  return static_cast<int>(active_.size());
}

int Join::highest_active() {
  read();
  return active_.empty() ? last_ : active_.back();
}

template <class Body>
void Join::leave_if_it_fails(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    // an error that names ranks has failed on all of them at the same place: they continue
    if (error.code() != ErrorCode::invalid_argument || error.ranks().empty()) leave();
    throw;
  } catch (...) {
    leave();
    throw;
  }
}

std::optional<JoinEvent> Join::shadow_next() {
  exchange(0);
  read();
  if (active_.empty()) return std::nullopt;
  const auto event = static_cast<JoinEvent>(event_ - 1);
  for (Joinable* const each : joinables_) each->shadow(event);
  return event;
}

void Join::finish() {
  if (!inside_) return;
  leave_if_it_fails([&] {
    for (int shadows = 1; shadow_next(); ++shadows) {
      if (shadows != kManyShadows) continue;
      base::log(base::LogLevel::warning, "{} steps of other ranks since this one has run out of inputs", shadows);
    }
  });
  end();
}

JoinEvent Join::shadow_step() {
  JoinEvent event{};
  leave_if_it_fails([&] {
    do {
      const std::optional<JoinEvent> next = inside_ ? shadow_next() : std::nullopt;
      if (!next) {
        base::throw_invalid_argument(kJoining, inside_ ? "all ranks have run out" : "the Join has ended",
                                     "repeat steps while other ranks have inputs");
      }
      event = *next;
    } while (event == JoinEvent::buffers);
  });
  return event;
}

void Join::end() {
  if (!inside_) return;
  leave_if_it_fails([&] {
    read();
    for (Joinable* const each : joinables_) each->finish_join(last_);
  });
  leave();
}

// A Reducer whose rank has run out of inputs repeats the others' collectives with zeros.

void Reducer::Impl::enter_join(Join& join) {
  const auto refuse = [](const char* cause, const char* hint) {
    base::throw_invalid_argument("joining ranks with inputs of different length", cause, hint);
  };
  if (join_ != nullptr) refuse("the Reducer is in another Join", "end that before");
  if (in_step_) refuse("the last step was not finalized", "call finalize() after each");
  if (options_.skip_all_reduce_unused) {
    refuse("with skip_all_reduce_unused ranks must agree on what is unused", "leave it off");
  }
  if (!join.options().divide_by_initial_world_size && options_.comm_hook) {
    refuse("hooks divide by the number of all ranks", "set divide_by_initial_world_size");
  }
  for (const std::size_t owner : list_.owners()) {
    const TensorView& value = parameters_[owner].value;
    if (join.options().divide_by_initial_world_size || value.device().type == DeviceType::cpu) continue;
    if (reducer::divides_on_device(value.dtype())) continue;
    refuse(
        "gradients on a CUDA device that are not floating-point numbers of 16 bits or more can be divided by the "
        "number of all ranks only",
        "set divide_by_initial_world_size");
  }
  join_ = &join;
}

void Reducer::Impl::shadow(JoinEvent event) {
  note_error([&] {
    switch (event) {
      case JoinEvent::step: return shadow_step();
      case JoinEvent::local_step: return shadow_local_step();
      case JoinEvent::buffers:
        return broadcast_coalesced(group_, join_buffers_, join_->highest_active(), options_.stream);
    }
  });
}

void Reducer::Impl::shadow_local_step() {
  synchronize_ = false;
  sparse_.forget();
  std::ranges::fill(sources_, nullptr);
  finish_local_step();
  reset_sources();
}

void Reducer::Impl::shadow_step() {
  if (broken_) base::throw_invalid_argument("repeating the step of other ranks", "an earlier one has failed", {});
  if (rebuild_due_) rebuild();
  synchronize_ = true;
  for (const std::size_t owner : list_.owners()) used_[owner].store(false, std::memory_order_relaxed);
  std::ranges::fill(sources_, nullptr);
  sparse_.forget();
  const bool counting = marks_.counting();
  shadow_ = true;
  start_step({});
  in_step_ = false;
  broken_ = true;
  reducer::StepEnd end(options_.comm_hook.get(), buckets_);
  for (const std::size_t owner : list_.owners()) {
    if (counting || !marks_.complete(owner)) contribute(owner, nullptr);
  }
  buckets_.finish_launching(group_);
  conclude({}, counting || options_.find_unused_parameters || asks_used_, false);
  if (counting) end_counting();
  end.complete = true;
  record(backward_started_);  // it had nothing to compute
  broken_ = false;
}

void Reducer::Impl::end_counting() {
  std::vector<std::int64_t> counts;
  for (std::size_t i = 0; i < parameters_.size(); ++i) counts.push_back(marks_.count(i));
  if (join_ != nullptr) {
    std::vector<std::int64_t> theirs = counts;
    group_.broadcast(theirs, join_->highest_active()).wait();
    if (shadow_) counts = std::move(theirs);  // it has counted nothing
  }
  marks_.accept_counts(counts);
}

void Reducer::Impl::finish_join(int last) {
  std::vector<TensorView> all;
  for (const Parameter& parameter : parameters_) all.push_back(parameter.value);
  all.insert(all.end(), join_buffers_.begin(), join_buffers_.end());
  note_error([&] { broadcast_coalesced(group_, all, last, options_.stream); });
}

}  // namespace ddp
