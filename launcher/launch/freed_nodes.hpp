// Gives nodes that have left the job by its user's wish back to Slurm, which other jobs wait for.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/env_table.hpp"
#include "launch/heard_program.hpp"
#include "stream/event_loop.hpp"

namespace ddp::launcher {

/// A Slurm job keeps these of its nodes; empty: it cannot give up any.
/// @param facts a line of squeue in kKeptNodesFormat @param freed names of nodes
std::vector<std::string> nodes_to_keep(const std::string& facts, const std::vector<std::string>& freed);
inline constexpr const char* kKeptNodesFormat = "%B|%N";

/// One Slurm job after the other. It stays as it is where Slurm or its site do not let it shrink, which is one line.
/// Not thread-safe.
class FreedNodes {
 public:
  /// The others must outlive the object.
  FreedNodes(stream::EventLoop& loop, const base::Environment& environment) : loop_(loop), environment_(environment) {}
  FreedNodes& operator=(FreedNodes&&) = delete;

  /// Its agent is about to exit. @param job Slurm's number @param node Slurm's name
  void add(const std::string& job, const std::string& node);
  std::optional<Deadline> next_deadline() const;
  /// After each turn of the loop.
  void time_passed();

 private:
  void ask();
  void shrink(const std::string& facts);
  void report(bool success) const;

  stream::EventLoop& loop_;
  const base::Environment& environment_;
  std::map<std::string, std::vector<std::string>> waiting_;  ///< nodes by job
  std::optional<Deadline> due_;                              ///< of all that wait
  HeardProgram program_;                                     ///< squeue, then scontrol
  std::optional<Deadline> limit_;                            ///< of the program
  bool shrinks_ = false;                                     ///< it is scontrol
  std::string job_;                                          ///< that it is about
  std::vector<std::string> freed_;                           ///< nodes of that job
  std::string last_line_;
};

}  // namespace ddp::launcher
