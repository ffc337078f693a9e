// Which proof the one that leads chooses, which ones the others follow, and what is said when there is none.
#include <ddp/error.hpp>

#include "launch/rendezvous_proof.hpp"
#include "support/error_of.hpp"
#include "support/munge_daemon.hpp"

namespace ddp::launcher {
namespace {

using control::ProofMethod;
using ddp::test::MungeDaemon;
using Variables = std::map<std::string, std::string, std::less<>>;
namespace fs = std::filesystem;

struct RendezvousProofTest : testing::Test {
  RendezvousProofTest() {
    std::string folder = (fs::temp_directory_path() / "rendezvous_proof.XXXXXX").string();
    EXPECT_NE(::mkdtemp(folder.data()), nullptr);
    home_ = folder;
  }
  ~RendezvousProofTest() override { fs::remove_all(home_); }

  /// A node without munge, unless @p more says otherwise.
  RendezvousProof node(const Variables& more = {}, bool insecure = false) const {
    Variables variables{{"HOME", home_}, {"DDP_MUNGE_SOCKET", "/no/munge"}};
    for (const auto& [name, value] : more) variables[name] = value;
    return RendezvousProof{base::Environment{variables}, insecure, "n2"};
  }
  static std::string refusal(const auto& action) {
    const Error error = ddp::test::thrown_by(action);
    EXPECT_EQ(std::string{error.what()}.find('\n'), std::string::npos);
    return error.what();
  }
  static ProofMethod method_of(const std::shared_ptr<control::Prover>& prover) { return prover->announcement().method; }
  /// Whether @p follower proves itself to @p leader, and back.
  static bool believe(RendezvousProof& leader, RendezvousProof& follower) {
    const auto one = leader.leader();
    const auto other = follower.follower(one->announcement());
    const ddp::stream::Statement statement{};
    try {
      one->check(other->prove(statement), statement);
      other->check(one->prove(statement), statement);
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  std::string home_;
};

TEST_F(RendezvousProofTest, ThePhraseComesFirstThenMungeThenTheKeyFile) {
  std::optional<MungeDaemon> munge;
  if (MungeDaemon::installed()) munge.emplace();
  const std::string socket = munge ? munge->socket() : "/no/munge";
  EXPECT_EQ(method_of(node({{"DDP_RDZV_SECRET", "x"}, {"DDP_MUNGE_SOCKET", socket}}).leader()), ProofMethod::phrase);
  if (munge) {
    EXPECT_EQ(method_of(node({{"DDP_MUNGE_SOCKET", socket}}).leader()), ProofMethod::munge);
  }
  EXPECT_FALSE(fs::exists(home_ + "/.config"));
  EXPECT_EQ(method_of(node().leader()), ProofMethod::key_file);
  EXPECT_TRUE(fs::exists(home_ + "/.config/libddp/rendezvous.key"));
  EXPECT_EQ(method_of(node({}, true).leader()), ProofMethod::none);
}

TEST_F(RendezvousProofTest, NodesOfOneUserBelieveEachOther) {
  const Variables phrase{{"DDP_RDZV_SECRET", "one"}};
  RendezvousProof a = node(phrase), b = node(phrase), c = node({{"DDP_RDZV_SECRET", "two"}});
  EXPECT_TRUE(believe(a, b));
  EXPECT_FALSE(believe(a, c));
  RendezvousProof d = node(), e = node(), f = node({{"XDG_CONFIG_HOME", home_}});
  EXPECT_TRUE(believe(d, e));
  EXPECT_FALSE(believe(d, f));
  RendezvousProof g = node({}, true), h = node({}, true);
  EXPECT_TRUE(believe(g, h));
}

TEST_F(RendezvousProofTest, ASaltIsNewForEachJob) {
  const Variables phrase{{"DDP_RDZV_SECRET", "one"}};
  EXPECT_NE(node(phrase).leader()->announcement().salt, node(phrase).leader()->announcement().salt);
}

TEST_F(RendezvousProofTest, ANodeWithoutMungeSaysSo) {
  const std::string text = refusal([&] { node().follower({.method = ProofMethod::munge}); });
  EXPECT_THAT(text, AllOf(HasSubstr("uses munge, but on n2: munged does not answer"), HasSubstr("EMUNGE_SOCKET (6)"),
                          HasSubstr("start munged on n2, or set DDP_RDZV_SECRET")));
}

TEST_F(RendezvousProofTest, APhraseOnSomeNodesOnlyIsRefused) {
  const std::string missing = refusal([&] { node().follower({.method = ProofMethod::phrase}); });
  EXPECT_THAT(missing,
              AllOf(HasSubstr("DDP_RDZV_SECRET, which is not set on n2"), HasSubstr("on all nodes, or on none")));
  for (const auto method : {ProofMethod::munge, ProofMethod::key_file}) {
    const std::string text = refusal([&] { node({{"DDP_RDZV_SECRET", "x"}}).follower({.method = method}); });
    EXPECT_THAT(text, HasSubstr("DDP_RDZV_SECRET is set on n2, but not for the coordinator's ddprun"));
  }
}

TEST_F(RendezvousProofTest, AKeyFileThatCannotBeUsedIsAConflictOnThatNode) {
  std::ofstream{home_ + "/.config"} << "a file";
  const Error error = ddp::test::thrown_by([&] { node().follower({.method = ProofMethod::key_file}); });
  EXPECT_EQ(error.code(), ErrorCode::conflict);  // waiting does not help
  EXPECT_THAT(error.what(), AllOf(HasSubstr("but on n2: reading the key file"), HasSubstr("ENOTDIR (20)")));
}

// Else whoever holds the port could choose to prove nothing.
TEST_F(RendezvousProofTest, NoProofIsForThoseThatAreToldSo) {
  const control::Announcement none{.method = ProofMethod::none};
  for (const Variables& variables : {Variables{}, Variables{{"DDP_RDZV_SECRET", "x"}}}) {
    EXPECT_THAT(refusal([&] { node(variables).follower(none); }),
                HasSubstr("give --rdzv-insecure on all nodes, or on none"));
  }
  EXPECT_EQ(method_of(node({}, true).follower({.method = ProofMethod::key_file})), ProofMethod::key_file);
}

TEST_F(RendezvousProofTest, WithoutAnyOfTheThreeAllAreNamed) {
  std::ofstream{home_ + "/.config"} << "a file";  // stands for a home folder that cannot be written, for root, too
  const std::string text = refusal([&] { node().leader(); });
  EXPECT_THAT(text, AllOf(HasSubstr("munged does not answer"), HasSubstr("DDP_RDZV_SECRET is not set"),
                          HasSubstr(home_ + "/.config/libddp/rendezvous.key"), HasSubstr("ENOTDIR (20)"),
                          HasSubstr("--rdzv-insecure")));
}

}  // namespace

// The key file is made once, for its user alone, and not trusted when others could know it.

namespace {

using Variables = std::map<std::string, std::string, std::less<>>;
namespace fs = std::filesystem;

struct KeyFileTest : testing::Test {
  KeyFileTest() {
    std::string folder = (fs::temp_directory_path() / "key_file.XXXXXX").string();
    EXPECT_NE(::mkdtemp(folder.data()), nullptr);
    home_ = folder;
    path_ = key_file_path(base::Environment{Variables{{"HOME", home_}}});
  }
  ~KeyFileTest() override { fs::remove_all(home_); }

  std::string refusal() const {
    return ddp::test::thrown_by([&] { read_key_file(path_); }).what();
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
  EXPECT_THAT(refusal(), HasSubstr("it is not a regular file"));
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
