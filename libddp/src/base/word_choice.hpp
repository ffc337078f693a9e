// The error of a word that is not one of those that are accepted.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include <ddp/error.hpp>

namespace ddp::base {

/// Error(invalid_argument): "'nuam' is not one of numa, core, socket, none; did you mean 'numa'?"
Error unknown_word(std::string attempted, std::string_view word, std::span<const std::string> accepted);

}  // namespace ddp::base
