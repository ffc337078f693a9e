#include "base/backend_file.hpp"

#include <unistd.h>

#include <vector>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/closest_word.hpp"
#include "base/errors.hpp"
#include "base/library_search.hpp"

namespace ddp::base {
namespace {

constexpr std::size_t kMistypedBackend = 2;

void require_backend_file(const std::string& attempted, std::string_view name, const Environment& environment,
                          std::span<const std::string> folders) {
  if (name.empty() || std::find(kBackendWords.begin(), kBackendWords.end(), name) != kBackendWords.end()) return;
  const std::string file = backend_file(name);
  std::vector<std::string> places(folders.begin(), folders.end());
  if (const std::string own = environment.text("DDP_BACKEND_PATH"); !own.empty()) places.insert(places.begin(), own);
  const auto has = [&file](const std::string& folder) { return ::access((folder + "/" + file).c_str(), F_OK) == 0; };
  if (std::any_of(places.begin(), places.end(), has) || find_library(environment, "", file)) return;
  std::string where;
  for (const std::string& place : places) where += place + ", ";
  throw Error{
      {.code = ErrorCode::unavailable,
       .attempted = attempted,
       .cause = fmt::format("there is no backend '{}': no {} in {}or where the loader looks", name, file, where),
       .hint = missing_backend_hint(name)}};
}

}  // namespace

std::string backend_file(std::string_view name) { return fmt::format("libddp_{}.so", name); }

std::string missing_backend_hint(std::string_view name) {
  const std::vector<std::string> ours(kBackendWords.begin(), kBackendWords.end());
  const std::string closest = closest_word(name, ours, plausible_changes(name.size(), kMistypedBackend));
  return fmt::format(
      "{}backends are host (also called cpu or gloo), nccl, and plugins by their names; set DDP_BACKEND_PATH to the "
      "folder that has the plugin, or install it",
      closest.empty() || closest == name ? "" : fmt::format("did you mean '{}'? ", closest));
}

void require_backend_files(const std::string& attempted, std::string_view word, const Environment& environment,
                           std::span<const std::string> folders) {
  if (word.empty()) return;
  const auto names = backends_of(word);
  if (!names) {
    throw_invalid_argument(attempted, fmt::format("'{}' is not the name of a backend", word),
                           fmt::format("give {}", kBackendRule));
  }
  for (const std::string_view name : {names->cpu, names->cuda}) {
    require_backend_file(attempted, name, environment, folders);
  }
}

}  // namespace ddp::base
