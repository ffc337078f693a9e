// The table of variables, whose they are, and what is never shown.
#include "diagnostics/environment/variable_table.hpp"

#include "diagnostics/environment/judge.hpp"
#include "diagnostics/environment/redaction.hpp"

namespace ddp::diagnostics {
namespace {

TEST(VariableTable, IsWellFormed) {
  ASSERT_GT(variable_table().size(), 400U);
  std::set<std::string_view> names;
  for (const Variable& row : variable_table()) {
    SCOPED_TRACE(row.name);
    EXPECT_TRUE(names.insert(row.name).second);
    EXPECT_EQ(find_variable(row.name), &row);
    EXPECT_FALSE(row.meaning.empty());
    EXPECT_EQ(row.meaning.find_first_of("\n|"), std::string_view::npos) << "it becomes a row of a Markdown table";
    if (row.standing == Standing::removed) {
      EXPECT_FALSE(row.until.empty());
    }
    if (row.rule == Rule::choice || row.rule == Rule::words || row.rule == Rule::tuning || row.rule == Rule::level) {
      EXPECT_FALSE(row.values.empty());
    }
    // Of the table's own words: what is known is neither misspelt nor unknown to its family.
    EXPECT_TRUE(family_of(row.name).has_value());
    if (row.standing == Standing::others) {
      EXPECT_NE(owner_of(row.name), "");
    }
  }
}

TEST(VariableTable, FamiliesAndOwners) {
  EXPECT_EQ(family_of("NCCL_NEWER_THAN_ALL"), Family::nccl);
  EXPECT_EQ(family_of("nccl_debug"), Family::nccl);
  EXPECT_EQ(family_of("NCLL_DEBUG"), Family::nccl);
  EXPECT_EQ(family_of("SLURM_JOB_ID"), Family::slurm);
  EXPECT_EQ(family_of("OMP_NUM_THREADS"), Family::openmp);
  EXPECT_EQ(family_of("DDPRUN_SLURM_JOB"), Family::libddp);
  EXPECT_EQ(family_of("CCL_LOG_LEVEL"), std::nullopt);
  EXPECT_EQ(family_of("PATH"), std::nullopt);
  EXPECT_EQ(owner_of("NCCL_TESTS_DEVICE"), "nccl-tests");
  EXPECT_EQ(owner_of("NCCL_DIR"), "builds");
  EXPECT_EQ(owner_of("NCCL_INCLUDE_DIR"), "builds");
  EXPECT_EQ(owner_of("NCCL_DEBUG"), "");
}

TEST(VariableTable, MisspeltNames) {
  const std::vector<std::string> of_library{"NCCL_SITE_SWITCH"};
  const auto meant = [&](std::string_view name) { return meant_name(name, of_library); };
  EXPECT_EQ(meant("NCCL_DEBG"), "NCCL_DEBUG");
  EXPECT_EQ(meant("NCCL_SOCKET_IFNAMES"), "NCCL_SOCKET_IFNAME");
  EXPECT_EQ(meant("NCLL_IB_HCA"), "NCCL_IB_HCA");
  EXPECT_EQ(meant("nccl_debug"), "NCCL_DEBUG");
  EXPECT_EQ(meant("NCCL_SITE_SWICH"), "NCCL_SITE_SWITCH");
  EXPECT_EQ(meant("TORCH_NCCL_BLOCKING_WAITS"), "TORCH_NCCL_BLOCKING_WAIT");
  for (const char* name : {"NCCL_TESTS_DEVICES", "CCL_ALGO", "RCCL_ALGO", "SLURM_NTASK", "UCX_TLSS", "NCCL_VERSION",
                           "NCCL_FASTRAK_IFNAMES", "NCCL_COMPLETELY_ELSE", "TORCH_COMPILE_DEBUG",
                           // Too short for three changes, and builds' own.
                           "NCCL_GIT", "NCCL_FOO", "NCCL_DIR", "NCCL_INC", "NCCL_BIN", "NCCL_SRC"}) {
    EXPECT_EQ(meant(name), "") << name;
  }
  EXPECT_EQ(meant(std::string(100000, 'N')), "");
}

TEST(ValueCheck, WhatNcclMakesOfValues) {
  struct Case {
    const char* name;
    const char* value;
    const char* fault;  // empty: none
  };
  for (const Case& each : {
           Case{"NCCL_IB_DISABLE", "1", ""},
           Case{"NCCL_IB_DISABLE", "", ""},
           Case{"NCCL_IB_DISABLE", "0x1", ""},
           Case{"NCCL_IB_DISABLE", "true", "is read as 0"},
           Case{"NCCL_IB_DISABLE", "1abc", "is read as 1"},
           Case{"NCCL_BUFFSIZE", "1e6", "is read as 1"},
           Case{"NCCL_BUFFSIZE", "010", "is read as 8"},
           Case{"NCCL_BUFFSIZE", "4M", "is read as 4"},
           Case{"NCCL_BUFFSIZE", "99999999999999999999", "too large"},
           Case{"NCCL_BUFFSIZE", "4194304", ""},
           Case{"NCCL_IB_TIMEOUT", "22", ""},
           Case{"NCCL_IB_TIMEOUT", "32", "is not in 1..31"},
           Case{"NCCL_IB_RETRY_CNT", "15", "is not in 0..7"},
           Case{"NCCL_IB_TC", "-1", ""},
           Case{"NCCL_P2P_DISABLE", "1", ""},
           Case{"NCCL_P2P_DISABLE", "2", "only 1 has an effect"},
           Case{"NCCL_P2P_DISABLE", "true", "is read as 0"},
           Case{"NCCL_P2P_LEVEL", "NVL", ""},
           Case{"NCCL_P2P_LEVEL", "nvl", "is ignored"},
           Case{"NCCL_P2P_LEVEL", "3", ""},
           Case{"NCCL_SOCKET_FAMILY", "AF_INET6", ""},
           Case{"NCCL_SOCKET_FAMILY", "ipv6", "is none of AF_INET, AF_INET6"},
           Case{"NCCL_NETDEVS_POLICY", "MAX:2", ""},
           Case{"NCCL_NETDEVS_POLICY", "MAX:", "is none of"},
           Case{"NCCL_DEBUG", "info", ""},
           Case{"NCCL_DEBUG", "DEBUG", "is none of"},
           Case{"NCCL_ALGO", "ring,TREE", ""},
           Case{"NCCL_ALGO", "^Ring", ""},
           Case{"NCCL_ALGO", "Rings", "unknown word 'Rings'"},
           Case{"NCCL_ALGO", "allreduce:tree;broadcast:ring", ""},
           Case{"NCCL_DEBUG_FILE", "~/log", "'~' is not expanded"},
           Case{"TORCH_NCCL_BLOCKING_WAIT", "true", ""},
           Case{"TORCH_NCCL_BLOCKING_WAIT", "2", "is none of"},
       }) {
    const Variable* row = find_variable(each.name);
    ASSERT_NE(row, nullptr) << each.name;
    const auto fault = check_value(*row, each.value, "");
    const std::string what = std::string(each.name) + "=" + each.value;
    ASSERT_EQ(fault.has_value(), each.fault[0] != '\0') << what << (fault ? fault->text : "");
    if (fault) {
      EXPECT_THAT(fault->text, HasSubstr(each.fault)) << what;
    }
  }
}

// Before 2.24, NCCL drops words that it does not know; from then on its init fails.
TEST(ValueCheck, WordsThatNcclDropsOrRefuses) {
  struct Case {
    const char* value;
    const char* before;  // the fault; empty: none
    const char* since;
  };
  for (const Case& each : {
           Case{"^Ring,tree", "", ""},
           Case{"Rings", "unknown word 'Rings'", "unknown word 'Rings'"},
           Case{"^Ring;AllReduce:tree;broadcast:^nvls", "unknown word 'Ring;AllReduce:tree;broadcast:^nvls'", ""},
           Case{"allreduce:tree", "unknown word 'allreduce:tree'", ""},
           Case{"allreduce:trees", "unknown word", "unknown word 'trees'; known: Ring"},
           Case{"tree;alltoall:ring", "unknown word", "unknown word 'alltoall'; known: Broadcast"},
           Case{"tree;ring", "unknown word", "names no collective before 'ring'"},
       }) {
    for (const bool refused : {false, true}) {
      const std::string expected = refused ? each.since : each.before;
      const auto fault = check_value(*find_variable("NCCL_ALGO"), each.value, refused ? "2.24.3+cuda12.6" : "2.23.4");
      ASSERT_EQ(fault.has_value(), !expected.empty()) << each.value << ' ' << refused;
      if (!fault) continue;
      EXPECT_THAT(fault->text, HasSubstr(expected)) << each.value;
      EXPECT_EQ(fault->out_of_range, refused) << each.value;
    }
  }
  const auto unknown_version = check_value(*find_variable("NCCL_PROTO"), "allreduce:LL256", "");
  ASSERT_TRUE(unknown_version);
  EXPECT_FALSE(unknown_version->out_of_range);
}

TEST(ShownValue, NoSecretsAndNothingThatDisturbs) {
  for (const char* name : {"NCCL_PSK", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "wandb_api_key", "DDP_RDZV_SECRET",
                           "PGPASSWORD", "SLURM_JWT", "MYSQL_PWD", "GITHUB_PAT", "SENTRY_DSN"}) {
    EXPECT_EQ(shown_value(name, "hunter2"), "(hidden)") << name;
  }
  for (const char* name :
       {"NCCL_IB_PKEY", "PWD", "OLDPWD", "PATH", "TOKENIZERS_PARALLELISM", "KEYBOARD", "NCCL_MONKEY"}) {
    EXPECT_EQ(shown_value(name, "1"), "1") << name;
  }
  EXPECT_EQ(shown_value("http_proxy", "http://me:hunter2@proxy:3128/ https://a@b ftp://x:1/y@z"),
            "http://me:(hidden)@proxy:3128/ https://(hidden)@b ftp://x:1/y@z");
  EXPECT_EQ(shown_value("DATA", "https://x.blob.core.windows.net/a?sv=1&sig=hunter%2F2&se=3"),
            "https://x.blob.core.windows.net/a?sv=1&sig=(hidden)&se=3");
  EXPECT_EQ(shown_value("STORE", "Protocol=https;AccountName=a;AccountKey=hunter2==;Suffix=b"),
            "Protocol=https;AccountName=a;AccountKey=(hidden);Suffix=b");
  EXPECT_EQ(shown_value("URL", "s3://b/o?X-Amz-Signature=hunter2 http://h/?access_token=hunter2&key="),
            "s3://b/o?X-Amz-Signature=(hidden) http://h/?access_token=(hidden)&key=");
  const std::string long_secret = "http://me:" + std::string(5000, 'x') + "@proxy/";
  EXPECT_EQ(shown_value("http_proxy", long_secret), "http://me:(hidden)@proxy/");
  EXPECT_EQ(shown_value("A", "a\n\x1b[31m\x7f"), "a\\x0a\\x1b[31m\\x7f");
  EXPECT_EQ(shown_value("A", "\xc3\xa4 \xe2\x82\xac \xff \xc3"), "\xc3\xa4 \xe2\x82\xac \\xff \\xc3");
  EXPECT_THAT(shown_value("A", std::string(100000, 'x')), HasSubstr("... (100000 bytes)"));
}

}  // namespace
}  // namespace ddp::diagnostics
