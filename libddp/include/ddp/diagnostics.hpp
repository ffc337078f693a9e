// What the ranks of a job have in their environment, where it came from, and what is wrong with it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>
#include <ddp/key_value_store.hpp>

namespace ddp {

/// Something that is wrong, or almost certainly not intended.
struct EnvironmentFinding {
  std::string rule;          ///< "env-misspelt"; docs/reference/ddp-info.md lists them
  bool error = false;        ///< the job fails or hangs because of it; false: a warning
  std::string variable{};    ///< its name
  std::string text;          ///< "unrecognized variable NCCL_DEBG; did you mean NCCL_DEBUG?"
  std::string remedy;        ///< what to do; empty: see text
  std::vector<int> ranks{};  ///< ascending

  friend bool operator==(const EnvironmentFinding&, const EnvironmentFinding&) = default;
};

/// The environments of a job's ranks; ranks with equal values are grouped. A value. Each rank already removes secrets
/// (names with KEY, TOKEN, PASSWORD and the like, passwords in URLs) from what it sends.
struct EnvironmentReport {
  /// One value of a variable, and the ranks that have it.
  struct Value {
    std::string value;           ///< as set; secrets are hidden
    std::string origin;          ///< "environment", "Slurm", "ddprun", "/etc/nccl.conf", "set after the start"
    std::optional<bool> read{};  ///< whether the ranks' NCCL reads it; nothing: not NCCL's, or no NCCL was found
    std::vector<int> ranks{};    ///< ascending

    friend bool operator==(const Value&, const Value&) = default;
  };
  /// A variable that ranks have set.
  struct Variable {
    std::string name;             ///< its name
    std::string family{};         ///< "launcher", "PyTorch", "NCCL", ...; empty: none of these
    std::vector<Value> values{};  ///< ranks that appear in none have not set it

    friend bool operator==(const Variable&, const Variable&) = default;
  };
  /// The NCCL that ranks have loaded or would load. It is not loaded for this: names and version come from the file.
  struct Library {
    std::string path;          ///< empty: none
    std::string found{};       ///< why this one
    std::string version;       ///< "2.28.9+cuda13.0"; empty: unknown
    int names = 0;             ///< how many variables it reads
    std::string problem{};     ///< why the variables are unknown
    std::vector<int> ranks{};  ///< ascending

    friend bool operator==(const Library&, const Library&) = default;
  };
  /// A file from which NCCL takes variables that the environment does not have.
  struct File {
    std::string path;          ///< absolute
    std::string digest;        ///< equal for files with equal settings
    std::vector<int> ranks{};  ///< ranks that read it, ascending

    friend bool operator==(const File&, const File&) = default;
  };

  std::vector<std::string> hosts;              ///< by rank
  std::vector<Library> nccl{};                 ///< each with its ranks
  std::vector<File> files{};                   ///< files that some rank reads
  std::vector<Variable> variables;             ///< by name
  std::vector<EnvironmentFinding> findings{};  ///< errors first

  /// The report of this process alone. @param all include variables unrelated to training. Takes some milliseconds.
  static EnvironmentReport of_process(bool all = false);

  /// Collective, with one fence: all ranks of the store call it. World::key_value_store() is the job's store.
  /// @return the whole report on rank 0, nothing on others. Throws what the store throws, and Error(protocol).
  static std::optional<EnvironmentReport> gather(KeyValueStore& store, Deadline deadline, bool all = false);

  std::string to_text() const;  ///< a human-readable table
  std::string to_json() const;  ///< docs/reference/ddp-info.md describes it

  friend bool operator==(const EnvironmentReport&, const EnvironmentReport&) = default;
};

}  // namespace ddp
