#include "flight/options.hpp"

#include <vector>

#include <fmt/format.h>

#include "command/option_word.hpp"
#include "command/usage_error.hpp"

namespace ddp::tools::flight {

const char* const kFlightHelp =
    "Usage: ddp-info flight DIR [OPTIONS]\n"
    "\n"
    "Compares what the ranks of a job called last, by the files of their flight recorders in DIR: which rank first\n"
    "called something else than the others, who waits for whom, and who was slow.\n"
    "\n"
    "Ranks write these files into DDP_FLIGHT_DIR when a process group fails, and at the signal DDP_FLIGHT_SIGNAL.\n"
    "\n"
    "Options:\n"
    "  -h, --help                Print this help and exit.\n"
    "      --json                Print one JSON document instead of text.\n"
    "\n"
    "Examples:\n"
    "  DDP_FLIGHT_DIR=$PWD/flight srun --ddp ./train    every rank keeps its last 2000 operations\n"
    "  ddp-info flight flight                           who made it fail\n"
    "  ddp-info flight flight --json | jq .first        for programs; docs/ddp-info.md describes the fields\n"
    "\n"
    "Options may be abbreviated while they are unambiguous.\n"
    "Exit status: 0 success, whatever was found; 1 failure (no usable file, the output); 2 wrong command line.\n";

namespace {

constexpr const char* kSeeHelp = "'ddp-info flight --help' lists the options";

[[noreturn]] void reject(std::string cause, std::string hint) {
  throw UsageError{"reading the command line", std::move(cause), std::move(hint)};
}

}  // namespace

FlightOptions parse_flight_options(std::span<const std::string> arguments) {
  static const std::vector<std::string> kNames{"--help", "--json"};
  FlightOptions options;
  bool options_end = false;
  bool folder_given = false;
  for (const std::string& word : arguments) {
    if (word == "--" && !options_end) {
      options_end = true;
    } else if (options_end || word.size() < 2 || word.front() != '-') {
      if (folder_given) reject(fmt::format("'{}' is one folder too many", word), "give one folder");
      folder_given = true;
      options.folder = word;
    } else if (word == "-h") {
      options.help = true;
    } else {
      const auto equals = word.find('=');
      const std::string name = full_option(word.substr(0, equals), kNames, kSeeHelp);
      if (equals != std::string::npos) {
        reject(fmt::format("option '{}' takes no value", name), "leave out the '=' and what follows");
      }
      (name == "--help" ? options.help : options.json) = true;
    }
  }
  if (!options.help && options.folder.empty()) reject("no folder is given", "give the one that DDP_FLIGHT_DIR named");
  return options;
}

}  // namespace ddp::tools::flight
