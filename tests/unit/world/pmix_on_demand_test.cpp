// libpmix is mapped where PMIx is used, and nowhere else: a program that brings another PMIx under the same name finds
// its own, before and after libddp. In processes of their own, since what is mapped stays.
#include <dlfcn.h>

#include <iostream>

#include <ddp/error.hpp>
#include <ddp/world.hpp>

#include "kvs/pmix_library.hpp"
#include "support/checkout.hpp"

namespace ddp {
namespace {

using testing::ExitedWithCode;

/// The first of PMIx's libraries and those that it brings that this process has mapped; empty: none.
std::string mapped_of_pmix() {
  std::ifstream file("/proc/self/maps");
  const std::string maps{std::istreambuf_iterator<char>(file), {}};
  for (const std::string_view name : {"libpmix", "libevent", "libmunge"}) {
    if (maps.find(name) != std::string::npos) return std::string(name);
  }
  return {};
}

void require(bool condition, const std::string& what) {
  if (condition) return;
  std::cerr << what << '\n';
  ::_exit(1);
}

void require_nothing_of_pmix(const std::string& when) {
  const std::string name = mapped_of_pmix();
  require(name.empty(), when + ": mapped " + name);
}

/// As `import mpi4py` does after or before libddp.
void require_mpi_works(int visibility) {
  void* const library = ::dlopen(ddp::test::built_file("lib/libmpi_with_other_pmix.so").c_str(), RTLD_NOW | visibility);
  require(library != nullptr, library == nullptr ? ::dlerror() : "");
  const auto answer = reinterpret_cast<int (*)()>(::dlsym(library, "mpi_answer"));
  require(answer != nullptr && answer() == 42, "the MPI does not call its own PMIx");
}

void require_world_alone() {
  ::clearenv();
  const World world = World::init();
  require(world.world_size() == 1, "not alone");
}

TEST(PmixOnDemandDeathTest, TheLibraryMapsNothingOfPmix) {
  const auto body = [] {
    require(::dlopen(ddp::test::built_file("lib/libddp.so").c_str(), RTLD_NOW) != nullptr, "libddp.so does not load");
    require_nothing_of_pmix("loaded");
    require_world_alone();
    require_nothing_of_pmix("in a world of one");
    ::_exit(0);
  };
  EXPECT_EXIT(body(), ExitedWithCode(0), "");
}

TEST(PmixOnDemandDeathTest, AnMpiThatComesLaterFindsItsOwnPmix) {
  const auto body = [] {
    require(::dlopen(ddp::test::built_file("lib/libddp.so").c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr,
            "libddp.so does not load");
    require_world_alone();
    require_mpi_works(RTLD_LOCAL);
    ::_exit(0);
  };
  EXPECT_EXIT(body(), ExitedWithCode(0), "");
}

TEST(PmixOnDemandDeathTest, AnMpiThatWasThereBeforeKeepsItsOwnPmix) {
  const auto body = [] {
    require_mpi_works(RTLD_GLOBAL);
    require(::dlopen(ddp::test::built_file("lib/libddp.so").c_str(), RTLD_NOW) != nullptr, "libddp.so does not load");
    require_world_alone();
    require_mpi_works(RTLD_GLOBAL);
    ::_exit(0);
  };
  EXPECT_EXIT(body(), ExitedWithCode(0), "");
}

/// One process has one PMIx: no second one beside the MPI's, whose functions would be mixed with it.
void require_refusal_of_the_other(int visibility) {
  require_mpi_works(visibility);
  try {
    kvs::pmix();
  } catch (const Error& error) {
    std::cerr << to_string(error.code()) << ": " << error.what() << '\n';
    require_mpi_works(visibility);
    ::_exit(0);
  }
  require(false, "opened " + kvs::pmix().file());
}

constexpr auto kRefusal = "unavailable: .*other_pmix/libpmix.so.2 .OtherPMIx 9. has no PMIx_Finalize, .*PMIx_Put";

TEST(PmixOnDemandDeathTest, TheMpisPmixIsTheOneThatIsTaken) {
  EXPECT_EXIT(require_refusal_of_the_other(RTLD_LOCAL), ExitedWithCode(0), kRefusal);
  EXPECT_EXIT(require_refusal_of_the_other(RTLD_GLOBAL), ExitedWithCode(0), kRefusal);
}

TEST(PmixOnDemandDeathTest, IsMappedOnceItIsUsed) {
  const auto body = [] {
    require_nothing_of_pmix("before");
    const kvs::PmixLibrary& library = kvs::pmix();
    require(mapped_of_pmix() == "libpmix" && library.file().find("libpmix.so.2") != std::string::npos, library.file());
    // Not for the program's own libraries to see.
    require(::dlsym(RTLD_DEFAULT, "PMIx_Put") == nullptr, "its functions are visible to all");
    ::_exit(0);
  };
  EXPECT_EXIT(body(), ExitedWithCode(0), "");
}

}  // namespace
}  // namespace ddp
