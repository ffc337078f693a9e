// Error files come from user programs: real ones are understood, and nothing else can do harm.
#include "outcome/error_file.hpp"

#include <system_error>

#include <ddp/error.hpp>

#include "support/error_of.hpp"
#include "support/sanitized.hpp"

namespace ddp::launcher {
namespace {

using nlohmann::json;
using std::chrono::seconds;
using std::chrono::system_clock;

// As torch 2.13 writes them.
constexpr const char* kReal =
    R"({"message": {"message": "ValueError: bad loss \u00e9 \ud83d\ude00", "extraInfo": {"py_callstack": )"
    R"("Traceback (most recent call last):\n  File \"a.py\", line 5, in inner\n    raise ValueError()\n)"
    R"(ValueError: bad loss \u00e9 \ud83d\ude00\n", "timestamp": "1795255618"}}})";
constexpr const char* kBrokenFileName =
    R"({"message": {"message": "OSError: 'a\udcff'", "extraInfo": {"py_callstack": "x \ud800\\ud800 \ud83dz", )"
    R"("timestamp": "1795255631"}}})";

struct ErrorFileTest : testing::Test {
  ErrorFileTest() {
    std::string name = testing::TempDir() + "error_file_XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    folder_ = name;
  }
  ~ErrorFileTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::string path(const std::string& name = "error.json") const { return folder_ / name; }
  std::string write(const std::string& text) const {
    std::ofstream(path(), std::ios::binary) << text;
    return path();
  }
  std::string text() const {
    std::ifstream stream(path());
    std::ostringstream all;
    all << stream.rdbuf();
    return all.str();
  }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }

  std::filesystem::path folder_;
};

TEST_F(ErrorFileTest, AFileOfTorchIsUnderstood) {
  const auto content = read_error_file(write(kReal));
  ASSERT_TRUE(content);
  EXPECT_EQ(*content, kReal);
  const WorkerError error = parse_error_file(*content);
  EXPECT_EQ(error.message, "ValueError: bad loss é 😀");
  EXPECT_EQ(error.traceback,
            "Traceback (most recent call last):\n  File \"a.py\", line 5, in inner\n    raise ValueError()\n"
            "ValueError: bad loss é 😀\n");
  EXPECT_EQ(error.time, system_clock::time_point{seconds(1795255618)});
}

TEST_F(ErrorFileTest, TextMessagesAreUnderstood) {
  const WorkerError error = parse_error_file(R"({"message": "it broke", "timestamp": 17})");
  EXPECT_EQ(error.message, "it broke");
  EXPECT_EQ(error.traceback, "");
  EXPECT_EQ(error.time, system_clock::time_point{seconds(17)});
}

TEST_F(ErrorFileTest, SurrogatesWithoutAPartnerAreReplaced) {
  const WorkerError error = parse_error_file(kBrokenFileName);
  EXPECT_EQ(error.message, "OSError: 'a\xef\xbf\xbd'");
  EXPECT_EQ(error.traceback, "x \xef\xbf\xbd\\ud800 \xef\xbf\xbdz");
}

TEST_F(ErrorFileTest, WhatIsNoSuchJsonIsTheMessageAsItIs) {
  for (const char* text : {"plain text", "{", "[]", "17", "null", "\"text\"", "{}", R"({"message": 17})",
                           R"({"message": null})", R"({"message": []})", R"({"message": ""})", R"({"message": {}})",
                           R"({"message": {"message": 5}})", R"({"message": "a"} b)", R"({"message": "\u12"})"}) {
    const WorkerError error = parse_error_file(text);
    EXPECT_EQ(error.message, text);
    EXPECT_EQ(error.traceback, "") << text;
    EXPECT_FALSE(error.time) << text;
  }
}

