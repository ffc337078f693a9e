#include <ddp/python_prefix.hpp>

#include <mutex>
#include <utility>

#include "base/python_prefix.hpp"

namespace ddp {
namespace {

std::mutex mutex;

std::string& known_prefix() {
  static auto* prefix = new std::string;  // never destroyed: threads may ask while the process ends
  return *prefix;
}

}  // namespace

void set_python_prefix(std::string prefix) {
  const std::lock_guard lock(mutex);
  known_prefix() = std::move(prefix);
}

std::string base::python_prefix() {
  const std::lock_guard lock(mutex);
  return known_prefix();
}

}  // namespace ddp
