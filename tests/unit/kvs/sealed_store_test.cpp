// What others find in a sealed store, and what a rank makes of values that they put there.
#include <ddp/sealed_store.hpp>

#include <ddp/error.hpp>
#include "support/error_of.hpp"

namespace ddp {
namespace {

using Table = std::map<std::pair<int, std::string>, Bytes>;

Bytes bytes(std::string_view text) {
  const auto all = std::as_bytes(std::span{text});
  return {all.begin(), all.end()};
}

/// What is public, and may be written by anybody.
class OpenStore final : public KeyValueStore {
 public:
  OpenStore(std::shared_ptr<Table> table, int rank) : table_(std::move(table)), rank_(rank) {}
  int rank() const override { return rank_; }
  int world_size() const override { return 3; }
  std::string_view transport() const override { return "open table"; }
  void put(std::string_view key, std::span<const std::byte> value) override {
    (*table_)[{rank_, std::string(key)}] = {value.begin(), value.end()};
  }
  void fence(Deadline /*deadline*/) override {}
  Bytes get(int rank, std::string_view key, Deadline /*deadline*/) override {
    return table_->at({rank, std::string(key)});
  }
  void close() noexcept override {}

 private:
  std::shared_ptr<Table> table_;
  int rank_;
};

struct SealedStore : testing::Test {
  std::unique_ptr<KeyValueStore> rank(int number, const std::string& secret = "secret", const std::string& name = "a") {
    return sealed_store(std::make_unique<OpenStore>(table, number), bytes(secret), name);
  }
  static Bytes get(KeyValueStore& store, int rank, std::string_view key) {
    return store.get(rank, key, Deadline::after(std::chrono::seconds(1)));
  }
  void expect_refused(KeyValueStore& store, int rank, std::string_view key) {
    const Error error = test::thrown_by([&] { get(store, rank, key); });
    EXPECT_EQ(error.code(), ErrorCode::protocol);
    EXPECT_THAT(error.what(), testing::HasSubstr("'" + std::string(key) + "' of rank " + std::to_string(rank)));
  }
  std::shared_ptr<Table> table = std::make_shared<Table>();
};

TEST_F(SealedStore, RanksReadWhatOthersCannot) {
  rank(1)->put("record", bytes("the key of the mesh"));
  rank(1)->put_on_node("near", bytes(""));
  EXPECT_EQ(get(*rank(0), 1, "record"), bytes("the key of the mesh"));
  EXPECT_EQ(rank(2)->get_on_node(1, "near", Deadline::after(std::chrono::seconds(1))), Bytes{});
  const Bytes& seen = table->at({1, "record"});
  const Bytes part = bytes("key of");
  EXPECT_EQ(std::search(seen.begin(), seen.end(), part.begin(), part.end()), seen.end());
  expect_refused(*rank(0, "another secret"), 1, "record");
}

TEST_F(SealedStore, EqualValuesAreSealedDifferently) {
  rank(1)->put("record", bytes("same"));
  const Bytes first = table->at({1, "record"});
  rank(1)->put("record", bytes("same"));
  EXPECT_NE(table->at({1, "record"}), first);
}

TEST_F(SealedStore, NoByteCanBeChangedAndNoneBeTakenAway) {
  rank(1)->put("record", bytes("value"));
  Bytes& value = table->at({1, "record"});
  const Bytes whole = value;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    value = whole;
    value[i] ^= std::byte{1};
    expect_refused(*rank(0), 1, "record");
    value = Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(i));
    expect_refused(*rank(0), 1, "record");
  }
  value = bytes("what anybody writes, as long as that may be, and longer than a seal is");
  expect_refused(*rank(0), 1, "record");
}

TEST_F(SealedStore, NoValueStandsForAnother) {
  rank(1)->put("record", bytes("value"));
  const Bytes value = table->at({1, "record"});
  (*table)[{2, "record"}] = value;  // of another rank
  (*table)[{1, "other"}] = value;
  expect_refused(*rank(0), 2, "record");
  expect_refused(*rank(0), 1, "other");
  expect_refused(*rank(0, "secret", "b"), 1, "record");  // of another group
  EXPECT_EQ(get(*rank(0), 1, "record"), bytes("value"));
}

TEST_F(SealedStore, NeedsASecret) {
  const Error error = test::thrown_by([&] { rank(0, ""); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace ddp
