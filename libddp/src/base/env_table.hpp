// Every environment variable that libddp itself defines, with its type, default and documentation, and strict reading.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::base {

enum class EnvType { text, choice, seconds, boolean };

/// One variable of the table.
struct EnvVariable {
  std::string_view name;
  EnvType type;
  std::string_view default_value;  ///< as the user would write it; empty: unset
  std::string_view choices;        ///< EnvType::choice: the allowed words, separated by '|'; text: what it is, in words
  std::string_view help;           ///< sentences in Markdown; links are relative to docs/reference/environment.md
};

/// All DDP_* variables, in alphabetical order.
std::span<const EnvVariable> env_table();

/// An environment as a value: captured once, so that detection can be tested with any environment.
class Environment {
 public:
  explicit Environment(std::map<std::string, std::string, std::less<>> variables) : variables_(std::move(variables)) {}

  /// A copy of the environment that this process has now.
  static Environment process();

  /// The raw value; nothing if the variable is unset. An empty value counts as unset for DDP_* variables only.
  std::optional<std::string> raw(std::string_view name) const;
  bool has(std::string_view name) const { return raw(name).has_value(); }

  /// A whole number >= 0. Throws Error(invalid_argument) naming the variable and its value when it is anything else.
  std::optional<int> number(std::string_view name) const;

  /// Values of DDP_* variables, or their default. Throw Error(invalid_argument) for a value that the type does not
  /// allow.
  std::string text(std::string_view name) const;
  std::chrono::milliseconds seconds(std::string_view name) const;
  bool boolean(std::string_view name) const;

  /// Set variables that begin with DDP_ and are not in the table, each with the known name that it is
  /// almost equal to: typing mistakes.
  std::vector<std::pair<std::string, std::string>> unknown_ddp_variables() const;

  const std::map<std::string, std::string, std::less<>>& variables() const { return variables_; }

 private:
  std::map<std::string, std::string, std::less<>> variables_;
};

// DDP_PEER_TIMEOUT: how long a rank or host that others wait for may give no sign of life before they give it up.

/// Throws Error(invalid_argument) for less than 5 s: a healthy process may be stopped, or wait for memory, for 2 s.
std::chrono::milliseconds peer_timeout(const Environment& environment);

}  // namespace ddp::base
