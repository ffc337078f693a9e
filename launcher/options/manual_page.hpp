// ddprun(1), written from the table of options so that it cannot fall behind.
#pragma once

#include <string>

#include "options/option_table.hpp"

namespace ddp::launcher {

/// roff with the man(7) macros.
std::string manual_page(const OptionTable& table);

}  // namespace ddp::launcher
