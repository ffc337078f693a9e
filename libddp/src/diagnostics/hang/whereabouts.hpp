// Where a rank is, in words: by its process and its flight recorder.
#pragma once

#include <string>

#include "diagnostics/hang/rank_facts.hpp"

namespace ddp::diagnostics {

enum class Place {
  exited,
  stopped,
  starting,      ///< has libddp, has not called World::init
  wiring_up,     ///< in World::init
  in_operation,  ///< of a process group
  in_io,
  waiting,  ///< for another process, as far as its system call tells
  asleep,   ///< of its own will
  computing,
  unknown,
};
/// As JSON has it: "in_operation".
std::string_view to_string(Place place);

struct Whereabouts {
  Place place = Place::unknown;
  std::string text;     ///< "in all_reduce #34 of group 'world'", "asleep in clock_nanosleep"
  double since_s = -1;  ///< since when; negative: unknown
  std::string last;     ///< "last all_reduce #33 of group 'world'"; empty: nothing, or the text has it
};

Whereabouts whereabouts(const RankFacts& rank);
/// By its process alone.
Place place_of_process(const RankFacts& rank);

using flight::describe;
using flight::describe_group;
/// "12 s", "0.3 s", "3 min", "2 h".
std::string duration(double seconds);

}  // namespace ddp::diagnostics
