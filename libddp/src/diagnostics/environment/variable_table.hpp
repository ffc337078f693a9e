// What is known of environment variables of the programs and libraries that training uses: who reads them, since and
// until when, how their values are read, and whether all ranks need the same one. libddp's own are in
// base/env_table.hpp.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ddp::diagnostics {

enum class Family {
  launcher,
  pytorch,
  nccl,
  cuda,
  gloo,
  ucx,
  libfabric,
  verbs,
  mpi,
  slurm,
  pmix,
  openmp,
  libddp,
};
std::string_view to_string(Family family);

enum class Standing {
  current,
  undocumented,  ///< read, but in no guide
  deprecated,    ///< still read; a newer one replaces it
  removed,       ///< the newest version does not read it
  unread,        ///< no library reads it, but it is often set
  others,        ///< begins like the family's, but belongs to a plugin, a tool or an image
};

/// How a value is read. What does not fit is rarely an error there: most readers go on with something else.
enum class Rule {
  text,
  integer,          ///< strtoll(3) of base 0; values: "LOWEST..HIGHEST", either may be absent
  one_only,         ///< an integer of which only 1 counts
  choice,           ///< exactly one of the words of values, separated by '|'; "MAX:*": any that begins like that
  choice_any_case,  ///< the same in upper or lower case
  words,            ///< a list of such words, separated by commas, after '^' those that are excluded; any case
  tuning,  ///< such lists, from NCCL 2.24 on also of single collectives: "Ring;allreduce:Tree"; unknown words fail
           ///< there
  level,   ///< one of the words, or a digit of an old scale
  file,    ///< a path; '~' is not expanded
};

/// A row of known_variables.tsv, whose columns these are.
struct Variable {
  std::string_view name;
  Family family{};
  Standing standing;
  std::string_view since;  ///< first version of the library that reads it; empty: before what is known
  std::string_view until;  ///< last version; empty: read today
  Rule rule;
  std::string_view values{};
  bool equal_on_all_ranks;
  std::string_view default_value;  ///< in words
  std::string_view replacement;    ///< what to set instead; empty: nothing
  std::string_view meaning;        ///< one sentence
};

/// In alphabetical order.
std::span<const Variable> variable_table();

/// Null for unknown ones.
const Variable* find_variable(std::string_view name);

/// By the table, else by the beginning of the name; nothing for variables that have nothing to do with training.
std::optional<Family> family_of(std::string_view name);

/// Who reads a name that begins with NCCL_ though NCCL does not: "nccl-tests"; empty: nobody known.
std::string_view owner_of(std::string_view name);

/// The known name that a misspelt one was meant to be; empty if it resembles none, or belongs to others.
/// @param more_names that the installed NCCL reads
std::string meant_name(std::string_view name, std::span<const std::string> more_names);

}  // namespace ddp::diagnostics