TEST_F(ErrorFileTest, OddTypesBesideAGoodMessageDoNoHarm) {
  for (const char* extra :
       {"17", "null", "[]", "\"x\"", R"({"py_callstack": 5, "timestamp": {}})", R"({"timestamp": "soon"})",
        R"({"timestamp": "17x"})", R"({"timestamp": -5})", R"({"timestamp": 1e300})",
        R"({"timestamp": "99999999999999999999"})", R"({"timestamp": 18446744073709551615})"}) {
    const WorkerError error =
        parse_error_file(fmt::format(R"({{"message": {{"message": "m", "extraInfo": {}}}}})", extra));
    EXPECT_EQ(error.message, "m") << extra;
    EXPECT_EQ(error.traceback, "") << extra;
    EXPECT_FALSE(error.time) << extra;
  }
}

TEST_F(ErrorFileTest, TextThatIsNoUtf8IsMadeSo) {
  EXPECT_EQ(parse_error_file("{\"message\": \"a\xff"
                             "b\"}")
                .message,
            "a\xef\xbf\xbd"
            "b");
  EXPECT_EQ(parse_error_file("\xc3").message, "\xef\xbf\xbd");
  EXPECT_EQ(parse_error_file(std::string("a\0b", 3)).message, std::string("a\0b", 3));
}

TEST_F(ErrorFileTest, OfLongTextTheBeginningIsShown) {
  const WorkerError error = parse_error_file("start " + std::string(100'000, 'x'));
  EXPECT_THAT(error.message, StartsWith("start xxx"));
  EXPECT_THAT(error.message, EndsWith("x ..."));
  EXPECT_LT(error.message.size(), 5000U);
}

TEST_F(ErrorFileTest, ManyLevelsDoNotOverflowTheStack) {
  const std::string levels(100'000, '[');
  parse_error_file(levels);
  const std::string closed = R"({"message": "m", "x": )" + levels + std::string(levels.size(), ']') + "}";
  EXPECT_EQ(parse_error_file(closed).message, "m");
  EXPECT_EQ(json::parse(with_error_code(closed, 1))["message"], "m");
}

TEST_F(ErrorFileTest, ALargeFileIsCutAndStillUnderstood) {
  const std::string filler(10'000'000, 'x');
  const std::string head = R"({"message": {"message": "ValueError: m", "extraInfo": {"py_callstack": "Traceback\n)";
  auto content = read_error_file(write(head + filler + R"(", "timestamp": "1795255618"}}})"));
  ASSERT_TRUE(content);
  EXPECT_EQ(content->size(), kMaxErrorFileBytes);
  WorkerError error = parse_error_file(*content);
  EXPECT_EQ(error.message, "ValueError: m");
  EXPECT_THAT(error.traceback, StartsWith("Traceback\nxxx"));
  EXPECT_GT(error.traceback.size(), kMaxErrorFileBytes - 200);

  content = read_error_file(write(R"({"message": {"message": "ValueError: )" + filler + "\"}}"));
  EXPECT_THAT(parse_error_file(*content).message, StartsWith("ValueError: xxx"));
  content = read_error_file(write(R"({"message": "ValueError: )" + filler + "\"}"));
  EXPECT_THAT(parse_error_file(*content).message, StartsWith("ValueError: xxx"));
  content = read_error_file(write(filler));
  EXPECT_THAT(parse_error_file(*content).message, StartsWith("xxx"));
}

TEST_F(ErrorFileTest, ACutWithinAnEscapeOrACharacterIsUnderstood) {
  for (const char* piece : {"\\u00e9", "\\ud83d\\ude00", "\\n", "\\\\", "\xc3\xa9"}) {
    const std::string unit = piece;
    for (std::size_t shift = 0; shift < unit.size(); shift += ::ddp::test::kSanitized ? 5 : 1) {
      std::string content = R"({"message": {"message": "m", "extraInfo": {"py_callstack": ")";
      content.resize(kMaxErrorFileBytes - 100 + shift, 'y');
      while (content.size() < kMaxErrorFileBytes) content += unit;
      content.resize(kMaxErrorFileBytes);
      EXPECT_TRUE(parse_error_file(content).message == "m") << piece << " " << shift;
    }
  }
}

