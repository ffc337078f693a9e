// Environment variables: the table itself, strict reading of every type, and hints for typing mistakes.
#include <ddp/error.hpp>

#include "base/env_table.hpp"
#include "support/error_of.hpp"

namespace ddp::base {
namespace {

Environment with(const std::string& name, const std::string& value) { return Environment{{{name, value}}}; }

/// Expects that @p read refuses, and that the message names the variable and its value.
template <class Read>
void expect_refused(const std::string& name, const std::string& value, Read read) {
  const auto error = test::error_of([&] { read(with(name, value)); });
  ASSERT_TRUE(error) << name << "='" << value << "' was accepted";
  EXPECT_EQ(error->code(), ErrorCode::invalid_argument) << name << "=" << value;
  EXPECT_THAT(error->what(), AllOf(HasSubstr(name), HasSubstr("'" + value + "'")));
}

TEST(EnvTable, IsSortedUniqueAndDocumented) {
  const auto table = env_table();
  ASSERT_FALSE(table.empty());
  for (std::size_t i = 0; i < table.size(); ++i) {
    const EnvVariable& variable = table[i];
    EXPECT_TRUE(variable.name.starts_with("DDP_")) << variable.name;
    EXPECT_GT(variable.help.size(), 20U) << variable.name;
    EXPECT_TRUE(variable.help.ends_with('.')) << variable.name << " needs a whole sentence";
    const bool in_words = variable.type == EnvType::choice || variable.type == EnvType::text;
    EXPECT_EQ(in_words, !variable.choices.empty()) << variable.name;
    if (i > 0) {
      EXPECT_LT(table[i - 1].name, variable.name);
    }
  }
}

TEST(EnvTable, EveryDefaultCanBeRead) {
  const Environment empty{{}};
  for (const EnvVariable& variable : env_table()) {
    switch (variable.type) {
      case EnvType::seconds: EXPECT_GT(empty.seconds(variable.name).count(), 0) << variable.name; break;
      case EnvType::boolean: EXPECT_NO_THROW(empty.boolean(variable.name)) << variable.name; break;
      case EnvType::text: EXPECT_EQ(empty.text(variable.name), variable.default_value); break;
      case EnvType::choice:
        EXPECT_EQ(empty.text(variable.name), variable.default_value);
        if (!variable.default_value.empty()) {  // then it must be one of its own choices
          EXPECT_NO_THROW(with(std::string(variable.name), std::string(variable.default_value)).text(variable.name));
        }
        break;
    }
  }
}

TEST(EnvTable, EmptyMeansUnset) {
  EXPECT_EQ(with("DDP_INIT_TIMEOUT", "").seconds("DDP_INIT_TIMEOUT"), std::chrono::seconds(120));
  EXPECT_EQ(with("DDP_LOG_LEVEL", "").text("DDP_LOG_LEVEL"), "warning");
  EXPECT_FALSE(with("DDP_CHECK_COLLECTIVES", "").boolean("DDP_CHECK_COLLECTIVES"));
  // others' variables are taken as they are
  EXPECT_EQ(with("RANK", "").raw("RANK"), "");
  EXPECT_TRUE(with("RANK", "").has("RANK"));
  EXPECT_FALSE(with("RANK", "").has("RANKS"));
}

TEST(EnvTable, AVariableThatIsNotInTheTableIsAMistakeInTheProgram) {
  EXPECT_THROW(static_cast<void>(Environment{{}}.text("DDP_NO_SUCH")), std::logic_error);
}

TEST(EnvNumber, IsStrict) {
  EXPECT_EQ(with("RANK", "0").number("RANK"), 0);
  EXPECT_EQ(with("RANK", "2147483647").number("RANK"), 2147483647);
  EXPECT_EQ(with("RANK", "007").number("RANK"), 7);
  EXPECT_EQ(Environment{{}}.number("RANK"), std::nullopt);
  for (const std::string bad : {"", " ", "-1", "+1", "1 ", " 1", "1.0", "0x10", "one", "2147483648", "1e3", "1\n"}) {
    expect_refused("RANK", bad, [](const Environment& env) { static_cast<void>(env.number("RANK")); });
  }
}

TEST(EnvSeconds, IsStrict) {
  const auto read = [](const std::string& value) {
    return with("DDP_INIT_TIMEOUT", value).seconds("DDP_INIT_TIMEOUT").count();
  };
  EXPECT_EQ(read("1"), 1000);
  EXPECT_EQ(read("0.25"), 250);
  EXPECT_EQ(read("1e3"), 1'000'000);
  EXPECT_EQ(read("100000000"), 100'000'000'000);
  EXPECT_GT(read("0.0001"), 0) << "a value above 0 must not become a limit of 0";
  for (const std::string bad : {"0", "-1", "soon", "10s", "1 ", " 1", "nan", "inf", "1e9", "1e400", "0x10", "1,5"}) {
    expect_refused("DDP_INIT_TIMEOUT", bad,
                   [](const Environment& env) { static_cast<void>(env.seconds("DDP_INIT_TIMEOUT")); });
  }
}

TEST(EnvBoolean, IsStrict) {
  const auto read = [](const Environment& env) { return env.boolean("DDP_CHECK_COLLECTIVES"); };
  for (const auto* yes : {"1", "true", "yes", "on"}) EXPECT_TRUE(read(with("DDP_CHECK_COLLECTIVES", yes))) << yes;
  for (const auto* no : {"0", "false", "no", "off"}) EXPECT_FALSE(read(with("DDP_CHECK_COLLECTIVES", no))) << no;
  for (const auto* bad : {"2", "maybe", "TRUE", " 1", "1 "}) {
    expect_refused("DDP_CHECK_COLLECTIVES", bad, [&](const Environment& env) { static_cast<void>(read(env)); });
  }
}

TEST(EnvChoice, IsStrict) {
  for (const auto* good : {"pmix", "pmi2", "pmi1", "torchrun", "openmpi", "slurm", "single"}) {
    EXPECT_EQ(with("DDP_LAUNCH", good).text("DDP_LAUNCH"), good);
  }
  for (const auto* bad : {"pmi", "PMIX", "pmix|pmi2", "|", "pmix ", "mpi"}) {
    expect_refused("DDP_LAUNCH", bad, [](const Environment& env) { static_cast<void>(env.text("DDP_LAUNCH")); });
  }
  const Error error = test::thrown_by([] { static_cast<void>(with("DDP_LAUNCH", "mpi").text("DDP_LAUNCH")); });
  EXPECT_THAT(error.what(), HasSubstr("pmix|pmi2|pmi1|torchrun|openmpi|slurm|single"));
}

TEST(EnvTypingMistakes, NameTheClosestVariable) {
  const Environment env{{{"DDP_INIT_TIMEOUT", "3"},
                         {"DDP_INIT_TIMEOT", "3"},
                         {"DDP_LOGLEVEL", "info"},
                         {"DDP_SOCKET_IFNAM", "eth0"},
                         {"DDP_OF_ANOTHER_PROGRAM", "1"},
                         {"DDP_BIN_DIR", "build/bin"},
                         {"DDP_SIZE", "4"},  // two changes make DDP_SIMD another word
                         {"DDPX", "1"},
                         {"DDO_LAUNCH", "1"},
                         {"ddp_launch", "1"}}};
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(env.unknown_ddp_variables(), (Pairs{{"DDP_INIT_TIMEOT", "DDP_INIT_TIMEOUT"},
                                                {"DDP_LOGLEVEL", "DDP_LOG_LEVEL"},
                                                {"DDP_SOCKET_IFNAM", "DDP_SOCKET_IFNAME"}}));
  EXPECT_TRUE(Environment{{}}.unknown_ddp_variables().empty());
}

TEST(ProcessEnvironment, IsACopy) {
  ::setenv("DDP_TEST_OF_COPY", "a=b", 1);
  const Environment before = Environment::process();
  ::setenv("DDP_TEST_OF_COPY", "changed", 1);
  EXPECT_EQ(before.raw("DDP_TEST_OF_COPY"), "a=b") << "only the first '=' separates";
  ::unsetenv("DDP_TEST_OF_COPY");
  EXPECT_FALSE(Environment::process().has("DDP_TEST_OF_COPY"));
}

}  // namespace

// DDP_PEER_TIMEOUT: its default, its unit, and that limits which healthy processes exceed are refused.

namespace {

milliseconds with(const char* value) { return peer_timeout(Environment{{{"DDP_PEER_TIMEOUT", value}}}); }

TEST(PeerTimeout, IsThirtySecondsByDefault) {
  EXPECT_EQ(peer_timeout(Environment{{}}), std::chrono::seconds(30));
  EXPECT_EQ(with(""), std::chrono::seconds(30));
}

TEST(PeerTimeout, IsInSeconds) {
  EXPECT_EQ(with("5"), milliseconds(5000));
  EXPECT_EQ(with("7.25"), milliseconds(7250));
  EXPECT_EQ(with("600"), milliseconds(600'000));
}

TEST(PeerTimeout, RefusesWhatHealthyProcessesExceed) {
  for (const char* bad : {"4.99", "1", "0.001"}) {
    const auto error = test::error_of([&] { with(bad); });
    ASSERT_TRUE(error) << bad;
    EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error->what(), testing::AllOf(testing::HasSubstr("DDP_PEER_TIMEOUT"), testing::HasSubstr(bad)));
    EXPECT_THAT(error->hint(), testing::HasSubstr("at least 5 s"));
  }
}

TEST(PeerTimeout, RefusesWhatIsNoTime) {
  for (const char* bad : {"0", "-30", "soon", "30s", "nan", "1e99"}) EXPECT_THROW(with(bad), Error) << bad;
}

}  // namespace

}  // namespace ddp::base
