// What srun's side makes of the nodes' news: lines for the user, among them who hangs once no rank of the step gets on.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "diagnostics/hang/hang_inquiry.hpp"
#include "step_program/step_news.hpp"
#include "task_side/step_store.hpp"

namespace ddp::srun_plugin {

/// In the store's own process, as its client. Throws as StepStore from every member.
class StepDesk {
 public:
  /// @param hang_after for how long no rank must get on; nothing: that is not looked for.
  StepDesk(std::uint16_t port, std::optional<std::chrono::milliseconds> hang_after);

  /// Readable when advance() should be called, as it should at due().
  int fd() const { return news_.fd(); }
  std::optional<Deadline> due() const { return hang_.next_look(); }
  /// Takes what has come. @return what is to be said; a line may have several of the terminal's
  std::vector<std::string> advance();

 private:
  void take(StepNews news, std::vector<std::string>& lines);
  void take_facts(const StepNews& news);
  void look(std::vector<std::string>& lines);
  int number_of(const std::string& node);

  NewsReader news_;
  StepStore store_;
  diagnostics::HangInquiry hang_;
  std::map<std::string, int> numbers_;
  std::set<int> watched_;  ///< nodes whose ranks run
  std::uint32_t inquiry_ = 0;
};

}  // namespace ddp::srun_plugin
