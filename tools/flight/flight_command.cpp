#include "flight/flight_command.hpp"

#include "command/output.hpp"
#include "flight/analysis.hpp"
#include "flight/dump_folder.hpp"
#include "flight/flight_report.hpp"

namespace ddp::tools::flight {

void run_flight(const FlightOptions& options) {
  if (options.help) return write_standard_output(kFlightHelp);
  const DumpFolder folder = read_dump_folder(options.folder);
  const Analysis analysis = analyse(folder.dumps);
  write_standard_output(options.json ? json_report(folder, analysis) : text_report(folder, analysis));
}

}  // namespace ddp::tools::flight
