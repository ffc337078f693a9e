// Where the packages of the Python lie that runs this process.
#pragma once

#include <string>

namespace ddp {

/// For bindings of Python: its sys.prefix, so that NCCL is found among its packages. Without it, only a program that
/// was started by an absolute path says where it is: a relative one means another place once the program has changed
/// its folder. Thread-safe.
void set_python_prefix(std::string prefix);

}  // namespace ddp