TEST_F(ErrorFileTest, WhatIsNoRegularFileIsNothingAndDoesNotBlock) {
  EXPECT_FALSE(read_error_file(""));
  EXPECT_FALSE(read_error_file(path("missing")));
  EXPECT_FALSE(read_error_file(path() + "/below"));
  EXPECT_FALSE(read_error_file(folder_));
  EXPECT_FALSE(read_error_file("/dev/zero"));
  EXPECT_FALSE(read_error_file(write("")));
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_FALSE(read_error_file(path("pipe")));
  std::filesystem::create_symlink(path("loop"), path("loop"));
  EXPECT_FALSE(read_error_file(path("loop")));
}

TEST_F(ErrorFileTest, AnUnreadableFileIsNothing) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read everything";
  ASSERT_EQ(::chmod(write(kReal).c_str(), 0), 0);
  EXPECT_FALSE(read_error_file(path()));
}

TEST_F(ErrorFileTest, PassedOnWithTheErrorCode) {
  pass_on_error_file(kReal, -11, path());
  json expected = json::parse(kReal);
  expected["message"]["errorCode"] = -11;
  EXPECT_EQ(json::parse(text()), expected);
  const WorkerError error = parse_error_file(text());
  EXPECT_EQ(error.message, parse_error_file(kReal).message);
  EXPECT_EQ(error.traceback, parse_error_file(kReal).traceback);
  EXPECT_EQ(files(), 1U);  // nothing is left beside it
}

TEST_F(ErrorFileTest, TextMessagesArePassedOnWithoutACode) {
  EXPECT_EQ(json::parse(with_error_code(R"({"message": "m", "timestamp": 5})", 3)),
            json::parse(R"({"message": "m", "timestamp": 5})"));
  EXPECT_EQ(json::parse(with_error_code(R"({"message": "m", "timestamp": "x"})", 3)),
            json::parse(R"({"message": "m"})"));
  EXPECT_FALSE(json::parse(with_error_code(kReal, 0))["message"].contains("errorCode"));
}

TEST_F(ErrorFileTest, WhateverIsPassedOnHasWhatTorchNeeds) {
  for (const char* content : {"plain", "\xff", "{", R"({"message": {}})", R"({"message": {"message": 5}})",
                              R"({"message": 5})", R"({"message": {"message": "m", "extraInfo": 5}})", kBrokenFileName,
                              R"({"message": {"message": "m", "extraInfo": {"py_callstack": 5, "timestamp": "x"}}})"}) {
    const json passed = json::parse(with_error_code(content, 3));
    const json& message = passed.at("message");
    EXPECT_TRUE(message.at("message").is_string()) << content;
    EXPECT_GT(std::stoll(message.at("extraInfo").at("timestamp").get<std::string>()), 0) << content;
    EXPECT_EQ(message.at("errorCode"), 3) << content;
    const json& extra = message.at("extraInfo");
    EXPECT_TRUE(!extra.contains("py_callstack") || extra.at("py_callstack").is_string()) << content;
  }
}

TEST_F(ErrorFileTest, ANumericTimestampIsPassedOnAsText) {
  const json passed =
      json::parse(with_error_code(R"({"message": {"message": "m", "extraInfo": {"timestamp": 1300}}})", 3));
  EXPECT_EQ(passed.at("message").at("extraInfo").at("timestamp"), "1300");
}

TEST_F(ErrorFileTest, PassingOnReplacesTheFileAsAWhole) {
  write(std::string(1000, 'x'));
  std::filesystem::create_hard_link(path(), path("old"));
  pass_on_error_file(kReal, 1, path());
  EXPECT_TRUE(json::accept(text()));
  EXPECT_EQ(std::filesystem::file_size(path("old")), 1000U);  // a reader of the old file keeps it
}

TEST_F(ErrorFileTest, PassingOnSaysWhatWentWrong) {
  const Error error = ddp::test::thrown_by([&] { pass_on_error_file(kReal, 1, path("missing") + "/error.json"); });
  EXPECT_EQ(error.code(), ErrorCode::system);
  EXPECT_THAT(error.what(), HasSubstr("TORCHELASTIC_ERROR_FILE="));
  EXPECT_THAT(error.native(), HasSubstr("ENOENT"));
  EXPECT_THROW(pass_on_error_file(kReal, 1, folder_), Error);
}

}  // namespace
}  // namespace ddp::launcher
