// The flight recorder: the last operations of all process groups of this process, kept in a ring of fixed size at next
// to no cost, and written as JSON when something fails or on request. `ddp-info flight` compares the ranks' files.
//
// DDP_FLIGHT_SIZE is the size of the ring, DDP_FLIGHT_DIR the folder that failures are recorded in, DDP_FLIGHT_SIGNAL a
// signal that asks for it. docs/reference/ddp-info.md describes the document.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace ddp {

/// While it lives, the operations that the same thread calls are recorded with this label: "layer 3", "step 17". Labels
/// nest; the innermost counts. Costs nothing but the copy.
class FlightLabel {
 public:
  static constexpr std::size_t kMaxBytes = 40;  ///< longer texts are cut

  /// @param text UTF-8; what exceeds kMaxBytes is cut off.
  explicit FlightLabel(std::string_view text) noexcept;
  FlightLabel(const FlightLabel&) = delete;
  FlightLabel& operator=(const FlightLabel&) = delete;
  ~FlightLabel();

  std::string_view text() const noexcept { return {bytes_.data(), size_}; }  ///< as kept

 private:
  std::array<char, kMaxBytes> bytes_{};
  std::size_t size_ = 0;
  const FlightLabel* outer_;
};

/// What is recorded now, as a JSON document. From any thread, at any time. Throws Error(invalid_argument) for a wrong
/// DDP_FLIGHT_SIZE.
std::string flight_recorder_json();

/// Writes that document to a file, which is replaced whole or not at all. Throws Error(system).
void dump_flight_recorder(const std::string& path);

}  // namespace ddp
