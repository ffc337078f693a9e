#include "command/job_surroundings.hpp"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "world/launch_environment.hpp"

namespace ddp::tools {

bool is_launched(const base::Environment& environment) {
  const std::string forced = environment.text("DDP_LAUNCH");
  if (!forced.empty()) return forced != to_string(LaunchSource::single);
  try {
    return world::detect_launch(environment, {}).source != LaunchSource::single;
  } catch (const Error& error) {
    ErrorDetail detail = error.detail();
    detail.hint += fmt::format("{}to look at this machine alone, use --no-job", detail.hint.empty() ? "" : "; ");
    throw Error{std::move(detail)};
  }
}

namespace {

namespace fs = std::filesystem;

/// The path that PATH leads to, for a name without a folder; empty: none.
std::string find_in_path(const std::string& name, const base::Environment& environment) {
  if (name.empty()) return name;
  if (name.find('/') != std::string::npos) return fs::absolute(name).string();
  const std::string path = environment.raw("PATH").value_or("");
  for (std::size_t begin = 0; begin < path.size();) {
    const auto end = std::min(path.find(':', begin), path.size());
    const fs::path file = fs::path(path.substr(begin, end - begin)) / name;
    std::error_code ignored;
    if (file.is_absolute() && fs::is_regular_file(file, ignored) && ::access(file.c_str(), X_OK) == 0)
      return file.string();
    begin = end + 1;
  }
  return {};
}

bool is_python(const std::string& program) { return fs::path(program).filename().string().starts_with("python"); }

bool has_torch(const base::NcclSurroundings& surroundings, const std::string& python) {
  const auto folders = python_packages(surroundings, python);
  return std::any_of(folders.begin(), folders.end(), [](const std::string& packages) {
    std::error_code ignored;
    return fs::exists(fs::path(packages) / "torch" / "__init__.py", ignored);
  });
}

/// Empty where it has no PyTorch.
std::string usual_python(const base::NcclSurroundings& surroundings, const base::Environment& environment) {
  std::string python = find_in_path(environment.raw("PYTHON_EXEC").value_or(""), environment);
  for (const char* name : {"python3", "python"}) {
    if (python.empty()) python = find_in_path(name, environment);
  }
  return is_python(python) && has_torch(surroundings, python) ? python : std::string();
}

}  // namespace

base::NcclSurroundings surroundings_of_program(const base::Environment& environment, const std::string& program) {
  base::NcclSurroundings surroundings = base::NcclSurroundings::process();
  surroundings.environment = environment;
  const std::string named = find_in_path(program, environment);
  if (!named.empty()) surroundings.program = named;
  if (is_python(named)) {
    surroundings.python = "the program's Python";
  } else if (const std::string python = usual_python(surroundings, environment); !python.empty()) {
    surroundings.program = python;
    surroundings.python = fmt::format("the Python that ddprun takes, {}", python);
  }
  return surroundings;
}

}  // namespace ddp::tools
