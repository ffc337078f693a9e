#include "command/folder_options.hpp"

#include <utility>

#include <fmt/format.h>

#include "command/option_word.hpp"
#include "command/usage_error.hpp"

namespace ddp::tools {
namespace {

[[noreturn]] void reject_word(std::string cause, std::string hint) {
  throw UsageError{"reading the command line", std::move(cause), std::move(hint)};
}

}  // namespace

FolderOptions parse_folder_options(std::span<const std::string> arguments, const std::string& command,
                                   std::span<const std::string> names, const std::string& folder_hint) {
  const std::string see_help = fmt::format("'ddp-info {} --help' lists the options", command);
  FolderOptions options;
  bool options_end = false;
  bool folder_given = false;
  for (const std::string& word : arguments) {
    if (word == "--" && !options_end) {
      options_end = true;
    } else if (options_end || word.size() < 2 || word.front() != '-') {
      if (folder_given) reject_word(fmt::format("'{}' is one folder too many", word), "give one folder");
      folder_given = true;
      options.folder = word;
    } else if (word == "-h") {
      options.given.insert("--help");
    } else {
      const auto equals = word.find('=');
      const std::string name = full_option(word.substr(0, equals), names, see_help);
      if (equals != std::string::npos) {
        reject_word(fmt::format("option '{}' takes no value", name), "leave out the '=' and what follows");
      }
      options.given.insert(name);
    }
  }
  if (!options.given.contains("--help") && options.folder.empty()) reject_word("no folder is given", folder_hint);
  return options;
}

}  // namespace ddp::tools
