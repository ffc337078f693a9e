// The connections of a listener that have not proven themselves: where they come from, how long each may take, and
// which goes first where there are too many. A source that floods a listener crowds out only itself.
#pragma once

#include <sys/socket.h>

#include <array>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include <ddp/deadline.hpp>

namespace ddp::stream {

/// An IPv4 address, an IPv6 network of 64 bits, or all of the loopback addresses: as IPv6 address, so that IPv4-mapped
/// ones compare equal. All the addresses that one host can easily have are one source.
struct ConnectionSource {
  std::array<std::uint8_t, 16> bytes{};
  friend auto operator<=>(const ConnectionSource&, const ConnectionSource&) = default;
};

/// @param ipv6 in network byte order, IPv4 mapped
ConnectionSource source_of(const std::array<std::uint8_t, 16>& ipv6);
/// Of other families than AF_INET and AF_INET6 all are one.
ConnectionSource source_of(const sockaddr_storage& address);

/// How many connections each source has.
class SourceShares {
 public:
  void add(const ConnectionSource& source);
  /// It must have been added.
  void remove(const ConnectionSource& source);
  std::size_t of(const ConnectionSource& source) const;
  /// The source with the most; of several, the one that has had connections for the longest. There must be one. Takes
  /// time linear in the number of sources.
  ConnectionSource largest() const;

 private:
  struct Share {
    std::size_t connections = 0;
    std::uint64_t number = 0;  ///< in the order of arrival
  };
  std::map<ConnectionSource, Share> shares_;
  std::uint64_t arrivals_ = 0;
};

/// What strangers may take of a listener.
struct StrangerLimits {
  std::size_t most = 128;                                        ///< connections
  std::chrono::milliseconds patience = std::chrono::seconds(5);  ///< for a proof
  std::chrono::milliseconds silence = std::chrono::seconds(5);   ///< for the first byte
  std::size_t crowd = 1;  ///< where no descriptor is left, a source that has so many gives one up
};

/// Connections are named by ascending numbers. Not thread-safe.
class Strangers {
 public:
  using Number = std::uint64_t;

  explicit Strangers(const StrangerLimits& limits) : limits_(limits) {}

  /// @param known the job's own user's: it has the same time, but is none of those that crowd.
  void add(Number number, const ConnectionSource& source, bool known = false);
  /// Does nothing for one that is not there, as the following.
  void remove(Number number);
  /// Its first byte has come.
  void heard(Number number) { silent_.erase(number); }
  /// It has said the right thing so far, and goes after those of its source that have not.
  void believe(Number number);
  /// It turns out to be known.
  void recognize(Number number);

  /// From now on, instead of StrangerLimits::most.
  void allow(std::size_t most) { limits_.most = most; }
  bool empty() const { return all_.empty(); }
  /// Without the known ones.
  std::size_t size() const { return crowd_; }
  bool full() const { return crowd_ >= limits_.most; }
  /// A source has so many that it is to give one up where no descriptor is left.
  bool crowded() const { return crowd_ > 0 && shares_.of(shares_.largest()) >= limits_.crowd; }
  /// The one to give up where there is no room: of the source that has the most, the oldest of those that have said
  /// nothing right, else the oldest. Empty: none is unknown.
  std::optional<Number> most_crowding() const;
  /// The oldest known one.
  std::optional<Number> oldest_known() const;

  /// When the next one's time is over.
  std::optional<Deadline> next_end() const;
  struct Late {
    Number number = 0;
    bool silent = false;  ///< it has said nothing
  };
  /// One whose time is over.
  std::optional<Late> late() const;

 private:
  struct Stranger {
    ConnectionSource source;
    Deadline::Clock::time_point since;
    bool known = false;
    bool believed = false;
  };

  StrangerLimits limits_;
  std::map<Number, Stranger> all_;  ///< the oldest first
  std::set<Number> silent_;
  SourceShares shares_;  ///< of the unknown
  std::size_t crowd_ = 0;
};

}  // namespace ddp::stream
