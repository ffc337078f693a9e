// The plugin as a file: it is loaded into srun and slurmstepd, so it may neither show nor need what others have.
#include "support/checkout.hpp"

namespace ddp::srun_plugin {
namespace {

/// The lines that @p command writes about the plugin.
std::vector<std::string> about_plugin(const std::string& command) {
  const std::string whole = command + " '" + ddp::test::built_file("lib/slurm/spank_ddp.so") + "'";
  const std::unique_ptr<FILE, decltype([](FILE* open) { ::pclose(open); })> output(::popen(whole.c_str(), "r"));
  std::vector<std::string> lines;
  char line[1024];
  while (output != nullptr && std::fgets(line, sizeof line, output.get()) != nullptr) {
    lines.emplace_back(line);
    while (!lines.back().empty() && lines.back().back() == '\n') lines.back().pop_back();
  }
  EXPECT_THAT(lines, Not(IsEmpty())) << command;
  return lines;
}

std::vector<std::string> last_words(const std::vector<std::string>& lines) {
  std::vector<std::string> words;
  for (const std::string& line : lines) words.push_back(line.substr(line.find_last_of(' ') + 1));
  return words;
}

TEST(PluginFile, ShowsSlurmsHooksOnly) {
  EXPECT_THAT(last_words(about_plugin("nm --dynamic --defined-only")),
              UnorderedElementsAre("plugin_name", "plugin_type", "plugin_version", "spank_plugin_version",
                                   "spank_ddp_version", "slurm_spank_init", "slurm_spank_init_post_opt",
                                   "slurm_spank_local_user_init", "slurm_spank_user_init", "slurm_spank_task_init",
                                   "slurm_spank_task_exit", "slurm_spank_exit"));
}

TEST(PluginFile, NeedsNothingButTheCLibrary) {
#ifdef DDP_SANITIZED
  GTEST_SKIP() << "this build has sanitizers, whose libraries it needs";
#endif
  std::vector<std::string> needed;
  for (const std::string& line : about_plugin("readelf --dynamic --wide")) {
    const auto open = line.find("Shared library: [");
    if (open != std::string::npos) needed.push_back(line.substr(open + 17, line.rfind(']') - open - 17));
  }
  EXPECT_THAT(needed, Not(IsEmpty()));
  EXPECT_THAT(needed, Each(MatchesRegex("(libc|libm|ld-linux[-_a-z0-9]*)\\.so\\..*")));
}

TEST(PluginFile, WantsOfSlurmOnlyWhatAllReleasesHave) {
#ifdef DDP_SANITIZED
  GTEST_SKIP() << "this build has sanitizers, which others must provide";
#endif
  std::vector<std::string> wanted;
  for (const std::string& line : about_plugin("nm --dynamic --undefined-only")) {
    const bool of_c_library = line.find('@') != std::string::npos;  // with its version
    const bool may_be_absent = line.find(" w ") != std::string::npos;
    if (!of_c_library && !may_be_absent) wanted.push_back(line.substr(line.rfind(' ') + 1));
  }
  EXPECT_THAT(wanted, Each(AnyOf(StartsWith("spank_"), "slurm_error")));
}

}  // namespace
}  // namespace ddp::srun_plugin
