// What nodes tell srun's side while a step runs: one numbered list in the store beside srun, which holds lines for the
// user and what follows from ranks that do not get on.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <ddp/bytes.hpp>

#include "task_side/step_store.hpp"

namespace ddp::srun_plugin {

enum class NewsKind : std::uint8_t {
  line,     ///< for the user, on srun's standard error
  watched,  ///< the node watches whether its ranks get on
  still,    ///< none of its ranks gets on any more
  moving,   ///< one does again
  over,     ///< they have ended
  facts,    ///< diagnostics::HostFacts, for the inquiry of that number
};

struct StepNews {
  NewsKind kind = NewsKind::line;
  std::string node;
  std::uint32_t inquiry = 0;  ///< of facts
  Bytes content{};            ///< of a line its text
  friend bool operator==(const StepNews&, const StepNews&) = default;
};

Bytes encode(const StepNews& news);
/// Throws Error(protocol).
StepNews decode_news(std::span<const std::byte> bytes);

/// Adds to the list. Throws as StepStore.
void tell(StepStore& store, const StepNews& news);
/// A line for the user.
void tell_line(StepStore& store, const std::string& node, const std::string& text);

/// Set when nodes are to say what their ranks do; from 1.
std::string inquiry_key(std::uint32_t number);

/// Reads the list, in the store's own process. Throws as StepStore from every member.
class NewsReader {
 public:
  explicit NewsReader(std::uint16_t port);

  /// Readable when take() has something.
  int fd() const { return store_.fd(); }
  /// The next, which the store keeps no longer. Nothing for news of a kind that this version does not know.
  std::optional<StepNews> take();

 private:
  void ask();

  StepStore store_;
  std::int64_t next_ = 1;
};

}  // namespace ddp::srun_plugin
