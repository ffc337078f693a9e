#include "settings.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <string_view>
#include <thread>

#include "fake_nccl.hpp"

namespace fake_nccl {
namespace {

std::string variable(const char* name, std::string otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? std::move(otherwise) : value;
}

/// Never destroyed: threads of leaked communicators outlive main.
struct Texts {
  std::mutex mutex;
  std::string complaints;
  char last_error[1024]{};  // NOLINT(*-avoid-c-arrays): as NCCL's, written while others read it
};
Texts& texts() {
  static auto* texts = new Texts;  // NOLINT(*-owning-memory)
  return *texts;
}

}  // namespace

Settings::Settings()
    : folder(variable("FAKE_NCCL_DIR", "/dev/shm")),
      version(std::atoi(variable("FAKE_NCCL_VERSION", std::to_string(kDefaultVersion)).c_str())),
      strict(variable("FAKE_NCCL_MODE", "strict") == "strict"),
      report_peers(variable("FAKE_NCCL_PEERS", "report") == "report"),
      device_slots(std::atoi(variable("FAKE_NCCL_DEVICE_SLOTS", "0").c_str())),
      lazy_connect(variable("FAKE_NCCL_CONNECT", "eager") == "lazy"),
      jitter(static_cast<unsigned>(std::atoi(variable("FAKE_NCCL_JITTER", "0").c_str()))) {}

Settings& settings() {
  static auto* settings = new Settings;  // NOLINT(*-owning-memory): threads outlive main
  return *settings;
}

void jitter() {
  const unsigned seed = settings().jitter;
  if (seed == 0) return;
  thread_local std::minstd_rand random{seed ^ static_cast<unsigned>(gettid())};
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
}

void note_error(const std::string& text) {
  Texts& all = texts();
  const std::lock_guard lock(all.mutex);
  std::snprintf(all.last_error, sizeof all.last_error, "%s", text.c_str());
}

void complain(const std::string& text) {
  note_error(text);
  if (!settings().strict) return;
  std::fprintf(stderr, "fake NCCL: %s\n", text.c_str());
  Texts& all = texts();
  const std::lock_guard lock(all.mutex);
  all.complaints += text + "\n";
}

/// One text for all communicators (init.cc, ncclGetLastError; debug.cc).
FAKE_NCCL_EXPORT const char* ncclGetLastError(ncclComm_t /*comm*/) {
  thread_local std::string text;
  Texts& all = texts();
  const std::lock_guard lock(all.mutex);
  text = all.last_error;
  return text.c_str();
}

}  // namespace fake_nccl

const char* fake_nccl_complaints() {
  thread_local std::string text;
  auto& all = fake_nccl::texts();
  const std::lock_guard lock(all.mutex);
  text.clear();
  text.swap(all.complaints);
  return text.c_str();
}
void fake_nccl_set_version(int code) { fake_nccl::settings().version = code; }
void fake_nccl_set_strict(bool strict) { fake_nccl::settings().strict = strict; }
void fake_nccl_set_report_peers(bool report) { fake_nccl::settings().report_peers = report; }
void fake_nccl_set_device_slots(int slots) { fake_nccl::settings().device_slots = slots; }
void fake_nccl_set_lazy_connect(bool lazy) { fake_nccl::settings().lazy_connect = lazy; }
void fake_nccl_set_jitter(unsigned seed) { fake_nccl::settings().jitter = seed; }
