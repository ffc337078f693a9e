// Which option a word of a command line means: the rules of getopt_long and of Python's argparse for abbreviations.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::base {

/// The names ("--nproc") that @p typed may stand for: itself, if it is one; else those that begin with it.
std::vector<std::string> options_meant_by(std::string_view typed, std::span<const std::string> names);

/// The name that @p typed, which begins none, probably is with a typing mistake; empty if none is close. It may be
/// abbreviated, too: if no whole name is close, it is compared with the beginnings of names.
std::string closest_option(const std::string& typed, std::span<const std::string> names);

}  // namespace ddp::base
