// An order that one run records, and with which the first step of the next one overlaps.
#include <ddp/recorded_order.hpp>

#include "unit/reducer/reducer_fixture.hpp"

namespace ddp {
namespace {

class RecordedOrderTest : public ReducerTest {
 protected:
  RecordedOrderTest() : folder_(testing::TempDir() + "recorded_order_" + std::to_string(::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~RecordedOrderTest() override { std::filesystem::remove_all(folder_); }

  Reducer make_static(std::optional<RecordedOrder> recorded) {
    return Reducer(parameters(), group_,
                   {.bucket_cap_bytes = 40, .static_graph = true, .recorded_order = std::move(recorded)});
  }
  static void mark(Reducer& reducer, const std::vector<std::size_t>& order) {
    for (const std::size_t index : order) reducer.mark_ready(index);
  }
  /// How many all_reduces have begun; @p expected ones may take a moment.
  std::size_t launches(std::size_t expected) const {
    for (const Deadline limit = soon(); launched().size() < expected && !limit.expired();) std::this_thread::yield();
    return launched().size();
  }
  /// Of the model of the fixture: 2 twice, 3 never.
  RecordedOrder recorded() const {
    return {
        .parameters = {"'layer0' float32[10]", "'layer1' float32[10]", "'layer2' float32[10]", "'layer3' float32[10]"},
        .order = {0, 2, 1, 3},
        .counts = {1, 1, 2, 0}};
  }
  std::string path() const { return folder_ + "/order"; }
  std::string text() const {
    std::ifstream file(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write(const std::string& text) const { std::ofstream(path(), std::ios::binary) << text; }

  const std::string folder_;
};

TEST_F(RecordedOrderTest, AStaticGraphsFirstStepOverlapsWithTheOrderOfAnEarlierRun) {
  {
    Reducer first = make_static({});
    EXPECT_THAT(cause_of([&] { first.recorded_order(); }), HasSubstr("not known yet"));
    step(first, {2, 0, 2, 1});
    EXPECT_THAT(cause_of([&] { first.recorded_order(); }), HasSubstr("not known yet"));
    step(first, {2, 0, 2, 1});
    EXPECT_EQ(first.recorded_order(), recorded());
    first.recorded_order().save(path());
  }
  const std::size_t before = launched().size();
  Reducer next = make_static(RecordedOrder::load(path()));
  EXPECT_EQ(next.recorded_order(), recorded());
  EXPECT_THAT(next.buckets(), ElementsAre(ElementsAre(0), ElementsAre(2), ElementsAre(1), ElementsAre(3)));
  gradients_[3].assign(10, 7.0F);
  next.prepare_for_backward();
  mark(next, {2, 0});
  EXPECT_EQ(launches(before + 1), before + 1) << "2 comes once more";
  mark(next, {2, 1});
  EXPECT_EQ(launches(before + 4), before + 4) << "all buckets, before finalize";
  EXPECT_THAT(cause_of([&] { next.mark_ready(3); }), HasSubstr("more often than in the first step: 0"));
  next.finalize();
  EXPECT_EQ(launches(before + 5), before + 5) << "who has used what";
  EXPECT_FALSE(next.used(3));
  EXPECT_TRUE(next.used(2));
  EXPECT_THAT(gradients_[3], Each(7.0F)) << "no rank has used it";
  step(next, {2, 0, 2, 1});
  EXPECT_EQ(launches(before + 10), before + 10);
  EXPECT_FALSE(next.used(3));
}

TEST_F(RecordedOrderTest, AStepThatMarksLessThanWasRecordedIsNamed) {
  Reducer reducer = make_static(recorded());
  reducer.prepare_for_backward();
  mark(reducer, {2, 0, 1});
  EXPECT_THAT(cause_of([&] { reducer.finalize(); }), HasSubstr("1 of 4 parameters were not marked ready: 2 'layer2'"));
  step(reducer, {2, 0, 2, 1});
  EXPECT_FALSE(reducer.used(3));
}

TEST_F(RecordedOrderTest, AnotherModelsOrderIsRefused) {
  const auto refused = [&](auto change) {
    RecordedOrder other = recorded();
    change(other);
    const auto error = error_of([&] { make_static(other); });
    EXPECT_TRUE(error && error->code() == ErrorCode::invalid_argument);
    return error ? error->cause() : "";
  };
  EXPECT_THAT(refused([](RecordedOrder& order) { order.parameters[2] = "'layer2' float32[11]"; }),
              HasSubstr("its parameter 2 is 'layer2' float32[11], here it is 'layer2' float32[10]"));
  EXPECT_THAT(refused([](RecordedOrder& order) { order.parameters.pop_back(); }),
              HasSubstr("its parameter 3 is missing, here it is 'layer3' float32[10]"));
  EXPECT_THAT(refused([](RecordedOrder& order) { order.order[1] = 4; }), HasSubstr("parameter 4 of 4"));
  EXPECT_THAT(refused([](RecordedOrder& order) { order.counts.pop_back(); }), HasSubstr("counts of 3 parameters"));
  EXPECT_THAT(cause_of([&] {
                Reducer(parameters(), group_, {.ready_order = {0, 1, 2, 3}, .recorded_order = recorded()});
              }),
              HasSubstr("both ready_order and recorded_order"));
}

TEST_F(RecordedOrderTest, ADamagedFileIsRefused) {
  const auto load = [&] { return RecordedOrder::load(path()); };
  EXPECT_EQ(error_of(load)->code(), ErrorCode::not_found);
  recorded().save(path());
  EXPECT_EQ(load(), recorded());
  const std::string whole = text();
  const auto is_refused = [&](const std::string& other) {
    write(other);
    const auto error = error_of(load);
    return error && error->code() == ErrorCode::protocol;
  };
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_TRUE(is_refused(changed)) << "byte " << i;
    EXPECT_TRUE(is_refused(whole.substr(0, i))) << i << " bytes";
  }
  EXPECT_TRUE(is_refused(whole + "\n"));

  RecordedOrder no_counts = recorded();
  no_counts.counts.clear();
  no_counts.save(path());
  EXPECT_EQ(load(), no_counts);
  no_counts.order[0] = 4;
  no_counts.save(path());
  EXPECT_THAT(cause_of(load), HasSubstr("a number is wrong"));
  no_counts.parameters[1] += "\n";
  EXPECT_THAT(cause_of([&] { no_counts.save(path()); }), HasSubstr("line break"));
}

TEST_F(RecordedOrderTest, AFileIsReplacedAsAWhole) {
  write("older");
  ASSERT_EQ(::link(path().c_str(), (folder_ + "/kept").c_str()), 0);
  recorded().save(path());
  EXPECT_EQ(RecordedOrder::load(path()), recorded());
  std::ifstream kept(folder_ + "/kept");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(kept), {}), "older") << "it was written over";
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 2) << "a temporary file is left";
  EXPECT_EQ(error_of([&] { recorded().save(folder_ + "/no/order"); })->code(), ErrorCode::system);
  const Error error = test::thrown_by([&] { RecordedOrder::load(folder_); });
  EXPECT_THAT(error.what(), HasSubstr("give the path of a file"));
}

}  // namespace
}  // namespace ddp
