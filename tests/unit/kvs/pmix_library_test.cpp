// What opening PMIx's library says where there is none, or another library under its name.
#include <ddp/error.hpp>

#include "kvs/pmix_library.hpp"

namespace ddp::kvs {
namespace {

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

// PMIx arrays hold what was put into them, own it once, and keep PMIX_RANK first.

namespace {

TEST(InfoList, KeepsTypesAndValues) {
  InfoList infos;
  infos.text("a", "text").number32("b", 70000).number16("c", 7).rank("d", 9).boolean("e", false);
  ASSERT_EQ(infos.size(), 5U);
  EXPECT_STREQ(infos[0].key, "a");
  EXPECT_EQ(infos[0].value.type, PMIX_STRING);
  EXPECT_STREQ(infos[0].value.data.string, "text");
  EXPECT_EQ(infos[1].value.type, PMIX_UINT32);
  EXPECT_EQ(infos[1].value.data.uint32, 70000U);
  EXPECT_EQ(infos[2].value.type, PMIX_UINT16);
  EXPECT_EQ(infos[2].value.data.uint16, 7U);
  EXPECT_EQ(infos[3].value.type, PMIX_PROC_RANK);
  EXPECT_EQ(infos[3].value.data.rank, 9U);
  EXPECT_EQ(infos[4].value.type, PMIX_BOOL);
  EXPECT_FALSE(infos[4].value.data.flag);
}

TEST(InfoList, NestedListsMoveInWhole) {
  InfoList inner;
  inner.rank(PMIX_RANK, 3).text(PMIX_HOSTNAME, "node1");
  InfoList outer;
  outer.list(PMIX_PROC_DATA, std::move(inner));
  EXPECT_EQ(inner.size(), 0U);  // NOLINT(bugprone-use-after-move): the promise is that it is empty
  ASSERT_EQ(outer[0].value.type, PMIX_DATA_ARRAY);
  const pmix_data_array_t* array = outer[0].value.data.darray;
  ASSERT_EQ(array->type, PMIX_INFO);
  ASSERT_EQ(array->size, 2U);
  const auto* elements = static_cast<const pmix_info_t*>(array->array);
  EXPECT_STREQ(elements[0].key, PMIX_RANK);
  EXPECT_EQ(elements[0].value.data.rank, 3U);
  EXPECT_STREQ(elements[1].value.data.string, "node1");
}

TEST(InfoList, MovingLeavesOneOwner) {
  InfoList first;
  first.text("a", "text");
  const InfoList second{std::move(first)};
  EXPECT_EQ(first.size(), 0U);  // NOLINT(bugprone-use-after-move)
  EXPECT_STREQ(second[0].value.data.string, "text");
}

}  // namespace

}  // namespace ddp::kvs
