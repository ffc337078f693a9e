// Where the packages of this process's Python are.
#pragma once

#include <string>

namespace ddp {

/// For Python bindings: the interpreter's sys.prefix, so that NCCL is found among its packages. Without it, only a
/// program that was started by an absolute path shows where it is: a relative path means another place once the program
/// has changed its working directory. Thread-safe.
void set_python_prefix(std::string prefix);

}  // namespace ddp
