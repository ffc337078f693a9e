// ImitatedVariables of other launchers' ranks, and the lists of words by which users ask for them.
#include "base/imitated_launchers.hpp"

#include <ddp/error.hpp>

namespace ddp::base {
namespace {

TEST(ImitatedLaunchers, WordsInAnyOrder) {
  EXPECT_EQ(text_of(read_words("reading --as", "mpi4py,horovod,mpi4py", kImportedWords), kImportedWords),
            "horovod,mpi4py");
  EXPECT_EQ(text_of(read_words("reading --as", "mpi4py", kImportedWords), kImportedWords), "mpi4py");
  EXPECT_EQ(text_of({}, kImportedWords), "");
  for (const char* wrong : {"", ",", "horovod,", "numpy", "Horovod", "horovod;mpi4py"})
    EXPECT_THROW(read_words("reading --as", wrong, kImportedWords), Error) << wrong;
}

TEST(ImitatedLaunchers, TasksOfNodesAsSlurmWritesThem) {
  EXPECT_THAT(read_tasks_per_node("2(x3),1"), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(read_tasks_per_node("4"), ElementsAre(4));
  for (const char* wrong : {"", "0", "2(x", "2(x3", "2(x0)", "2,", ",2", "-1", "2x3", "1(x999999999)", "1(x65536),1"})
    EXPECT_THAT(read_tasks_per_node(wrong), IsEmpty()) << wrong;
}

TEST(ImitatedLaunchers, NodesThatHaveARankOfTheSameLocalRank) {
  const Crossing all = crossing_of({2, 1, 3}, 2, 0);
  EXPECT_EQ(all.rank, 2);
  EXPECT_EQ(all.size, 3);
  const Crossing some = crossing_of({2, 1, 3}, 2, 1);
  EXPECT_EQ(some.rank, 1);
  EXPECT_EQ(some.size, 2);
}

TEST(ImitatedLaunchers, Variables) {
  const TorchrunEnvironment worker{.rank = 5, .world_size = 6, .local_rank = 1, .local_world_size = 2};
  const ImitatedVariables mpi = openmpi_variables(worker);
  const std::map<std::string, std::string> by_name(mpi.begin(), mpi.end());
  EXPECT_EQ(by_name.at("OMPI_COMM_WORLD_RANK"), "5");
  EXPECT_EQ(by_name.at("OMPI_COMM_WORLD_LOCAL_SIZE"), "2");
  EXPECT_EQ(by_name.at("OMPI_COMM_WORLD_NODE_RANK"), "1");
  const ImitatedVariables horovod = horovod_variables(worker, {.rank = 2, .size = 3}, "n2");
  const std::map<std::string, std::string> of_horovod(horovod.begin(), horovod.end());
  EXPECT_EQ(of_horovod.at("HOROVOD_CROSS_RANK"), "2");
  EXPECT_EQ(of_horovod.at("HOROVOD_CROSS_SIZE"), "3");
  EXPECT_EQ(of_horovod.at("HOROVOD_HOSTNAME"), "n2");
}

}  // namespace
}  // namespace ddp::base
