// Saves of checkpoints that end in their midst: by a signal, by a full disk.
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "rank_program/scenario.hpp"

namespace ddp::test {
namespace {

/// Tells by its values of which step and rank it is.
struct SavedModel {
  std::vector<float> weight = std::vector<float>(60'000);
  std::vector<std::int64_t> step = {0};

  void set(std::int64_t to, int rank) {
    step[0] = to;
    for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = static_cast<float>((to * 8 + rank) % 4096) + i % 3;
  }
  std::vector<NamedTensor> tensors() {
    return {{.name = "weight", .tensor = weight}, {.name = "step", .tensor = step}};
  }
};

/// The step from which it goes on, whose values are checked; 0 without a checkpoint.
std::int64_t resume(Checkpoints& kept, SavedModel& model, int rank) {
  const auto restored = kept.restore(model.tensors());
  if (!restored) return 0;
  SavedModel wanted;
  wanted.set(restored->step, rank);
  check(model.weight == wanted.weight && model.step == wanted.step, "the checkpoint is not that of its step and rank");
  check(restored->extra == fmt::format("step {}", restored->step), "the extra bytes are others");
  return restored->step;
}

}  // namespace

void save_checkpoints(World& world, Arguments arguments) {
  ProcessGroup group = make_process_group(world);
  Checkpoints kept(group, arguments[0], {.keep = 2});
  SavedModel model;
  const std::int64_t first = resume(kept, model, group.rank());
  fmt::print("RESTORED {}\n", first);
  for (std::int64_t step = first + 1; step <= first + std::stoll(arguments[1]); ++step) {
    model.set(step, group.rank());
    kept.save_sharded(step, model.tensors(), fmt::format("step {}", step));
    if (step == first + 1) fmt::print("SAVED\n");
    std::fflush(stdout);
  }
  if (arguments.size() < 3) return;
  // The victim cannot read the second of its tensors: it falls when it has written the first.
  auto tensors = model.tensors();
  if (std::stoi(arguments[2]) == group.rank()) {
    constexpr std::size_t kBytes = 1 << 16;
    void* const memory = ::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(memory != MAP_FAILED, "no memory");
    ::signal(SIGSEGV, [](int) { ::raise(SIGKILL); });
    tensors.push_back({.name = "unreadable", .tensor = {memory, DType::uint8, {kBytes}}});
  }
  kept.save_sharded(first + 1'000'000, tensors);
}

void fill_the_disk(World& world, Arguments arguments) {
  ProcessGroup group = make_process_group(world);
  Checkpoints kept(group, arguments[0]);
  SavedModel model;
  const auto save = [&](std::int64_t step) {
    model.set(step, group.rank());
    kept.save_sharded(step, model.tensors(), fmt::format("step {}", step));
  };
  save(1);
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  check(::getrlimit(RLIMIT_FSIZE, &limit) == 0, "no limit");
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = 100'000;
  if (group.rank() == 1) check(::setrlimit(RLIMIT_FSIZE, &limit) == 0, "the limit cannot be set");
  std::optional<Error> error;
  for (const std::int64_t step : {1, 2}) {
    error.reset();
    try {
      save(step);
    } catch (const Error& caught) {
      error = caught;
    }
  }
  limit.rlim_cur = before;
  check(::setrlimit(RLIMIT_FSIZE, &limit) == 0, "the limit cannot be lifted");
  check(error && error->code() == ErrorCode::system && error->ranks() == std::vector{1}, "the save did not fail");
  const bool is_known = error->native() == "EFBIG (27)" && error->hint().find("ulimit -f") != std::string::npos;
  check(is_known, fmt::format("another reason: {}", error->what()));
  check(resume(kept, model, group.rank()) == 1, "the former checkpoint is not the newest");
  save(2);
  check(resume(kept, model, group.rank()) == 2, "the next save does not count");
  const std::filesystem::directory_iterator left(fmt::format("{}/step-1", arguments[0]));
  check(std::distance(left, {}) == 3, "files of the save that failed stay");
}

}  // namespace ddp::test
