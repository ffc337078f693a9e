// srun's command line and the words of the plugin's options, which users write. The first byte chooses: 'c' a command
// line, one argument a line; 'o' an option's word; 'd' the variables of the defaults, a line each. Whatever the text,
// it is read to its end, words that are entered are accepted ones, or may name a backend, and others are refused by
// Error(invalid_argument).
#include "base/backend_file.hpp"
#include "fuzz/fuzz.hpp"
#include "srun_side/command_line.hpp"
#include "srun_side/plugin_options.hpp"

namespace {

using namespace ddp::srun_plugin;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at <= text.size();) {
    const auto end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

bool accepted(Option option, std::string_view word) {
  const auto words = accepted_words(option);
  return std::find(words.begin(), words.end(), word) != words.end();
}

void require_valid(const PluginOptions& options) {
  require(accepted(Option::bind, to_string(options.bind)));
  require(accepted(Option::gpus, to_string(options.gpus)));
  require(ddp::base::backends_of(options.backend).has_value());
}

void read_arguments(const std::string& text) {
  std::vector<std::string> arguments = lines_of(text);
  const CommandLine found = read_command_line(arguments);
  const auto has = [&](const char* word) {
    return std::find(arguments.begin(), arguments.end(), word) != arguments.end();
  };
  if (found.ddp) require(has("--ddp"));
  // Words of the user's program change nothing but for the border between components.
  arguments.insert(arguments.end(), {"--", "x", "--ddp", "-c", "4"});
  const CommandLine longer = read_command_line(arguments);
  require(!found.cpus_per_task || longer.cpus_per_task);
  require(!found.ddp || longer.ddp);
  require(found.components == longer.components);
}

void read_word(const std::string& text) {
  for (std::size_t i = 0; i < kOptions; ++i) {
    PluginOptions options;
    try {
      set_option(options, static_cast<Option>(i), text.c_str());
    } catch (const ddp::Error& error) {
      require(error.code() == ddp::ErrorCode::invalid_argument);
      require(options == PluginOptions{});
    }
    require_valid(options);
  }
}

// Lookup is a plain function.
std::vector<std::string> g_values;

std::optional<std::string> value_of(const char* name) {
  const std::string_view names[] = {"DDP_BIND", "DDP_GPUS", "DDP_BACKEND", "SLURM_DDP"};
  for (std::size_t i = 0; i < std::size(names) && i < g_values.size(); ++i) {
    if (names[i] == name) return g_values[i];
  }
  return std::nullopt;
}

void read_defaults(const std::string& text) {
  g_values = lines_of(text);
  enabled_by_environment(&value_of);
  try {
    own_switch(&value_of);
    require_valid(default_options(&value_of));
  } catch (const ddp::Error& error) {
    require(error.code() == ddp::ErrorCode::invalid_argument);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0]) {
    case 'c': read_arguments(text); break;
    case 'o': read_word(text); break;
    case 'd': read_defaults(text); break;
    default: break;
  }
  return 0;
}
