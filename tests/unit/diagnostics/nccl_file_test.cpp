// Which variables a library reads, and which library would be loaded, without loading it.
#include "diagnostics/environment/nccl_file.hpp"

#include "support/checkout.hpp"

namespace ddp::diagnostics {
namespace {

namespace fs = std::filesystem;

std::string nccl_double() { return ddp::test::built_file("tests/unit/diagnostics/nccl/libnccl.so.2"); }
std::string plugin_double() { return ddp::test::built_file("tests/unit/diagnostics/nccl/libnccl-net-site.so"); }

/// Of this process: others may run the same tests.
struct ScratchFolder {
  ScratchFolder() = default;
  ScratchFolder& operator=(ScratchFolder&&) = delete;
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  fs::path path = fs::path(testing::TempDir()) / ("environment_test." + std::to_string(::getpid()));
};

fs::path folder(const std::string& name) {
  static const ScratchFolder scratch;
  const fs::path made = scratch.path / name;
  fs::remove_all(made);
  fs::create_directories(made);
  return made;
}

/// Of a process whose root is @p root.
base::NcclSurroundings surroundings(const fs::path& root,
                                    std::map<std::string, std::string, std::less<>> variables = {}) {
  return {.program = "/usr/bin/train", .environment = base::Environment{std::move(variables)}, .root = root.string()};
}

TEST(NcclFile, NamesAndVersionComeFromTheFile) {
  const NcclFile file = scan_nccl(nccl_double());
  EXPECT_EQ(file.version, "2.18.3+cuda12.1");
  EXPECT_EQ(file.problem, "");
  EXPECT_THAT(file.names,
              ElementsAre("NCCL_ALGO", "NCCL_CHECK_POINTERS", "NCCL_CONF_FILE", "NCCL_CROSS_NIC", "NCCL_DEBUG",
                          "NCCL_DEBUG_FILE", "NCCL_GRAPH_FILE", "NCCL_IB_DISABLE", "NCCL_IB_HCA", "NCCL_IB_RETRY_CNT",
                          "NCCL_IB_TIMEOUT", "NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS", "NCCL_NET_GDR_LEVEL",
                          "NCCL_NET_PLUGIN", "NCCL_NTHREADS", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_PROTO",
                          "NCCL_SITE_SWITCH", "NCCL_SOCKET_IFNAME"));
  EXPECT_TRUE(file.reads("NCCL_SITE_SWITCH"));
  EXPECT_FALSE(file.reads("NCCL_BUFFSIZE"));
}

// Real libraries: DDP_TEST_NCCLS is "LIBRARY=NAMES ...", where NAMES is a file with the names in that version's
// sources, one a line. docs/reference/ddp-info.md has the command that writes it, and what came out.
TEST(NcclFile, RealOnesReadWhatIsInTheirSources) {
  const char* given = std::getenv("DDP_TEST_NCCLS");
  if (given == nullptr) GTEST_SKIP() << "DDP_TEST_NCCLS names no libraries";
  std::istringstream pairs(given);
  for (std::string pair; pairs >> pair;) {
    const auto equals = pair.find('=');
    ASSERT_NE(equals, std::string::npos) << pair;
    std::ifstream list(pair.substr(equals + 1));
    std::set<std::string> names;
    for (std::string name; list >> name;) names.insert(name);
    EXPECT_GT(names.size(), 50U) << pair;
    const NcclFile file = scan_nccl(pair.substr(0, equals));
    EXPECT_NE(file.version, "") << pair;
    EXPECT_EQ((std::set<std::string>{file.names.begin(), file.names.end()}), names) << pair;
  }
}

TEST(NcclFile, WhatIsNoLibraryIsSaid) {
  const fs::path where = folder("bad");
  EXPECT_THAT(scan_nccl((where / "absent").string()).problem, HasSubstr("ENOENT"));
  std::string bytes;
  {
    std::ifstream whole(nccl_double(), std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(whole), {});
  }
  // Cut anywhere, it is reported, not read beyond its end.
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{3}, std::size_t{63}, std::size_t{64}, bytes.size() / 2, bytes.size() - 1}) {
    std::ofstream(where / "cut", std::ios::binary) << bytes.substr(0, size);
    EXPECT_NE(scan_nccl((where / "cut").string()).problem, "") << size;
  }
  ASSERT_EQ(::mkfifo((where / "fifo").c_str(), 0600), 0);
  EXPECT_THAT(scan_nccl((where / "fifo").string()).problem, HasSubstr("not a 64-bit ELF file"));  // and does not block
  std::ofstream(where / "text") << std::string(4096, 'x');
  EXPECT_THAT(scan_nccl((where / "text").string()).problem, HasSubstr("not a 64-bit ELF file"));
}

