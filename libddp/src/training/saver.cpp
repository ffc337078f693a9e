#include "training/saver.hpp"

#include <algorithm>
#include <charconv>
#include <concepts>
#include <fstream>
#include <random>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/host_name.hpp"
#include "base/process.hpp"

namespace ddp::training {
namespace {

constexpr std::string_view kSaverStart = "ddp-checkpoint-owner 1\n";
constexpr std::string_view kSaverEnd = "end\n";
constexpr std::size_t kMostNameBytes = 256;

bool is_control(unsigned char letter) { return letter < ' ' || letter == 0x7f; }

std::string one_line(std::string_view text) {
  std::string line{text.substr(0, kMostNameBytes)};
  std::replace_if(line.begin(), line.end(), is_control, '?');
  return line;
}

int count_of(const base::Environment& environment, std::string_view variable) {
  const std::string text = environment.raw(variable).value_or("");
  int count = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), count);
  return failure == std::errc{} && end == text.data() + text.size() && count > 0 ? count : 0;
}

std::string boot_id() {
  std::string id;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::getline(file, id);
  return one_line(id);
}

/// Takes lines "<key> <value>" off the text of an owner's file.
class SaverReader {
 public:
  SaverReader(std::string_view text, const std::string& path) : text_(text), path_(path) {}

  void expect(std::string_view literal) {
    if (!text_.starts_with(literal)) fail(fmt::format("'{}' is missing", literal.substr(0, literal.find('\n'))));
    text_.remove_prefix(literal.size());
  }
  bool is_at(std::string_view literal) const { return text_.starts_with(literal); }
  std::string line(std::string_view key) {
    expect(key);
    const auto end = text_.find('\n');
    if (end == std::string_view::npos || end > kMostNameBytes) fail(fmt::format("its line '{}' has no end", key));
    std::string value{text_.substr(0, end)};
    if (std::any_of(value.begin(), value.end(), is_control)) fail("it has control characters");
    text_.remove_prefix(end + 1);
    return value;
  }
  /// In the one form in which it is written.
  template <std::integral Int>
  Int number(std::string_view key) {
    const std::string text = line(key);
    Int value{};
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failure != std::errc{} || value < 0 || text != fmt::to_string(value)) fail("a number is wrong");
    return value;
  }
  std::string claim(std::string_view key) {
    std::string value = line(key);
    if (value.size() != kClaimDigits || value.find_first_not_of("0123456789abcdef") != std::string::npos) {
      fail("an identifier is wrong");
    }
    return value;
  }
  bool yes(std::string_view key) {
    const std::string text = line(key);
    if (text != "yes" && text != "no") fail(fmt::format("its line '{}' is wrong", key));
    return text == "yes";
  }
  void expect_end() const {
    if (!text_.empty()) fail("it has too many lines");
  }
  [[noreturn]] void fail(const std::string& cause) const {
    throw Error{{.code = ErrorCode::protocol, .attempted = fmt::format("reading '{}'", path_), .cause = cause}};
  }

 private:
  std::string_view text_;
  const std::string& path_;
};

}  // namespace

Saver Saver::process_of(const base::Environment& environment) {
  std::random_device random;
  const base::ProcessNumber own = base::own_process();
  Saver saver{.claim = fmt::format("{:08x}", random()),
              .saves = true,
              .requeues = count_of(environment, "SLURM_RESTART_COUNT"),
              // ddprun's generations count all starts of the ranks, restarts only those after a failed rank.
              .restarts = std::max(count_of(environment, "TORCHELASTIC_RESTART_COUNT"),
                                   count_of(environment, "DDP_GENERATION")),
              .host = one_line(base::host_name()),
              .boot = boot_id(),
              .process = own.pid,
              .space = own.space,
              .locked = false};
  const std::string job = environment.raw("SLURM_JOB_ID").value_or("");
  const std::string step = environment.raw("SLURM_STEP_ID").value_or("");
  if (!job.empty()) {
    saver.job = one_line("Slurm job " + job);
    if (!step.empty()) saver.run = one_line(fmt::format("{}.{}", job, step));
  } else if (const std::string id = environment.raw("TORCHELASTIC_RUN_ID").value_or(""); !id.empty() && id != "none") {
    saver.job = one_line("job " + id);
    saver.run = one_line(id);
  }
  return saver;
}

std::string Saver::name() const {
  std::string text = job.empty() ? "a job" : job;
  if (requeues > 0) text += fmt::format(", requeue {}", requeues);
  if (restarts > 0) text += fmt::format(", restart {}", restarts);
  return text + fmt::format(", process {} on host {}", process, host);
}

bool Saver::succeeds(const Saver& other) const {
  if (!job.empty() && job == other.job && requeues != other.requeues) return requeues > other.requeues;
  return !run.empty() && run == other.run && requeues == other.requeues && restarts > other.restarts;
}

std::string format_saver(const Saver& saver) {
  const auto word = [](bool yes) { return yes ? "yes" : "no"; };
  std::string text =
      fmt::format("{}claim {}\nsaves {}\njob {}\nrun {}\nrequeues {}\nrestarts {}\n", kSaverStart, saver.claim,
                  word(saver.saves), one_line(saver.job), one_line(saver.run), saver.requeues, saver.restarts);
  text += fmt::format("host {}\nboot {}\nprocess {}\nspace {}\nlocked {}\n", one_line(saver.host), one_line(saver.boot),
                      saver.process, saver.space, word(saver.locked));
  for (std::size_t i = 0; i < std::min(saver.formers.size(), kMostFormers); ++i) {
    text += fmt::format("former {}\n", saver.formers[i]);
  }
  return text.append(kSaverEnd);
}

Saver parse_saver(std::string_view text, const std::string& path) {
  SaverReader reader(text, path);
  reader.expect(kSaverStart);
  Saver saver;
  saver.claim = reader.claim("claim ");
  saver.saves = reader.yes("saves ");
  saver.job = reader.line("job ");
  saver.run = reader.line("run ");
  saver.requeues = reader.number<int>("requeues ");
  saver.restarts = reader.number<int>("restarts ");
  saver.host = reader.line("host ");
  saver.boot = reader.line("boot ");
  saver.process = reader.number<std::int64_t>("process ");
  saver.space = reader.number<std::uint64_t>("space ");
  saver.locked = reader.yes("locked ");
  while (reader.is_at("former ")) {
    if (saver.formers.size() == kMostFormers) reader.fail("it names too many previous owners");
    saver.formers.push_back(reader.claim("former "));
  }
  reader.expect(kSaverEnd);
  reader.expect_end();
  return saver;
}

}  // namespace ddp::training
