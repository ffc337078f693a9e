// The command line of `ddp-info topo` is read strictly, and says what was meant.
#include "topo/options.hpp"

#include <gmock/gmock.h>

#include <vector>

#include "command/usage_error.hpp"

namespace ddp::tools {
namespace {

using testing::HasSubstr;
using Words = std::vector<std::string>;

TopoOptions parse(const Words& words) { return std::get<TopoOptions>(parse_topo_options(words)); }

std::string complaint(const Words& words) {
  try {
    parse_topo_options(words);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(TopoOptions, NothingIsDecidedWithoutOptions) {
  const TopoOptions options = parse({});
  EXPECT_FALSE(options.nproc || options.bind || options.gpus || options.xml || options.export_file || options.svg ||
               options.explain || options.json || options.no_job);
}

TEST(TopoOptions, ReadsEveryOptionAndTakesTheLast) {
  const TopoOptions options = parse({"--nproc=3", "--nproc", "4", "--bind", "socket", "--gpus=one", "--xml", "-odd",
                                     "--svg=a=b.svg", "--explain", "3", "--no_job"});
  EXPECT_EQ(options.nproc, 4);
  EXPECT_EQ(options.bind, BindPolicy::socket);
  EXPECT_EQ(options.gpus, topology::GpuVisibility::one);
  EXPECT_EQ(options.xml, "-odd");
  EXPECT_EQ(options.svg, "a=b.svg");
  EXPECT_EQ(options.explain, 3);
  EXPECT_TRUE(options.no_job);
  EXPECT_TRUE(parse({"--json"}).json);
  EXPECT_EQ(parse({"--export", "-", "--no-job"}).export_file, "-");
  EXPECT_EQ(parse({"--nproc", "4096"}).nproc, kMaxRanks);
}

TEST(TopoOptions, RefusesWhatIsNoCount) {
  EXPECT_THAT(complaint({"--nproc", "0"}), HasSubstr("reading --nproc: '0' is too small; give a whole number from 1"));
  EXPECT_THAT(complaint({"--nproc", "-1"}), HasSubstr("'-1' is too small"));
  EXPECT_THAT(complaint({"--nproc", "4097"}), HasSubstr("'4097' is too large"));
  EXPECT_THAT(complaint({"--nproc", "99999999999999"}), HasSubstr("is out of range"));
  for (const char* text : {"x", "", " 2", "2 ", "2.0", "+2", "0x2"}) {
    EXPECT_THAT(complaint({std::string("--nproc=") + text}), HasSubstr("is not a whole number")) << text;
  }
  EXPECT_THAT(complaint({"--explain", "-1"}), HasSubstr("give a whole number from 0"));
}

TEST(TopoOptions, NamesMayBeAbbreviated) {
  const TopoOptions options = parse({"--np", "3", "--xm=a.xml", "--no_j", "--expl", "1", "--sv", "b.svg"});
  EXPECT_EQ(options.nproc, 3);
  EXPECT_EQ(options.xml, "a.xml");
  EXPECT_TRUE(options.no_job);
  EXPECT_EQ(options.explain, 1);
  EXPECT_EQ(options.svg, "b.svg");
  EXPECT_TRUE(parse({"--j"}).json);
  EXPECT_THAT(complaint({"--exp", "x"}),
              HasSubstr("option '--exp' is ambiguous; write one of --export, --explain in full"));
  EXPECT_THAT(complaint({"--n", "2"}), HasSubstr("ambiguous"));
  EXPECT_THAT(complaint({"--j=1"}), HasSubstr("option '--json' takes no value"));
  EXPECT_THAT(complaint({"--npr"}), HasSubstr("option '--nproc' needs a value"));
  EXPECT_THAT(complaint({"--explian", "1"}), HasSubstr("did you mean '--explain'?"));
  EXPECT_THAT(complaint({"--nothing-like-it"}), HasSubstr("'ddp-info topo --help' lists the options"));
  EXPECT_TRUE(std::holds_alternative<HelpText>(parse_topo_options(Words{"--he"})));
}

TEST(TopoOptions, SuggestsTheClosestWord) {
  EXPECT_THAT(complaint({"--bind", "nums"}),
              HasSubstr("'nums' is not one of numa, core, socket, none; did you mean 'numa'?"));
  EXPECT_THAT(complaint({"--bind", "hyperthreads"}), HasSubstr("is not one of numa"));
  EXPECT_THAT(complaint({"--gpus", "al"}), HasSubstr("did you mean 'all'?"));
  EXPECT_THAT(complaint({"--nprok", "2"}), HasSubstr("unknown option '--nprok'; did you mean '--nproc'?"));
  EXPECT_THAT(complaint({"-n", "2"}), HasSubstr("unknown option '-n'"));
  EXPECT_THAT(complaint({"machine.xml"}), HasSubstr("'machine.xml' is no option"));
}

TEST(TopoOptions, RefusesMissingAndUnwantedValues) {
  EXPECT_THAT(complaint({"--nproc"}), HasSubstr("option '--nproc' needs a value"));
  EXPECT_THAT(complaint({"--xml="}), HasSubstr("the file name is empty"));
  EXPECT_THAT(complaint({"--json=yes"}), HasSubstr("option '--json' takes no value"));
}

TEST(TopoOptions, RefusesCombinationsThatMeanNothing) {
  EXPECT_THAT(complaint({"--export", "a", "--xml", "b"}), HasSubstr("--export and --xml exclude each other"));
  EXPECT_THAT(complaint({"--json", "--export", "a"}), HasSubstr("--export and --json exclude each other"));
  EXPECT_THAT(complaint({"--json", "--explain", "0"}), HasSubstr("--json and --explain exclude each other"));
  EXPECT_THAT(complaint({"--svg", "-"}), HasSubstr("--svg needs a file"));
  EXPECT_THAT(complaint({"--nproc", "2", "--explain", "2"}), HasSubstr("there is no rank 2 among 2"));
  EXPECT_EQ(complaint({"--nproc", "2", "--explain", "1", "--svg", "a"}), "no error");
}

TEST(TopoOptions, HelpHasExamplesAndExitCodes) {
  const std::string help = std::get<HelpText>(parse_topo_options(Words{"--help"})).text;
  for (const char* part : {"Usage: ddp-info topo", "--nproc N", "Examples:", "Exit status:"}) {
    EXPECT_THAT(help, HasSubstr(part));
  }
}

}  // namespace
}  // namespace ddp::tools
