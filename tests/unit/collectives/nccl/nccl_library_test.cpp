// Where NCCL is looked for, in which order, and what is said when it is missing or not good enough.
#include "collectives/nccl/nccl_library.hpp"

#include <dlfcn.h>

#include <ddp/error.hpp>

#include "support/checkout.hpp"

namespace ddp::collectives::nccl {
namespace {

namespace fs = std::filesystem;

std::string library(const std::string& name) {
  return ddp::test::built_file("tests/unit/collectives/nccl/libraries/libnccl_" + name + ".so");
}

base::NcclSurroundings surroundings(std::map<std::string, std::string, std::less<>> variables,
                                    std::vector<std::string> loaded = {}, std::string program = "/usr/bin/train") {
  return {.loaded = std::move(loaded),
          .program = std::move(program),
          .environment = base::Environment{std::move(variables)}};
}

std::vector<std::string> files(const base::NcclSurroundings& where) {
  std::vector<std::string> files;
  for (const base::NcclCandidate& candidate : base::nccl_candidates(where)) files.push_back(candidate.file);
  return files;
}

/// What the error says.
std::string problem(const base::NcclSurroundings& where) {
  try {
    const NcclLibrary opened(where);
    return "opened " + opened.file();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    return error.what();
  }
}

TEST(NcclCandidates, LoadedThenVariableThenPyTorchThenLoader) {
  EXPECT_THAT(files(surroundings({})), ElementsAre("libnccl.so.2"));
  EXPECT_THAT(files(surroundings({{"DDP_NCCL_LIBRARY", "/opt/nccl.so"}},
                                 {"/lib/libc.so.6", "/site-packages/torch/lib/libtorch_cuda.so",
                                  "/usr/lib/libnccl-net.so", "/site-packages/nvidia/nccl/lib/libnccl.so.2"})),
              ElementsAre("/site-packages/nvidia/nccl/lib/libnccl.so.2", "/site-packages/torch/lib/libtorch_cuda.so",
                          "/opt/nccl.so", "/site-packages/torch/lib/libnccl.so.2", "libnccl.so.2"));
  EXPECT_THAT(files(surroundings({}, {"/p/torch/lib/libc10.so", "/p/torch/lib/libtorch_cpu.so"})),
              ElementsAre("/p/torch/lib/libnccl.so.2", "/p/nvidia/nccl/lib/libnccl.so.2", "libnccl.so.2"));
}

TEST(NcclCandidates, PythonEnvironments) {
  const fs::path root = fs::path(::testing::TempDir()) / "nccl_python";
  const fs::path packages = root / "lib" / "python3.11" / "site-packages";
  fs::create_directories(packages);
  if (!fs::exists(root / "lib64")) fs::create_directory_symlink("lib", root / "lib64");
  const std::string expected = fs::canonical(packages) / "nvidia/nccl/lib/libnccl.so.2";
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    EXPECT_THAT(files(surroundings({{variable, root.string()}})), ElementsAre(expected, "libnccl.so.2"));
  }
  EXPECT_THAT(files(surroundings({}, {}, root / "bin" / "python3.11")), ElementsAre(expected, "libnccl.so.2"));
  EXPECT_THAT(files(surroundings({}, {}, root / "bin" / "train")), ElementsAre("libnccl.so.2"));
}

TEST(NcclCandidates, PackagesOutsideVirtualEnvironments) {
  const fs::path root = fs::path(::testing::TempDir()) / "nccl_packages";
  fs::remove_all(root);
  for (const char* folder : {"usr/lib/python3/dist-packages", "usr/local/lib/python3.11/dist-packages",
                             "home/me/.local/lib/python3.11/site-packages", "opt/env/lib/python3.12/site-packages"})
    fs::create_directories(root / folder);
  auto where = surroundings({{"HOME", "/home/me"}});
  where.root = root.string();
  EXPECT_THAT(base::python_packages(where, "/usr/bin/python3"),
              ElementsAre("/home/me/.local/lib/python3.11/site-packages", "/usr/local/lib/python3.11/dist-packages",
                          "/usr/lib/python3/dist-packages"));
  EXPECT_THAT(base::python_packages(where, "/opt/env/bin/python3"),
              ElementsAre("/home/me/.local/lib/python3.11/site-packages", "/opt/env/lib/python3.12/site-packages"));
  std::ofstream(root / "opt/env/pyvenv.cfg") << "home = /usr/bin\n";
  EXPECT_THAT(base::python_packages(where, "/opt/env/bin/python3"),
              ElementsAre("/opt/env/lib/python3.12/site-packages"));
  where.environment = base::Environment{{{"HOME", "/home/me"}, {"PYTHONNOUSERSITE", "1"}}};
  EXPECT_THAT(base::python_packages(where, "/usr/bin/python3"),
              ElementsAre("/usr/local/lib/python3.11/dist-packages", "/usr/lib/python3/dist-packages"));
}

TEST(NcclCandidates, NothingIsTakenFromWhereTheProgramHappensToBe) {
  const fs::path root = fs::path(::testing::TempDir()) / "nccl_relative";
  const fs::path packages = root / "lib" / "python3.11" / "site-packages";
  fs::create_directories(packages);
  const fs::path before = fs::current_path();
  fs::create_directories(root / "jobs");
  fs::current_path(root / "jobs");  // as a program that changes to a shared folder, after "../bin/python"
  EXPECT_THAT(files(surroundings({}, {}, "../bin/python3.11")), ElementsAre("libnccl.so.2"));
  EXPECT_THAT(files(surroundings({{"VIRTUAL_ENV", ".."}, {"CONDA_PREFIX", "./.."}})), ElementsAre("libnccl.so.2"));
  EXPECT_THAT(files(surroundings({}, {"../torch/lib/libtorch_cpu.so"})), ElementsAre("libnccl.so.2"));
  auto python = surroundings({}, {}, "../bin/python3.11");
  python.python_prefix = root;
  EXPECT_THAT(files(python), ElementsAre(fs::canonical(packages) / "nvidia/nccl/lib/libnccl.so.2", "libnccl.so.2"));
  const auto relative =
      fs::relative(ddp::test::built_file("lib/fake_nccl_2_18/libnccl.so.2"), fs::current_path()).string();
  EXPECT_THAT(problem(surroundings({{"DDP_NCCL_LIBRARY", relative}})), HasSubstr("is a relative path"));
  fs::current_path(before);
}

TEST(NcclLibrary, OpensWhatTheVariableNames) {
  const NcclLibrary old{surroundings({{"DDP_NCCL_LIBRARY", ddp::test::built_file("lib/fake_nccl_2_18/libnccl.so.2")}})};
  EXPECT_EQ(old.found(), "DDP_NCCL_LIBRARY");
  EXPECT_EQ(version_text(old.version()), "2.18.5");
  EXPECT_TRUE(fs::equivalent(old.file(), ddp::test::built_file("lib/fake_nccl_2_18/libnccl.so.2")));
  // Functions that came later are missing, and only these.
  each_function([&](auto member, const char* name, int since) {
    EXPECT_EQ(old.functions().*member == nullptr, since > old.version()) << name;
  });
  EXPECT_EQ(old.config().version, 21805U);
  EXPECT_EQ(old.config().blocking, kUndefinedInt);
}

TEST(NcclLibrary, SaysWhatWasTriedAndWhere) {
  EXPECT_THAT(problem(surroundings({{"DDP_NCCL_LIBRARY", "/nowhere/libnccl.so.2"}})),
              ::testing::AllOf(HasSubstr("opening NCCL: /nowhere/libnccl.so.2: cannot open shared object file"),
                               HasSubstr("(DDP_NCCL_LIBRARY)"), HasSubstr("2.18 or newer")));
  EXPECT_THAT(problem(surroundings({{"DDP_NCCL_LIBRARY", library("old")}})),
              HasSubstr("is NCCL 2.17.3, which is too old"));
  EXPECT_THAT(problem(surroundings({{"DDP_NCCL_LIBRARY", library("partial")}})),
              HasSubstr("NCCL 2.18.5, has no ncclGetUniqueId, ncclGetErrorString"));
  EXPECT_THAT(problem(surroundings({{"DDP_NCCL_LIBRARY", library("silent")}})),
              HasSubstr("does not report its version"));
  EXPECT_THAT(problem(surroundings({{"DDP_NCCL_LIBRARY", library("mute")}})), HasSubstr("does not report its version"));
  // A library that PyTorch could have inside, but has not, is no answer.
  EXPECT_THAT(problem(surroundings({{"DDP_NCCL_LIBRARY", library("old")}}, {"/nowhere/libtorch_cuda.so"})),
              HasSubstr("2.17.3"));
}

/// PyTorch built without NCCL has a library of that name, too.
TEST(NcclLibrary, AnotherLibraryIsPassedOver) {
  const fs::path torch = fs::path(::testing::TempDir()) / "libtorch_cuda.so";
  fs::remove(torch);
  fs::create_symlink(library("silent"), torch);
  void* const loaded = dlopen(torch.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(loaded, nullptr) << dlerror();
  EXPECT_THAT(problem(surroundings({{"DDP_NCCL_LIBRARY", library("old")}}, {torch.string()})),
              HasSubstr("is NCCL 2.17.3"));
  dlclose(loaded);
}

TEST(NcclLibrary, NamesResultsAndVersions) {
  EXPECT_EQ(to_string(ncclRemoteError), "ncclRemoteError (6)");
  EXPECT_EQ(to_string(ncclTimeout), "ncclTimeout (8)");
  EXPECT_EQ(to_string(static_cast<ncclResult_t>(77)), "ncclResult_t (77)");
  EXPECT_EQ(version_text(23007), "2.30.7");
  EXPECT_EQ(version_text(2708), "2.7.8");
}

}  // namespace
}  // namespace ddp::collectives::nccl
