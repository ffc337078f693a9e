#include "launch/surrounding_step.hpp"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <exception>

#include <fmt/format.h>

#include <ddp/binding.hpp>

#include "base/stderr_line.hpp"
#include "base/step_settings.hpp"

namespace ddp::launcher {

void leave_surrounding_step() noexcept {
  try {
    const auto settings = base::drop_step_settings();
    if (!settings || settings->cpus.empty()) return;
    const Binding own{.cpus = CpuSet::parse(settings->cpus), .preferred_memory = -1};
    for (const std::string& remark : own.apply()) base::write_stderr_line("ddprun: warning: " + remark);
    ::syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0);
  } catch (const std::exception& error) {
    base::write_stderr_line(fmt::format("ddprun: warning: ranks keep to the cores of this task: {}", error.what()));
  }
}

}  // namespace ddp::launcher
