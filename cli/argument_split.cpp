// Python's rules for separating options, values and the program apart, so that torchrun's command lines keep their
// meaning.
#include "cli/argument_split.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/closest_word.hpp"
#include "cli/option_values.hpp"

namespace ddp::cli {
namespace {

/// "stderr", "-" and files of data: no program has such a name, so that it is the value of the option before it.
bool is_surely_a_value(std::string_view word) {
  constexpr std::array<std::string_view, 4> kData{".json", ".txt", ".log", ".csv"};
  return word == "stderr" || word == "stdout" || word == "-" ||
         std::any_of(kData.begin(), kData.end(), [&](std::string_view ending) { return word.ends_with(ending); });
}

std::string hint_for_separate_value(std::string_view option, std::string_view word) {
  return fmt::format("option '{0}' takes its value after a '=' only: write {0}={1}", option, printable(word));
}

/// "--nproc_per_node=4" is the word "--nproc-per-node" with the value "4".
struct TypedOption {
  std::string name;
  std::optional<std::string> value{};
};

TypedOption take_apart(const std::string& word) {
  const auto equals = word.find('=');
  TypedOption typed{.name = word.substr(0, equals)};
  if (equals != std::string::npos) typed.value = word.substr(equals + 1);
  std::replace(typed.name.begin(), typed.name.end(), '_', '-');
  return typed;
}

const OptionShape* exact_option(std::string_view name, std::span<const OptionShape> known) {
  const auto found = std::find_if(known.begin(), known.end(), [&](const auto& shape) { return shape.name == name; });
  return found == known.end() ? nullptr : &*found;
}

std::string meant_option(const std::string& name, std::span<const OptionShape> known) {
  std::vector<std::string> names;
  for (const OptionShape& shape : known) {
    if (shape.name.starts_with("--") && !shape.hidden) names.emplace_back(shape.name);  // one letter is like any other
  }
  return base::closest_option(name, names);
}

[[noreturn]] void reject_unknown(const std::string& name, std::span<const OptionShape> known, const SplitRules& rules) {
  const std::string foreign = rules.hint_for_foreign_option != nullptr ? rules.hint_for_foreign_option(name) : "";
  const std::string meant = foreign.empty() ? meant_option(name, known) : "";
  reject_words(fmt::format("unknown option '{}'", name),
               !foreign.empty() ? foreign
               : meant.empty()  ? fmt::format("'{} --help' lists the options", rules.program)
                                : fmt::format("did you mean '{}'?", meant));
}

const OptionShape& find_long_option(const std::string& name, std::span<const OptionShape> known,
                                    const SplitRules& rules) {
  if (const OptionShape* exact = exact_option(name, known); exact != nullptr) return *exact;
  std::vector<const OptionShape*> begun;
  for (const OptionShape& shape : known) {
    if (!shape.hidden && shape.name.starts_with(name)) begun.push_back(&shape);
  }
  if (begun.empty()) reject_unknown(name, known, rules);
  if (begun.size() == 1) return *begun.front();
  const auto first = std::find_if(begun.begin(), begun.end(), [](const auto* shape) { return shape->of_torchrun; });
  if (std::count_if(begun.begin(), begun.end(), [](const auto* shape) { return shape->of_torchrun; }) == 1)
    return **first;
  std::vector<std::string_view> choices;
  for (const auto* shape : begun) choices.emplace_back(shape->name);
  reject_words(fmt::format("option '{}' is ambiguous", name),
               fmt::format("write one of {} in full", fmt::join(choices, ", ")));
}

/// "-np", "-np4" and "-hostfile=hosts", which are no letters of ours in a row.
void refuse_foreign_word(const std::string& word, const SplitRules& rules) {
  if (rules.hint_for_foreign_option == nullptr) return;
  std::string name = word.substr(0, word.find('='));
  name.erase(name.find_last_not_of("0123456789") + 1);
  if (const std::string hint = rules.hint_for_foreign_option(name); !hint.empty())
    reject_words(fmt::format("unknown option '{}'", name), hint);
}

bool is_negative_number(std::string_view word) {
  const auto digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  const auto dots = std::count(word.begin(), word.end(), '.');
  return word.size() > 1 && word.front() == '-' && dots <= 1 && word.back() != '.' &&
         std::all_of(word.begin() + 1, word.end(), [&](char c) { return digit(c) || c == '.'; });
}

bool looks_like_option(std::string_view word) {
  return word.size() > 1 && word.front() == '-' && !is_negative_number(word) &&
         word.find(' ') == std::string_view::npos;
}

/// One pass over the arguments.
class Splitter {
 public:
  Splitter(std::span<const std::string> arguments, std::span<const OptionShape> known, const SplitRules& rules)
      : arguments_(arguments), known_(known), rules_(rules) {}

