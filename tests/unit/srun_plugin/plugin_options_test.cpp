#include "srun_side/plugin_options.hpp"

#include <ddp/error.hpp>

#include "support/checkout.hpp"
#include "support/error_of.hpp"

namespace ddp::srun_plugin {
namespace {

// Lookup is a plain function, as getenv(3) is.
std::map<std::string, std::string>& variables() {
  static std::map<std::string, std::string> all;
  return all;
}
std::optional<std::string> lookup(const char* name) {
  const auto found = variables().find(name);
  return found == variables().end() ? std::nullopt : std::optional{found->second};
}

PluginOptions defaults_with(std::map<std::string, std::string> set) {
  variables() = std::move(set);
  return default_options(&lookup);
}
bool enabled_with(std::map<std::string, std::string> set) {
  variables() = std::move(set);
  return enabled_by_environment(&lookup);
}

template <class Function>
std::string option_refusal(Function&& function) {
  const Error error = ddp::test::thrown_by(function);
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  return error.what();
}

TEST(PluginOptions, TableIsByOption) {
  const auto name = [](Option option) { return std::string(option_table().at(static_cast<std::size_t>(option)).name); };
  EXPECT_EQ(name(Option::ddp), "ddp");
  EXPECT_EQ(name(Option::bind), "ddp-bind");
  EXPECT_EQ(name(Option::gpus), "ddp-gpus");
  EXPECT_EQ(name(Option::backend), "ddp-backend");
  EXPECT_EQ(name(Option::as), "ddp-as");
  EXPECT_EQ(name(Option::imitate), "ddp-imitate");
  EXPECT_EQ(name(Option::verbose), "ddp-verbose");
  EXPECT_EQ(name(Option::dump), "ddp-dump");
  EXPECT_EQ(name(Option::doctor), "ddp-doctor");
  EXPECT_EQ(name(Option::metrics), "ddp-metrics");
  EXPECT_EQ(name(Option::event_log), "ddp-event-log");
  EXPECT_EQ(name(Option::event_log_interval), "ddp-event-log-interval");
  EXPECT_EQ(name(Option::hang_report_after), "ddp-hang-report-after");
}

TEST(PluginOptions, HelpNamesExactlyTheAcceptedWords) {
  for (std::size_t i = 0; i < kOptions; ++i) {
    const OptionEntry& entry = option_table().at(i);
    EXPECT_NE(std::string(entry.usage), "");
    const std::string kind = entry.arginfo != nullptr ? entry.arginfo : "";
    if (entry.value_optional || kind == "FILE" || kind == "SECONDS" || kind == "NAMES") continue;  // any text
    std::string words;
    for (const std::string_view word : accepted_words(static_cast<Option>(i))) {
      words += (words.empty() ? "" : "|") + std::string(word);
    }
    if (static_cast<Option>(i) == Option::backend) words += "|PLUGIN";  // and names of plugins
    EXPECT_EQ(entry.arginfo == nullptr ? "" : entry.arginfo, words) << entry.name;
  }
}

TEST(PluginOptions, AreThoseOfTheManualPage) {
  std::ifstream page(ddp::test::source_root() / "srun_plugin/spank_ddp.8");
  std::vector<std::string> known, documented;
  for (const OptionEntry& entry : option_table()) known.emplace_back(entry.name);
  bool begins = false;  // an entry, whose first line names it
  for (std::string line; std::getline(page, line);) {
    std::erase(line, '\\');
    if (const auto option = line.find("--ddp-"); begins && option != std::string::npos && line.starts_with(".B"))
      documented.push_back(line.substr(option + 2, line.find_first_of(" =[", option) - option - 2));
    begins = line.starts_with(".TP");
  }
  known.erase(known.begin());  // --ddp itself is what the page is about
  EXPECT_EQ(documented, known);
}

TEST(PluginOptions, EveryAcceptedWordIsEntered) {
  for (const Option option : {Option::bind, Option::gpus, Option::backend}) {
    for (const std::string_view accepted : accepted_words(option)) {
      PluginOptions options;
      set_option(options, option, std::string(accepted).c_str());
      const std::string entered = option == Option::bind   ? std::string(to_string(options.bind))
                                  : option == Option::gpus ? std::string(to_string(options.gpus))
                                                           : options.backend;
      EXPECT_EQ(entered, accepted);
      PluginOptions others = options;
      others.bind = {};
      others.gpus = {};
      others.backend = "auto";
      EXPECT_EQ(others, PluginOptions{}) << accepted;
    }
  }
}

TEST(PluginOptions, NamesOfOtherLaunchersAndPackages) {
  PluginOptions options;
  set_option(options, Option::as, "mpi4py,horovod");
  set_option(options, Option::imitate, "horovodrun");
  EXPECT_EQ(options.as, "horovod,mpi4py");
  EXPECT_TRUE(options.imitates_horovod && !options.imitates_openmpi);
  set_option(options, Option::imitate, "mpirun,horovodrun");
  EXPECT_TRUE(options.imitates_horovod && options.imitates_openmpi);
  const StepTicket ticket{.options = options};
  EXPECT_EQ(parse_ticket(encode(ticket)).options.as, "horovod,mpi4py");
  for (const char* wrong : {"", "numpy", "horovod,", "horovod mpi4py"}) {
    EXPECT_THAT(option_refusal([&] { set_option(options, Option::as, wrong); }), HasSubstr("horovod nor mpi4py"));
  }
  EXPECT_THAT(option_refusal([&] { set_option(options, Option::imitate, "srun"); }), HasSubstr("mpirun,horovodrun"));
}

TEST(PluginOptions, MetricsAreServedAtAnAddressAndAPort) {
  struct At {
    const char* value;
    const char* address;
    int port;  ///< -1: none
  };
  for (const At& each :
       {At{nullptr, "127.0.0.1", 0}, At{"auto", "127.0.0.1", 0}, At{"9464", "127.0.0.1", 9464},
        At{"0.0.0.0:9464", "0.0.0.0", 9464}, At{"[::1]:auto", "::1", 0}, At{"none", "127.0.0.1", -1}}) {
    PluginOptions options;
    set_option(options, Option::metrics, each.value);
    EXPECT_EQ(options.metrics_address, each.address);
    EXPECT_EQ(options.metrics_port ? *options.metrics_port : -1, each.port);
  }
  PluginOptions of_user = defaults_with({{"DDP_METRICS_PORT", "9464"}, {"DDP_METRICS_ADDRESS", "0.0.0.0"}});
  EXPECT_EQ(of_user.metrics_port, 9464);
  set_option(of_user, Option::metrics, nullptr);
  EXPECT_EQ(of_user.metrics_port, 9464) << "without a value it is as the variables say";
  set_option(of_user, Option::metrics, "7000");
  EXPECT_EQ(of_user.metrics_port, 7000);
  EXPECT_EQ(of_user.metrics_address, "0.0.0.0");
  for (const char* wrong : {"0", "65536", "x", "n0:9464", ":9464", "127.0.0.1:", "1.2.3:4"}) {
    EXPECT_THAT(option_refusal([&] { set_option(of_user, Option::metrics, wrong); }), HasSubstr("--ddp-metrics"))
        << wrong;
  }
  EXPECT_THAT(option_refusal([] { defaults_with({{"DDP_METRICS_PORT", "many"}}); }), HasSubstr("DDP_METRICS_PORT"));
}

TEST(PluginOptions, HangsAreToldAfterFiveMinutesUnlessAskedOtherwise) {
  PluginOptions options;
  EXPECT_EQ(options.hang_report_after_s, 300U);
  set_option(options, Option::hang_report_after, "60");
  EXPECT_EQ(options.hang_report_after_s, 60U);
  for (const char* never : {"0", "none"}) {
    options.hang_report_after_s = 1;
    set_option(options, Option::hang_report_after, never);
    EXPECT_EQ(options.hang_report_after_s, 0U) << never;
  }
  for (const char* wrong : {"", "-1", "1.5", "5m", "86401"})
    EXPECT_THAT(option_refusal([&] { set_option(options, Option::hang_report_after, wrong); }), HasSubstr("86400"));
}

TEST(PluginOptions, AnEventLogNeedsAFileAndWholeSeconds) {
  PluginOptions options;
  set_option(options, Option::event_log, "log");
  set_option(options, Option::event_log_interval, "5");
  EXPECT_EQ(options.event_log, "log");
  EXPECT_EQ(options.event_log_interval_s, 5U);
  EXPECT_THAT(option_refusal([&] { set_option(options, Option::event_log, ""); }), HasSubstr("file"));
  for (const char* wrong : {"0", "-1", "1.5", "86401", ""})
    EXPECT_THAT(option_refusal([&] { set_option(options, Option::event_log_interval, wrong); }), HasSubstr("86400"));
  EXPECT_THROW(check_event_log("/nonexistent/log"), Error);
  check_event_log("/dev/null");
}

TEST(PluginOptions, FlagsNeedNoValue) {
  PluginOptions options;
  set_option(options, Option::ddp, nullptr);
  set_option(options, Option::verbose, nullptr);
  set_option(options, Option::doctor, nullptr);
  set_option(options, Option::dump, nullptr);
  PluginOptions expected;
  expected.enabled = true;
  expected.verbose = true;
  expected.doctor = true;
  expected.dump = "stderr";
  EXPECT_EQ(options, expected);
  set_option(options, Option::dump, "");  // as sbatch passes it on
  EXPECT_EQ(options, expected);
  set_option(options, Option::dump, "a:b.json");
  expected.dump = "a:b.json";
  EXPECT_EQ(options, expected);
}

TEST(PluginOptions, OtherWordsAreRefusedWithTheAcceptedOnes) {
  PluginOptions options;
  EXPECT_THAT(option_refusal([&] { set_option(options, Option::bind, "nuam"); }),
              AllOf(HasSubstr("--ddp-bind"), HasSubstr("'nuam'"), HasSubstr("numa, core, socket, none"),
                    HasSubstr("did you mean 'numa'")));
  EXPECT_THAT(option_refusal([&] { set_option(options, Option::gpus, "2"); }),
              AllOf(HasSubstr("--ddp-gpus"), HasSubstr("all, one, none")));
  EXPECT_THAT(option_refusal([&] { set_option(options, Option::backend, "m/pi"); }),
              AllOf(HasSubstr("--ddp-backend"), HasSubstr("auto, host, cpu, gloo, nccl, ddp")));
  for (const Option option : {Option::bind, Option::gpus, Option::backend}) {
    EXPECT_NE(option_refusal([&] { set_option(options, option, ""); }), "nothing was thrown");
    EXPECT_NE(option_refusal([&] { set_option(options, option, nullptr); }), "nothing was thrown");
    EXPECT_NE(option_refusal([&] { set_option(options, option, "none "); }), "nothing was thrown");
    EXPECT_NE(option_refusal([&] { set_option(options, option, "NONE"); }), "nothing was thrown");
  }
  EXPECT_EQ(options, PluginOptions{}) << "what was refused was entered";
  std::string all;
  for (const std::string_view word : accepted_words(Option::backend)) {
    EXPECT_NO_THROW(set_option(options, Option::backend, std::string(word).c_str())) << word;
    all += (all.empty() ? "" : "|") + std::string(word);
  }
  EXPECT_EQ(all + "|PLUGIN", option_table().at(static_cast<std::size_t>(Option::backend)).arginfo);
  set_option(options, Option::backend, "my_mpi-2");
  EXPECT_EQ(options.backend, "my_mpi-2") << "a plugin's name";
}

TEST(PluginOptions, VariablesAreTheDefaults) {
  EXPECT_EQ(defaults_with({}), PluginOptions{});
  PluginOptions expected;
  expected.bind = BindPolicy::socket;
  expected.gpus = topology::GpuVisibility::one;
  expected.backend = "gloo";
  EXPECT_EQ(defaults_with({{"DDP_BIND", "socket"}, {"DDP_GPUS", "one"}, {"DDP_BACKEND", "gloo"}}), expected);
  EXPECT_EQ(defaults_with({{"DDP_BIND", ""}, {"DDP_GPUS", ""}, {"DDP_BACKEND", ""}}), PluginOptions{})
      << "empty is unset";
}

TEST(PluginOptions, AWrongVariableIsNamed) {
  EXPECT_THAT(option_refusal([] {
                defaults_with({{"DDP_BIND", "socke"}});
              }),
              AllOf(HasSubstr("DDP_BIND"), HasSubstr("'socke'"), HasSubstr("did you mean 'socket'")));
  EXPECT_THAT(option_refusal([] { defaults_with({{"DDP_GPUS", "some"}}); }), HasSubstr("DDP_GPUS"));
  EXPECT_THAT(option_refusal([] { defaults_with({{"DDP_BACKEND", "m pi"}}); }), HasSubstr("DDP_BACKEND"));
}

TEST(PluginOptions, OwnVariableSwitchesOnAndOff) {
  const auto switched = [](const std::string& word) {
    variables() = {{"SLURM_DDP", word}};
    return own_switch(&lookup);
  };
  for (const char* word : {"1", "yes", "true", "on", "TRUE", "On"}) EXPECT_EQ(switched(word), true) << word;
  for (const char* word : {"0", "no", "false", "off", "No", "OFF"}) EXPECT_EQ(switched(word), false) << word;
  EXPECT_EQ(switched(""), std::nullopt) << "empty is unset";
  EXPECT_THAT(option_refusal([&] { switched("flase"); }),
              AllOf(HasSubstr("SLURM_DDP"), HasSubstr("'flase'"), HasSubstr("did you mean 'false'")));
  variables() = {};
  EXPECT_EQ(own_switch(&lookup), std::nullopt);
}

TEST(PluginOptions, TheEnvironmentMayAskForIt) {
  EXPECT_FALSE(enabled_with({}));
  EXPECT_FALSE(enabled_with({{"DDP", "1"}, {"SLURM_SPANK__SLURM_SPANK_OPTION_ddp_ddp-bind", "core"}}));
  EXPECT_TRUE(enabled_with({{"_SLURM_SPANK_OPTION_ddp_ddp", ""}}));
  EXPECT_TRUE(enabled_with({{"SLURM_SPANK__SLURM_SPANK_OPTION_ddp_ddp", ""}}));
}

TEST(BeforeProgram, ComesBackAsItWas) {
  for (const BeforeProgram& before :
       {BeforeProgram{.doctor = true, .dump = "/a b/c:d"}, BeforeProgram{.doctor = false, .dump = "stderr"},
        BeforeProgram{.doctor = true}}) {
    EXPECT_EQ(parse_before(encode(before)), before);
  }
  for (const char* wrong : {"", "1", "2:", "true:x", ":x"}) EXPECT_FALSE(parse_before(wrong).wanted()) << wrong;
}

TEST(PluginOptions, FlagsHaveNoWords) {
  EXPECT_THAT(accepted_words(Option::ddp), IsEmpty());
  EXPECT_THAT(accepted_words(Option::verbose), IsEmpty());
  EXPECT_THAT(accepted_words(Option::bind), ElementsAre("numa", "core", "socket", "none"));
}

}  // namespace
}  // namespace ddp::srun_plugin
