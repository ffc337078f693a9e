// What opening PMIx's library says where there is none, or another library under its name.
#include "kvs/pmix_library.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include <ddp/error.hpp>

namespace ddp::kvs {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string refusal_of(const std::string& name) {
  try {
    return "opened " + PmixLibrary{name}.file();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    return error.what();
  }
}

TEST(PmixLibrary, NamesWhatTheLoaderDoesNotFind) {
  EXPECT_THAT(refusal_of("libpmix-that-is-absent.so.2"),
              AllOf(HasSubstr("opening PMIx's library"), HasSubstr("libpmix-that-is-absent.so.2: cannot open"),
                    HasSubstr("install PMIx 4.2"), HasSubstr("LD_LIBRARY_PATH")));
}

TEST(PmixLibrary, NamesTheFunctionsThatALibraryLacks) {
  EXPECT_THAT(refusal_of("libm.so.6"), AllOf(HasSubstr("libm.so.6 has no PMIx_Init, PMIx_Finalize, "),
                                             HasSubstr("PMIx_Value_destruct"), HasSubstr("PMIx 4.2 or newer")));
}

TEST(PmixLibrary, IsTheSystems) {
  const PmixLibrary library;
  EXPECT_THAT(library.file(), HasSubstr("libpmix.so.2"));
  EXPECT_THAT(library.get_version(), HasSubstr("PMIx"));
}

}  // namespace
}  // namespace ddp::kvs