  SplitArguments split() {
    while (next_ < arguments_.size()) {
      const std::string& word = arguments_[next_];
      if (word == "--") {
        ++next_;
        break;
      }
      const bool option = word.size() >= 2 && word.front() == '-';
      if (!option && !rules_.interleaved) break;
      ++next_;
      if (!option) {
        split_.command.push_back(word);
        continue;
      }
      if (is_one_dash(word)) {
        std::string value = word.substr(rules_.one_dash.first.size());
        if (value.starts_with('=')) value.erase(0, 1);
        const std::string name{rules_.one_dash.second};
        const OptionShape& meant = find_long_option(name, known_, rules_);
        value.empty() ? take(meant, {}) : take(meant, std::move(value));
        continue;
      }
      word.starts_with("--") ? take_long(word) : take_short(word);
    }
    check_separate_value();
    split_.command.insert(split_.command.end(), arguments_.begin() + static_cast<std::ptrdiff_t>(next_),
                          arguments_.end());
    return std::move(split_);
  }

 private:
  /// "-np", "-np4", "-np=4".
  bool is_one_dash(std::string_view word) const {
    const std::string_view name = rules_.one_dash.first;
    if (name.empty() || !word.starts_with(name)) return false;
    word.remove_prefix(name.size());
    return word.empty() || word.front() == '=' || (word.front() >= '0' && word.front() <= '9');
  }

  void take_long(const std::string& word) {
    TypedOption typed = take_apart(word);
    take(find_long_option(typed.name, known_, rules_), std::move(typed.value));
  }

  /// "-r3", "-r=3", "-mr3", "-m -r 3".
  void take_short(const std::string& word) {
    if (word.size() > 2) refuse_foreign_word(word, rules_);
    for (std::size_t at = 1; at < word.size(); ++at) {
      const OptionShape* option = exact_option(fmt::format("-{}", word[at]), known_);
      if (option == nullptr) refuse_foreign_word(word, rules_);
      if (option == nullptr && at > 1)
        reject_words(fmt::format("unknown option '-{}' in '{}'", word[at], word), see_help("lists the options"));
      if (option == nullptr) reject_unknown(word, known_, rules_);
      const std::string rest = word.substr(at + 1);
      if (option->takes_value) {
        if (rest.empty()) return take(*option, {});
        return take(*option, rest.front() == '=' ? rest.substr(1) : rest);
      }
      if (rest.starts_with('=')) return take(*option, rest.substr(1));
      take(*option, {});
    }
  }

  /// "--dump-env stderr train.py": the value that was not taken would be the program.
  void check_separate_value() {
    if (without_value_.empty() || next_ == arguments_.size() || arguments_[next_ - 1] == "--") return;
    std::string hint = hint_for_separate_value(without_value_, arguments_[next_]);
    if (is_surely_a_value(arguments_[next_]))
      reject_words(fmt::format("'{}' would be the program", arguments_[next_]), hint);
    split_.program_hint = std::move(hint);
  }

  void take(const OptionShape& option, std::optional<std::string> value) {
    split_.options.push_back(option.name);
    without_value_ = option.value_optional && !value ? option.name : std::string{};
    if (!option.takes_value) {
      if (value)
        reject_words(fmt::format("option '{}' takes no value", option.name), "leave out the '=' and what follows");
      return;
    }
    if (!value && option.value_optional) value.emplace();
    if (!value) {
      if (next_ == arguments_.size())
        reject_words(fmt::format("option '{}' needs a value", option.name), see_help("shows which"));
      const std::string& word = arguments_[next_];
      if (looks_like_option(word))
        reject_words(
            fmt::format("option '{}' needs a value, and '{}' looks like an option", option.name, word),
            fmt::format("give a value, or write {}{}{}", option.name, option.name.starts_with("--") ? "=" : "", word));
      value = word;
      ++next_;
    }
    split_.options.push_back(std::move(*value));
  }

  std::string see_help(std::string_view what) const { return fmt::format("'{} --help' {}", rules_.program, what); }

  std::span<const std::string> arguments_;
  std::span<const OptionShape> known_;
  const SplitRules& rules_;
  std::size_t next_ = 0;
  std::string without_value_;  ///< the last option, where it could have had a value and has none
  SplitArguments split_;
};

}  // namespace

SplitArguments split_arguments(std::span<const std::string> arguments, std::span<const OptionShape> known,
                               const SplitRules& rules) {
  return Splitter{arguments, known, rules}.split();
}

}  // namespace ddp::cli
