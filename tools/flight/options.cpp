#include "flight/options.hpp"

#include <vector>

#include "command/folder_options.hpp"

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

FlightOptions parse_flight_options(std::span<const std::string> arguments) {
  static const std::vector<std::string> kNames{"--help", "--json"};
  const FolderOptions parsed =
      parse_folder_options(arguments, "flight", kNames, "give the one that DDP_FLIGHT_DIR named");
  return {.folder = parsed.folder, .json = parsed.given.contains("--json"), .help = parsed.given.contains("--help")};
}

}  // namespace ddp::tools::flight
