#include "step_program/step_desk.hpp"

#include <poll.h>

#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/socket.hpp"
#include "diagnostics/hang/rank_facts.hpp"

namespace ddp::srun_plugin {
namespace {

constexpr const char* kDesksHost = "127.0.0.1";
// As ddprun's: for nodes to look for a second, and for busy ones to answer.
constexpr std::chrono::seconds kAnswersLimit{12};

std::string text_of(const Bytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

}  // namespace

StepDesk::StepDesk(std::uint16_t port, std::optional<std::chrono::milliseconds> hang_after)
    : news_(port), store_(kDesksHost, port), hang_(hang_after) {}

int StepDesk::number_of(const std::string& node) {
  return numbers_.emplace(node, static_cast<int>(numbers_.size())).first->second;
}

std::vector<std::string> StepDesk::advance() {
  std::vector<std::string> lines;
  while (base::wait_for(news_.fd(), POLLIN, Deadline::after(std::chrono::milliseconds{0}))) {
    if (auto news = news_.take()) take(std::move(*news), lines);
  }
  look(lines);
  return lines;
}

void StepDesk::take(StepNews news, std::vector<std::string>& lines) {
  const int node = number_of(news.node);
  const auto now = Deadline::Clock::now();
  switch (news.kind) {
    case NewsKind::line: lines.push_back(text_of(news.content)); return;
    case NewsKind::watched: watched_.insert(node); return;
    case NewsKind::still: hang_.note(node, true, now); return;
    case NewsKind::moving: hang_.note(node, false, now); return;
    case NewsKind::over:
      watched_.erase(node);
      hang_.note(node, false, now);
      hang_.give_up(node);
      return;
    case NewsKind::facts: take_facts(news); return;
  }
}

void StepDesk::take_facts(const StepNews& news) {
  if (news.inquiry != inquiry_) return;
  diagnostics::HostFacts facts{.host = news.node};
  try {
    facts = diagnostics::decode_host_facts(news.content);
  } catch (const Error& error) {
    facts.notes.emplace_back(error.what());
  }
  hang_.answer(number_of(news.node), std::move(facts));
}

void StepDesk::look(std::vector<std::string>& lines) {
  const auto now = Deadline::Clock::now();
  if (hang_.is_due(watched_, now)) {
    hang_.ask(watched_, Deadline::after(kAnswersLimit));
    store_.set(inquiry_key(++inquiry_), Bytes{std::byte{1}});
  }
  if (!hang_.complete(now)) return;
  auto report = hang_.conclude_standstill(now);
  if (!report) return;
  if (report->text.ends_with('\n')) report->text.pop_back();
  lines.push_back(fmt::format("srun --ddp: {}: {}", report->when, report->text));
}

}  // namespace ddp::srun_plugin
