#include "base/nccl_conf.hpp"

namespace ddp::base {
namespace {

namespace fs = std::filesystem;

TEST(NcclConf, IsReadAsNcclReadsIt) {
  EXPECT_THAT(parse_nccl_conf("# comment\nNCCL_A=1\n #NCCL_B=2\nNCCL_C = \"3\" \nno assignment\n=4\nNCCL_D=\nNCCL_A=5"),
              ElementsAre(::testing::Pair("NCCL_A", "1"), ::testing::Pair(" #NCCL_B", "2"),
                          ::testing::Pair("NCCL_C ", " \"3\" "), ::testing::Pair("NCCL_D", ""),
                          ::testing::Pair("NCCL_A", "5")));
  const fs::path where = fs::path(::testing::TempDir()) / "nccl_conf";
  fs::remove_all(where);
  fs::create_directories(where);
  const std::string node = (where / "nccl.conf").string();
  std::ofstream(node) << "NCCL_DEBUG=INFO\n";
  std::ofstream(where / ".nccl.conf") << "NCCL_DEBUG=WARN\n";
  std::ofstream(where / "mine") << "NCCL_DEBUG=INFO\n#\n";
  const auto files = read_nccl_conf(Environment{{}}, where.string(), node);
  ASSERT_EQ(files.size(), 2U);
  EXPECT_EQ(files[0].path, (where / ".nccl.conf").string());
  EXPECT_EQ(files[1].path, node);
  EXPECT_NE(files[0].digest, files[1].digest);
  const auto named = read_nccl_conf(Environment{{{"NCCL_CONF_FILE", (where / "mine").string()}}}, where.string(), node);
  ASSERT_EQ(named.size(), 2U);
  EXPECT_EQ(named[0].digest, named[1].digest);
  EXPECT_TRUE(read_nccl_conf(Environment{{{"NCCL_CONF_FILE", where.string()}}}, "", "/nowhere").empty());
  const std::string fifo = (where / "fifo").string();
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_TRUE(read_nccl_conf(Environment{{{"NCCL_CONF_FILE", fifo}}}, "", "/nowhere").empty());  // nor blocks
  // Another process's, below its root.
  const auto inside = read_nccl_conf(Environment{{{"NCCL_CONF_FILE", "/mine"}}}, "", "/nccl.conf", where.string());
  ASSERT_EQ(inside.size(), 2U);
  EXPECT_EQ(inside[0].path, "/mine");
}

TEST(NcclConf, TheStrongestFilesFirstLineCounts) {
  const std::vector<NcclConf> files{{.path = "mine", .digest = 0, .settings = {{"NCCL_A", "1"}, {"NCCL_A", "2"}}},
                                    {.path = "node", .digest = 0, .settings = {{"NCCL_A", "3"}, {"NCCL_B", "4"}}}};
  EXPECT_EQ(*value_in(files, "NCCL_A").value, "1");
  EXPECT_EQ(value_in(files, "NCCL_B").file->path, "node");
  EXPECT_EQ(value_in(files, "NCCL_C").value, nullptr);
}

TEST(NcclConf, TheHomeFolderIsThatOfTheEnvironment) {
  EXPECT_EQ(home_folder(Environment{{{"HOME", "/home/me"}}}), "/home/me");
  EXPECT_EQ(home_folder(Environment{{{"HOME", ""}}}), home_by_password_file().value_or(""));
}

}  // namespace
}  // namespace ddp::base
