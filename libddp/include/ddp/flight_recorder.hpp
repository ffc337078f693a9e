// The flight recorder: the last operations of all process groups of this process, kept in a ring of fixed size at
// almost no cost, and written as JSON when something fails or on request. `ddp-info flight` compares the ranks' files.
//
// DDP_FLIGHT_SIZE is the size of the ring, DDP_FLIGHT_DIR the folder for recordings of failures, DDP_FLIGHT_SIGNAL a
// signal that requests one. docs/reference/ddp-info.md describes the document.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace ddp {

/// While it lives, operations that the same thread calls are recorded with this label: "layer 3", "step 17". Labels
/// nest; the innermost is recorded. Costs only the copy.
class FlightLabel {
 public:
  static constexpr std::size_t kMaxBytes = 40;  ///< longer texts are cut

  /// @param text UTF-8; what exceeds kMaxBytes is cut off.
  explicit FlightLabel(std::string_view text) noexcept;
  FlightLabel(const FlightLabel&) = delete;
  FlightLabel& operator=(const FlightLabel&) = delete;
  ~FlightLabel();

  std::string_view text() const noexcept { return {bytes_.data(), size_}; }  ///< the label as kept

 private:
  std::array<char, kMaxBytes> bytes_{};
  std::size_t size_ = 0;
  const FlightLabel* outer_;
};

/// The current recording as a JSON document. Callable from any thread, at any time. Throws Error(invalid_argument) for
/// an invalid DDP_FLIGHT_SIZE.
std::string flight_recorder_json();

/// Writes that document to a file, which is replaced completely or not at all. Throws Error(system).
void dump_flight_recorder(const std::string& path);

}  // namespace ddp
