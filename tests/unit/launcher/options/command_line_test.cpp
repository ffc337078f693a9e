// The command line's values are read strictly, with torchrun's defaults.
#include "options/command_line.hpp"
#include "command_line_support.hpp"

namespace ddp::launcher {
namespace {

const base::Environment kNothing{{}};

TEST(CommandLine, Defaults) {
  const auto options = parse({"train", "--epochs", "3"});
  EXPECT_EQ(options.nproc.kind, RanksPerNode::Kind::number);
  EXPECT_EQ(options.nproc.number, 1);
  EXPECT_EQ(options.nodes.max, 1);
  EXPECT_FALSE(options.nodes_given);
  EXPECT_FALSE(options.failure_grace);
  EXPECT_FALSE(options.timeout);
  EXPECT_EQ(options.shutdown_timeout, std::chrono::seconds(30));
  EXPECT_EQ(options.max_restarts, 0);
  EXPECT_EQ(options.role, "default");
  EXPECT_EQ(options.rendezvous.backend, RendezvousBackend::none);
  EXPECT_EQ(options.rendezvous.run_id, "none");
  EXPECT_FALSE(options.logs.directory);
  EXPECT_EQ(options.logs.redirects.of(0), Streams::none);
  EXPECT_FALSE(options.verbose);
  EXPECT_EQ(options.mode, ProgramMode::automatic);
  EXPECT_THAT(options.notices, IsEmpty());
  EXPECT_THAT(options.command, ElementsAre("train", "--epochs", "3"));
}

TEST(CommandLine, ReadsValuesAndTakesTheLast) {
  const auto options = parse({"-v", "--nproc-per-node", "4096", "--failure-grace=0.5", "--shutdown-timeout", "7",
                              "--shutdown_timeout=0", "--role={}", "p"});
  EXPECT_EQ(options.nproc.number, 4096);
  EXPECT_EQ(options.failure_grace, std::chrono::milliseconds(500));
  EXPECT_EQ(options.shutdown_timeout, std::chrono::seconds(0));
  EXPECT_EQ(options.role, "{}");
  EXPECT_TRUE(options.verbose);
}

TEST(CommandLine, SizeOfTheJob) {
  EXPECT_TRUE(parse({"--nnodes", "3", "p"}).nodes_given);
  EXPECT_EQ(parse({"--nnodes", "3", "p"}).nodes.min, 3);
  EXPECT_EQ(parse({"--nnodes=2:5", "p"}).nodes.min, 2);
  EXPECT_EQ(parse({"--nnodes=2:5", "p"}).nodes.max, 5);
  EXPECT_EQ(parse({"--nproc-per-node", "cpu", "p"}).nproc.kind, RanksPerNode::Kind::cpus);
  EXPECT_EQ(parse({"--nproc-per-node", "gpu", "p"}).nproc.kind, RanksPerNode::Kind::gpus);
  EXPECT_EQ(parse({"--nproc-per-node", "xpu", "p"}).nproc.kind, RanksPerNode::Kind::gpus);
  EXPECT_EQ(parse({"--nproc-per-node", "auto", "p"}).nproc.kind, RanksPerNode::Kind::automatic);
  for (const char* value : {"0", "0:1", "2:1", "1:2:3", ":", "1:", ":1", "", "x", "1-2", "65537", "1:65537"}) {
    EXPECT_THAT(complaint({"--nnodes", value, "p"}), HasSubstr("reading --nnodes")) << value;
  }
  EXPECT_THAT(complaint({"--nnodes", "4:2", "p"}), HasSubstr("did you mean 2:4?"));
  EXPECT_THAT(complaint({"--nproc-per-node", "GPU", "p"}), HasSubstr("did you mean 'gpu'?"));
}

TEST(CommandLine, EndOfAStandaloneJobIsThisNode) {
  const auto options = parse({"--standalone", "--nnodes=1:4", "--rdzv-backend", "c10d", "--rdzv-endpoint=far:1", "p"},
                             {{"PET_RDZV_ID", "7"}, {"PET_NODE_RANK", "3"}});
  EXPECT_TRUE(options.standalone);
  EXPECT_EQ(options.nodes.max, 1);
  EXPECT_EQ(options.rendezvous.endpoint_host, "");
  EXPECT_EQ(options.rendezvous.run_id, "none");
  EXPECT_THAT(options.notices, ElementsAre(HasSubstr("--rdzv-backend is ignored"), HasSubstr("--rdzv-endpoint")));
  EXPECT_THAT(complaint({"--standalone", "--nnodes", "2", "p"}), HasSubstr("--nnodes requests 2"));
  EXPECT_THAT(complaint({"p"}, {{"PET_STANDALONE", "1"}, {"PET_NNODES", "2"}}), HasSubstr("--standalone"));
}

TEST(CommandLine, HowTheProgramIsStarted) {
  EXPECT_EQ(parse({"-m", "mod", "--nnodes", "x"}).mode, ProgramMode::module);
  EXPECT_THAT(parse({"-m", "mod", "--nnodes", "x"}).command, ElementsAre("mod", "--nnodes", "x"));
  EXPECT_EQ(parse({"--no_python", "p"}).mode, ProgramMode::no_python);
  EXPECT_EQ(parse({"--run-path", "--no-python", "p"}).mode, ProgramMode::run_path);
  EXPECT_EQ(parse({"--run-path", "--no-python", "-m", "p"}).mode, ProgramMode::run_path) << "as with torchrun";
  EXPECT_THAT(complaint({"-m", "--no-python", "p"}), HasSubstr("--module and --no-python are mutually exclusive"));
  EXPECT_THAT(parse({"--start-method", "spawn", "p"}).notices, IsEmpty());
  EXPECT_THAT(parse({"--start-method", "fork", "p"}).notices, ElementsAre(HasSubstr("--start-method is ignored")));
  EXPECT_THAT(complaint({"--start-method", "frok", "p"}), HasSubstr("spawn, fork, forkserver; did you mean"));
  EXPECT_THAT(parse({"--event-log-handler", "null", "p"}).notices, IsEmpty());
  EXPECT_THAT(parse({"--event-log-handler", "console", "p"}).notices, ElementsAre(HasSubstr("--report-json")));
}

// torchrun's rule for PET_*: the command line wins, texts go through the option's own check, flags are numbers.
TEST(PetVariables, GiveDefaults) {
  const Variables variables{{"PET_NNODES", "2:3"},        {"PET_NPROC_PER_NODE", "gpu"},
                            {"PET_TEE", "0:3"},           {"PET_REDIRECTS", "1"},
                            {"PET_MODULE", "1"},          {"PET_MAX_RESTARTS", "4"},
                            {"PET_RDZV_ENDPOINT", "h:1"}, {"PET_SHUTDOWN_TIMEOUT", "9"},
                            {"PET_LOG_DIR", "d"},         {"PET_SIGNALS_TO_HANDLE", "SIGTERM"}};
  const auto options = parse({"p"}, variables);
  EXPECT_EQ(options.nodes.max, 3);
  EXPECT_TRUE(options.nodes_given);
  EXPECT_EQ(options.nproc.kind, RanksPerNode::Kind::gpus);
  EXPECT_EQ(options.logs.tee.of(0), Streams::both);
  EXPECT_EQ(options.logs.redirects.of(5), Streams::out);
  EXPECT_EQ(options.mode, ProgramMode::module);
  EXPECT_EQ(options.max_restarts, 4);
  EXPECT_EQ(options.rendezvous.endpoint_host, "h");
  EXPECT_EQ(options.shutdown_timeout, std::chrono::seconds(9));
  EXPECT_EQ(options.logs.directory, "d");
  EXPECT_THAT(options.ending_signals, ElementsAre(SIGTERM));

  const auto typed = parse({"--nnodes", "1", "--nproc-per-node", "2", "-t0", "-r", "0", "p"}, variables);
  EXPECT_EQ(typed.nodes.max, 1);
  EXPECT_EQ(typed.nproc.number, 2);
  EXPECT_EQ(typed.logs.tee.of(0), Streams::none);
  EXPECT_EQ(typed.logs.redirects.of(5), Streams::none);
}

TEST(PetVariables, FlagsAreNumbers) {
  for (const char* no : {"0", "", "00", " 0 "}) {
    EXPECT_EQ(parse({"p"}, {{"PET_MODULE", no}}).mode, ProgramMode::automatic) << no;
    EXPECT_EQ(parse({"-m", "p"}, {{"PET_MODULE", no}}).mode, ProgramMode::module) << no;
  }
  for (const char* yes : {"1", "2", "-1"}) EXPECT_EQ(parse({"p"}, {{"PET_MODULE", yes}}).mode, ProgramMode::module);
  for (const char* wrong : {"true", "1.5", "x1", "1x"})
    EXPECT_THAT(complaint({"p"}, {{"PET_STANDALONE", wrong}}), HasSubstr("reading PET_STANDALONE")) << wrong;
  EXPECT_NO_THROW(parse({"--standalone", "p"}, {{"PET_STANDALONE", "true"}})) << "the command line wins";
  EXPECT_THAT(complaint({"p"}, {{"PET_MODULE", "1"}, {"PET_NO_PYTHON", "1"}}),
              HasSubstr("PET_MODULE and PET_NO_PYTHON are mutually exclusive"));
  EXPECT_EQ(parse({"p"}, {{"PET_MODULE", "0"}, {"PET_NO_PYTHON", "1"}}).mode, ProgramMode::no_python);
}

TEST(PetVariables, ErrorsNameTheVariable) {
  EXPECT_THAT(complaint({"p"}, {{"PET_NPROC_PER_NODE", "many"}}), HasSubstr("reading PET_NPROC_PER_NODE: 'many'"));
  EXPECT_THAT(complaint({"p"}, {{"PET_MAX_RESTARTS", ""}}), HasSubstr("reading PET_MAX_RESTARTS"));
  EXPECT_EQ(complaint({"--max-restarts=1", "p"}, {{"PET_MAX_RESTARTS", ""}}), "no complaint");
  EXPECT_NO_THROW(parse_command_line(Words{"--help"}, base::Environment{{{"PET_NNODES", "x"}}}));
}

TEST(PetVariables, SomeOptionsHaveNone) {
  const auto options = parse({"p"}, {{"PET_LOGS_SPECS", "x"},
                                     {"PET_NUMA_BINDING", "socket"},
                                     {"PET_BIND", "core"},
                                     {"PET_TIMEOUT", "1"},
                                     {"PET_VERBOSE", "1"}});
  EXPECT_THAT(options.notices, IsEmpty());
  EXPECT_EQ(options.bind, BindPolicy::numa);
  EXPECT_FALSE(options.timeout);
  EXPECT_FALSE(options.verbose);
}

TEST(CommandLine, RefusesWhatIsNoCount) {
  for (const char* value : {"0", "-1", "4097", "99999999999999999999", "x", "", " 2", "2 ", "2.0", "+2", "0x2"}) {
    EXPECT_THROW(parse({"--nproc-per-node", value, "p"}), ExitError) << value;
  }
}

TEST(CommandLine, RefusesWhatIsNoNumberOfSeconds) {
  for (const char* value : {"-1", "86401", "1e300", "1e999", "nan", "inf", "x", "", "2s"}) {
    EXPECT_THROW(parse({"--shutdown-timeout", value, "p"}), ExitError) << value;
  }
}

TEST(CommandLine, PlacementComesFromTheOptionElseTheEnvironmentElseTheDefault) {
  EXPECT_EQ(parse({"p"}).bind, BindPolicy::numa);
  EXPECT_EQ(parse({"p"}).gpus, topology::GpuVisibility::all);
  const Variables environment{{"DDP_BIND", "socket"}, {"DDP_GPUS", "one"}};
  EXPECT_EQ(parse({"p"}, environment).bind, BindPolicy::socket);
  EXPECT_EQ(parse({"p"}, environment).gpus, topology::GpuVisibility::one);
  EXPECT_EQ(parse({"--bind", "core", "--gpus=none", "p"}, environment).bind, BindPolicy::core);
  EXPECT_EQ(parse({"--bind", "core", "--gpus=none", "p"}, environment).gpus, topology::GpuVisibility::none);
}

TEST(CommandLine, RefusesUnknownPlacementWords) {
  for (const Words& words : {Words{"--bind", "nuna", "p"}, Words{"--bind=", "p"}, Words{"--gpus", "two", "p"}}) {
    try {
      parse(words);
      ADD_FAILURE() << words[0];
    } catch (const ExitError& error) {
      EXPECT_EQ(error.exit_status(), kExitUsage);
      EXPECT_THAT(error.what(), HasSubstr("none")) << "the accepted words are listed";
    }
  }
  for (const char* variable : {"DDP_BIND", "DDP_GPUS"}) {
    const Variables wrong{{variable, "nuna"}};
    EXPECT_THROW(parse({"p"}, wrong), ExitError);
    EXPECT_NO_THROW(parse({"--bind", "core", "--gpus", "one", "p"}, wrong)) << "what is given is not looked up";
  }
  EXPECT_NO_THROW(parse_command_line(Words{"--help"}, base::Environment{{{"DDP_BIND", "nuna"}}}));
}

TEST(CommandLine, NeedsAProgram) {
  EXPECT_THROW(parse({}), ExitError);
  EXPECT_THROW(parse({"--nproc-per-node", "2", "--"}), ExitError);
}

TEST(CommandLine, HelpHasEveryOptionUnderAHeading) {
  const auto help = std::get<Information>(parse_command_line(Words{"--help"}, kNothing)).text;
  for (const char* part :
       {"\nJob:\n", "\nProgram:\n", "\nFailure:\n", "\nOutput:\n", "\nPlacement:\n", "\nRendezvous:\n", "\nExamples:\n",
        "  -r, --redirects WHICH", "--standalone  ", "Run on this node alone"})
    EXPECT_THAT(help, HasSubstr(part));
  EXPECT_THAT(help, Not(HasSubstr("--generate")));
  EXPECT_THAT(help, Not(HasSubstr("\n\n\n")));
  std::size_t longest = 0;
  for (std::size_t at = 0; at < help.size();) {
    const auto end = std::min(help.find('\n', at), help.size());
    longest = std::max(longest, end - at);
    at = end + 1;
  }
  EXPECT_LE(longest, 100U);
}

TEST(CommandLine, ARoleIsShort) {
  EXPECT_EQ(parse({"--role", std::string(255, 'r'), "p"}).role.size(), 255U);
  EXPECT_THAT(complaint({"--role", std::string(256, 'r'), "p"}), HasSubstr("a role has at most 255 bytes"));
}

TEST(CommandLine, ABackendMayBeAPlugin) {
  EXPECT_EQ(parse({"--backend", "gloo", "p"}).backend, "gloo");
  EXPECT_EQ(parse({"--backend=my_mpi-2", "p"}).backend, "my_mpi-2");
  for (const char* wrong : {"", "NCCL", "../mine", "a b"}) {
    EXPECT_THAT(complaint({std::string("--backend=") + wrong, "p"}), HasSubstr("a plugin's name (small letters"))
        << wrong;
  }
}

TEST(CommandLine, HelpAndVersionNeedNoProgram) {
  EXPECT_THAT(std::get<Information>(parse_command_line(Words{"-h"}, kNothing)).text, HasSubstr("--nproc-per-node N"));
  EXPECT_THAT(std::get<Information>(parse_command_line(Words{"--version"}, kNothing)).text,
              HasSubstr("ddprun (libddp) "));
}

TEST(CommandLine, HelpAfterTheProgramIsTheProgramsOwn) {
  EXPECT_THAT(parse({"p", "--help"}).command, ElementsAre("p", "--help"));
}

}  // namespace

// Options of ddprun behind the program are remarked on, unless they are the program's own.

namespace {

using Words = std::vector<std::string>;

std::string remark(const Words& command, const Words& given = {}) { return remark_on_program_options(command, given); }

TEST(MisplacedWords, OptionsOfLaunchersBehindTheProgramAreRemarkedOn) {
  EXPECT_THAT(remark({"train.py", "--nproc-per-node", "2"}),
              AllOf(HasSubstr("'--nproc-per-node' comes after the program"), HasSubstr("ddprun --nproc-per-node")));
  EXPECT_THAT(remark({"train.py", "--lr", "1", "--nproc_per_node=2"}), HasSubstr("'--nproc_per_node=2'"));
  EXPECT_THAT(remark({"python", "train.py", "--nnodes=2"}), HasSubstr("--nnodes"));
}

TEST(MisplacedWords, OptionsOfTheProgramAreItsOwn) {
  EXPECT_EQ(remark({"train.py", "--role", "a", "--log-dir", "x"}), "");
  EXPECT_EQ(remark({"train.py", "--nproc-per-node", "2"}, {"--nproc-per-node", "2"}), "");
  EXPECT_EQ(remark({"train.py", "--", "--nnodes", "2"}), "");
  EXPECT_EQ(remark({"torchrun", "--nproc-per-node", "2", "train.py"}), "");
  EXPECT_EQ(remark({"python", "-m", "torch.distributed.run", "--nnodes=2", "train.py"}), "");
  EXPECT_EQ(remark({"accelerate", "launch", "--nnodes", "2"}), "");
  EXPECT_EQ(remark({}), "");
}

}  // namespace

}  // namespace ddp::launcher