// In a root of its own, as a container's: paths are those that the process itself sees.
TEST(NcclFile, TheLoadersIsFoundWithoutLoading) {
  const fs::path root = folder("root");
  const NcclFile none = find_nccl(surroundings(root));
  EXPECT_EQ(none.path, "");
  EXPECT_EQ(none.problem, "none was found");

  fs::create_directories(root / "usr/lib");
  fs::copy_file(nccl_double(), root / "usr/lib/libnccl.so.2");
  const NcclFile of_system = find_nccl(surroundings(root));
  EXPECT_EQ(of_system.path, "/usr/lib/libnccl.so.2");
  EXPECT_TRUE(of_system.scanned());

  fs::create_directories(root / "mine");
  fs::copy_file(nccl_double(), root / "mine/libnccl.so.2");
  const NcclFile mine = find_nccl(surroundings(root, {{"LD_LIBRARY_PATH", "/nowhere::/mine"}}));
  EXPECT_EQ(mine.path, "/mine/libnccl.so.2");
  EXPECT_THAT(mine.found, HasSubstr("LD_LIBRARY_PATH"));

  fs::copy_file(nccl_double(), root / "libnccl.so.9");
  EXPECT_EQ(find_nccl(surroundings(root, {{"LD_PRELOAD", "/a.so:/libnccl.so.9"}})).found, "LD_PRELOAD");
  // That of a Python environment is before the loader's.
  const fs::path packages = "venv/lib/python3.11/site-packages/nvidia/nccl/lib";
  fs::create_directories(root / packages);
  fs::copy_file(nccl_double(), root / packages / "libnccl.so.2");
  const NcclFile of_python = find_nccl(surroundings(root, {{"VIRTUAL_ENV", "/venv"}}));
  EXPECT_EQ(of_python.path, "/" + (packages / "libnccl.so.2").string());
  EXPECT_TRUE(of_python.scanned());
  // One that is named decides, also if it is not there.
  const NcclFile named = find_nccl(surroundings(root, {{"DDP_NCCL_LIBRARY", "/nowhere/libnccl.so.2"}}));
  EXPECT_EQ(named.path, "/nowhere/libnccl.so.2");
  EXPECT_THAT(named.problem, HasSubstr("ENOENT"));
}

// A site's network plugin reads names of its own, which are right where NCCL would open it.
TEST(NcclFile, PluginsReadVariablesToo) {
  const fs::path root = folder("plugins");
  fs::create_directories(root / "usr/lib");
  fs::create_directories(root / "opt");
  fs::copy_file(nccl_double(), root / "usr/lib/libnccl.so.2");
  fs::copy_file(plugin_double(), root / "opt/libnccl-net-site.so");
  fs::copy_file(plugin_double(), root / "opt/libnccl-tuner.so");
  struct Case {
    std::map<std::string, std::string, std::less<>> variables;
    const char* with;  // empty: no plugin
  };
  for (const Case& each :
       std::vector<Case>{{{{"NCCL_NET_PLUGIN", "site"}, {"LD_LIBRARY_PATH", "/opt"}, {"NCCL_TUNER_PLUGIN", "none"}},
                          "; with /opt/libnccl-net-site.so"},
                         {{{"NCCL_NET_PLUGIN", "absent,/opt/libnccl-net-site.so"}}, "; with /opt/libnccl-net-site.so"},
                         {{{"LD_LIBRARY_PATH", "/opt"}}, "; with /opt/libnccl-tuner.so"},
                         {{{"LD_LIBRARY_PATH", "/opt"}, {"NCCL_TUNER_PLUGIN", "none"}}, ""},
                         {{{"NCCL_NET_PLUGIN", "site"}}, ""}}) {
    const NcclFile file = find_nccl(surroundings(root, each.variables));
    EXPECT_EQ(file.found, std::string("the loader's") + each.with);
    EXPECT_EQ(file.reads("NCCL_SITE_RAILS"), each.with[0] != '\0');
    EXPECT_EQ(file.names.size(), 21U);  // its own
  }
  auto loaded = surroundings(root);
  loaded.loaded = {"/usr/lib/libnccl.so.2", "/opt/libnccl-net-site.so"};
  EXPECT_TRUE(find_nccl(loaded).reads("NCCL_SITE_RAILS"));
}

TEST(NcclFile, TheLoadersCache) {
  const fs::path root = folder("cache");
  fs::create_directories(root / "etc");
  fs::create_directories(root / "opt");
  fs::copy_file(nccl_double(), root / "opt/libnccl.so.2");
  std::string cache = "glibc-ld.so.cache1.1";
  const auto number = [&](std::uint64_t value, int bytes) {
    for (; bytes > 0; --bytes, value >>= 8U) cache += static_cast<char>(value & 0xffU);
  };
  const std::uint64_t strings = 48 + 24;
  number(1, 4);
  for (int i = 0; i < 6; ++i) number(0, 4);
  number(0, 4);
  number(strings, 4);
  number(strings + 13, 4);
  number(0, 12);
  cache += std::string("libnccl.so.2\0/opt/libnccl.so.2\0", 31);
  std::ofstream(root / "etc/ld.so.cache", std::ios::binary) << cache;
  EXPECT_EQ(find_nccl(surroundings(root)).path, "/opt/libnccl.so.2");
  for (std::size_t size = 0; size < cache.size(); ++size) {
    std::ofstream(root / "etc/ld.so.cache", std::ios::binary) << cache.substr(0, size);
    find_nccl(surroundings(root));
  }
}

}  // namespace
}  // namespace ddp::diagnostics
