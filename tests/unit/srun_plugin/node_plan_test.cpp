#include "task_side/node_plan.hpp"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ddp/error.hpp>

#include "base/byte_stream.hpp"

namespace ddp::srun_plugin {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

PlanQuestion question() {
  return {.bind = BindPolicy::socket,
          .gpus = topology::GpuVisibility::one,
          .backend = "auto",
          .node_list = "n[1-4]",
          .node_name = "n2",
          .store_address = "10.0.0.9",
          .store_port = 4711,
          .patience_seconds = 60,
          .resources = {base::to_bytes("first"), {}, base::to_bytes("third")}};
}

NodePlan plan() {
  return {.tasks = {{.binding = Binding{.cpus = CpuSet::parse("0-3"), .preferred_memory = 1},
                     .settings = {{"A", "1"}, {"B", ""}},
                     .summary = "4 cores"},
                    {.summary = ""}},
          .remarks = {"a remark", ""}};
}

template <class Function>
std::string refusal(Function&& function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::protocol);
    return error.what();
  }
  return "it was accepted";
}

TEST(NodePlan, QuestionComesBackAsItWas) {
  const PlanQuestion read = decode_question(encode(question()));
  EXPECT_EQ(read.bind, BindPolicy::socket);
  EXPECT_EQ(read.gpus, topology::GpuVisibility::one);
  EXPECT_EQ(read.backend, "auto");
  EXPECT_EQ(read.node_list, "n[1-4]");
  EXPECT_EQ(read.node_name, "n2");
  EXPECT_EQ(read.store_address, "10.0.0.9");
  EXPECT_EQ(read.store_port, 4711);
  EXPECT_EQ(read.patience_seconds, 60);
  EXPECT_THAT(read.resources, ElementsAre(base::to_bytes("first"), IsEmpty(), base::to_bytes("third")));
}

TEST(NodePlan, ComesBackAsItWas) {
  const NodePlan read = decode_plan(encode(plan()));
  ASSERT_EQ(read.tasks.size(), 2U);
  EXPECT_EQ(read.tasks[0].binding, plan().tasks[0].binding);
  EXPECT_THAT(read.tasks[0].settings, ElementsAre(std::pair("A", "1"), std::pair("B", "")));
  EXPECT_EQ(read.tasks[0].summary, "4 cores");
  EXPECT_EQ(read.tasks[1].binding, std::nullopt);
  EXPECT_THAT(read.remarks, ElementsAre("a remark", ""));
  EXPECT_EQ(encode(read), encode(plan()));
}

TEST(NodePlan, EveryTruncationIsAnError) {
  const Bytes asked = encode(question());
  for (std::size_t size = 0; size < asked.size(); ++size) {
    EXPECT_NE(refusal([&] { decode_question(std::span{asked}.first(size)); }), "it was accepted") << size;
  }
  const Bytes answered = encode(plan());
  for (std::size_t size = 0; size < answered.size(); ++size) {
    EXPECT_NE(refusal([&] { decode_plan(std::span{answered}.first(size)); }), "it was accepted") << size;
  }
}

TEST(NodePlan, TrailingBytesAreAnError) {
  Bytes asked = encode(question());
  asked.push_back(std::byte{0});
  EXPECT_THAT(refusal([&] { decode_question(asked); }), HasSubstr("1 bytes too many"));
  Bytes answered = encode(plan());
  answered.push_back(std::byte{0});
  EXPECT_THAT(refusal([&] { decode_plan(answered); }), HasSubstr("1 bytes too many"));
}

TEST(NodePlan, AnotherVersionSaysWhatToInstall) {
  Bytes asked = encode(question());
  Bytes answered = encode(plan());
  asked[0] = answered[0] = std::byte{9};
  for (const std::string& text : {refusal([&] { decode_question(asked); }), refusal([&] { decode_plan(answered); })}) {
    EXPECT_THAT(text, AllOf(HasSubstr("its version is 9, the plugin's is 4"), HasSubstr("from one package")));
  }
}

TEST(NodePlan, UnknownWordsAreErrors) {
  const auto asking = [](const char* bind, const char* gpus) {
    return base::ByteWriter{}.integer(kPlanVersion).text(bind).text(gpus).text("auto").text("n1").text("n1").bytes();
  };
  EXPECT_THROW(decode_question(asking("cores", "all")), Error);
  EXPECT_THROW(decode_question(asking("core", "some")), Error);
}

TEST(NodePlan, CountsAreNotTrusted) {
  const Bytes huge = base::ByteWriter{}.integer(kPlanVersion).integer(std::uint32_t{0xffffffffU}).bytes();
  EXPECT_THAT(refusal([&] { decode_plan(huge); }), HasSubstr("plan of the node"));
}

}  // namespace
}  // namespace ddp::srun_plugin
