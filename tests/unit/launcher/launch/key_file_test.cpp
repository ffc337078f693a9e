// The key file is made once, for its user alone, and not trusted when others could know it.
#include "launch/key_file.hpp"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <ddp/error.hpp>

namespace ddp::launcher {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Variables = std::map<std::string, std::string, std::less<>>;
namespace fs = std::filesystem;

class KeyFileTest : public testing::Test {
 protected:
  KeyFileTest() {
    std::string folder = (fs::temp_directory_path() / "key_file.XXXXXX").string();
    EXPECT_NE(::mkdtemp(folder.data()), nullptr);
    home_ = folder;
    path_ = key_file_path(base::Environment{Variables{{"HOME", home_}}});
  }
  ~KeyFileTest() override { fs::remove_all(home_); }

  std::string refusal() const {
    try {
      read_key_file(path_);
    } catch (const Error& error) {
      return error.what();
    }
    ADD_FAILURE() << "it was read";
    return {};
  }
  void write(const std::string& text) const {
    fs::create_directories(fs::path{path_}.parent_path());
    std::ofstream{path_} << text;
    ::chmod(path_.c_str(), 0600);
  }

  std::string home_;
  std::string path_;
};

TEST_F(KeyFileTest, LiesInTheFolderForSettings) {
  EXPECT_EQ(path_, home_ + "/.config/libddp/rendezvous.key");
  EXPECT_EQ(key_file_path(base::Environment{Variables{{"HOME", home_}, {"XDG_CONFIG_HOME", "/x"}}}),
            "/x/libddp/rendezvous.key");
  // relative ones are invalid (XDG Base Directory Specification)
  EXPECT_EQ(key_file_path(base::Environment{Variables{{"HOME", home_}, {"XDG_CONFIG_HOME", "x"}}}), path_);
  EXPECT_THAT(key_file_path(base::Environment{Variables{}}), testing::EndsWith("/.config/libddp/rendezvous.key"));
}

TEST_F(KeyFileTest, IsMadeOnceForTheUserAlone) {
  const std::string key = read_key_file(path_).to_hex();
  struct stat found {};
  ASSERT_EQ(::stat(path_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777U, 0600U);
  EXPECT_EQ(read_key_file(path_).to_hex(), key);
  int files = 0;
  for (const auto& entry : fs::directory_iterator{fs::path{path_}.parent_path()}) {
    EXPECT_EQ(entry.path(), path_);
    ++files;
  }
  EXPECT_EQ(files, 1);
  fs::remove(path_);
  EXPECT_NE(read_key_file(path_).to_hex(), key);
}

TEST_F(KeyFileTest, WhoeverMakesItAtTheSameTimeGetsTheSame) {
  std::vector<std::string> keys(16);
  std::vector<std::thread> threads;
  for (std::string& key : keys) threads.emplace_back([&] { key = read_key_file(path_).to_hex(); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::set<std::string>(keys.begin(), keys.end()).size(), 1U);
}

TEST_F(KeyFileTest, IsNotTrustedWhenOthersMayUseIt) {
  for (const mode_t mode : {0640U, 0604U, 0602U, 0660U}) {
    read_key_file(path_);
    ::chmod(path_.c_str(), mode);
    EXPECT_THAT(refusal(), AllOf(HasSubstr(path_), HasSubstr("others may use it"), HasSubstr("remove it")));
    ::chmod(path_.c_str(), 0600);
  }
}

TEST_F(KeyFileTest, AnotherUsersIsNotTrusted) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  read_key_file(path_);
  ASSERT_EQ(::chown(path_.c_str(), 4711, 4711), 0);
  EXPECT_THAT(refusal(), HasSubstr("it belongs to user 4711, but this is user 0"));
}

TEST_F(KeyFileTest, WhatIsNoKeyIsRefusedAndNotShown) {
  for (const std::string& text : {std::string{}, std::string{"aaaa\n"}, std::string(65, 'a'), std::string(64, 'x')}) {
    write(text);
    EXPECT_THAT(refusal(), AllOf(HasSubstr("does not hold 64 hexadecimal digits"), testing::Not(HasSubstr("aaaa"))));
  }
  write(std::string(64, 'a') + "\n");
  EXPECT_EQ(read_key_file(path_).to_hex(), std::string(64, 'a'));
  fs::rename(path_, home_ + "/other");
  fs::create_symlink(home_ + "/other", path_);
  EXPECT_THAT(refusal(), HasSubstr("symbolic link"));
  fs::remove(path_);
  fs::create_directory(path_);
  EXPECT_THAT(refusal(), HasSubstr("it is no file"));
}

TEST_F(KeyFileTest, AHomeThatCannotBeWrittenIsNamedWithTheError) {
  write("");
  fs::remove(path_);
  const std::string folder = fs::path{path_}.parent_path();
  fs::remove(folder);
  std::ofstream{folder} << "a file";
  EXPECT_THAT(refusal(), AllOf(HasSubstr("the key file '" + path_), HasSubstr("ENOTDIR (20)")));
}

}  // namespace
}  // namespace ddp::launcher
