#include "command/output.hpp"

#include <unistd.h>

#include "base/errors.hpp"
#include "base/files.hpp"

namespace ddp::tools {

void write_standard_output(std::string_view text) {
  // Through the descriptor: stdio reports a late error only at exit, unnoticed.
  if (const int number = base::write_all(STDOUT_FILENO, text); number != 0) {
    throw base::system_error("writing to standard output", number);
  }
}

}  // namespace ddp::tools
