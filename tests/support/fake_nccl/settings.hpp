// How the double behaves: environment and fake_nccl_set_*; and what it has to complain of.
#pragma once

#include <atomic>
#include <string>

#include "collectives/nccl/nccl_abi.hpp"

/// For the functions that the library exports; all else is hidden.
#define FAKE_NCCL_EXPORT extern "C" __attribute__((visibility("default")))

namespace fake_nccl {

using namespace ddp::collectives::nccl;

struct Settings {
  std::string folder;
  std::atomic<int> version;
  std::atomic<bool> strict;
  std::atomic<bool> report_peers;
  std::atomic<int> device_slots;
  std::atomic<bool> lazy_connect;
  std::atomic<unsigned> jitter;

  Settings();
};
/// Of the library (default_version.cpp).
extern const int kDefaultVersion;
Settings& settings();

/// Sleeps for a random time of up to 2 ms where jitter is on.
void jitter();

/// What ncclGetLastError returns; and a line for fake_nccl_complaints and standard error in strict mode.
void complain(const std::string& text);
/// ncclGetLastError only: an error that NCCL finds itself.
void note_error(const std::string& text);

}  // namespace fake_nccl
