// A bash script around lists from the table of options.
#include "options/bash_completion.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace ddp::launcher {
namespace {

constexpr const char* kHead = R"(# bash completion for ddprun; written by 'ddprun --generate-bash-completion'
# Offers the values of option $1 that begin with $2.
_ddprun_value() {
  case $1 in
)";

constexpr const char* kMiddle = R"(    *) COMPREPLY=() ;;
  esac
}

_ddprun() {
  local current=${COMP_WORDS[COMP_CWORD]} i=1 option
  COMPREPLY=()
  # bash makes words of their own of '=' and of what follows.
  while ((i < COMP_CWORD)); do
    option=${COMP_WORDS[i]//_/-}
    case $option in
      --) ((++i)); break ;;
)";

// A value that may be absent follows '=' only.
constexpr const char* kOptional = R"(      {}) [[ ${{COMP_WORDS[i + 1]}} == = ]] || {{ ((++i)); continue; }} ;;&
)";

constexpr const char* kTail = R"(        if [[ ${COMP_WORDS[i + 1]} == = ]]; then ((i += 2)); else ((++i)); fi
        if ((i >= COMP_CWORD)); then
          [[ $current == = ]] && current=
          _ddprun_value "$option" "$current"
          return
        fi
        ((++i))
        ;;
      -?*) ((++i)) ;;
      *) break ;;
    esac
  done
  if ((i < COMP_CWORD)); then  # the program has begun
    if declare -F _comp_command_offset >/dev/null; then
      _comp_command_offset "$i"
    elif declare -F _command_offset >/dev/null; then
      _command_offset "$i"
    else
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -f -- "$current")
    fi
  elif [[ $current == -* && ${COMP_WORDS[COMP_CWORD - 1]} != -- ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$_ddprun_options" -- "$current")
  else
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$current"; [[ -n $current ]] && compgen -c -- "$current")
  fi
}
complete -F _ddprun ddprun
)";

std::string names_of(const OptionEntry& entry, const char* separator) {
  return entry.short_name.empty() ? entry.name : entry.name + separator + entry.short_name;
}

std::string value_case(const OptionEntry& entry) {
  const std::string files = "compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen ";
  switch (entry.kind) {
    case ValueKind::text: return {};
    case ValueKind::word:
      return fmt::format("    {}) mapfile -t COMPREPLY < <(compgen -W '{}' -- \"$2\") ;;\n", names_of(entry, "|"),
                         fmt::join(entry.words, " "));
    case ValueKind::file: return fmt::format("    {}) {}-f -- \"$2\") ;;\n", names_of(entry, "|"), files);
    case ValueKind::folder: return fmt::format("    {}) {}-d -- \"$2\") ;;\n", names_of(entry, "|"), files);
  }
  return {};
}

}  // namespace

std::string bash_completion(const OptionTable& table) {
  std::vector<std::string> all;
  std::vector<std::string> with_value;
  std::string optional;
  std::string cases;
  for (const OptionEntry& entry : table.entries()) {
    if (entry.group.empty()) continue;
    all.push_back(names_of(entry, " "));
    if (entry.is_flag()) continue;
    with_value.push_back(names_of(entry, "|"));
    if (entry.value_optional) optional += fmt::format(kOptional, names_of(entry, "|"));
    cases += value_case(entry);
  }
  return fmt::format("{}{}{}{}      {})\n{}\n_ddprun_options='{}'\n", kHead, cases, kMiddle, optional,
                     fmt::join(with_value, "|"), kTail, fmt::join(all, " "));
}

}  // namespace ddp::launcher
