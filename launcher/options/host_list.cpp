#include "options/host_list.hpp"

#include <algorithm>
#include <cctype>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "cli/option_values.hpp"
#include "options/rendezvous_options.hpp"
#include "topology/network/hostlist.hpp"

namespace ddp::launcher {

std::vector<std::string> split_shell_words(const std::string& option, const std::string& text) {
  std::vector<std::string> words;
  bool inside = false;  // of a word, which may be empty: ''
  char quote = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char letter = text[at];
    if (quote == 0 && (letter == ' ' || letter == '\t' || letter == '\n')) {
      inside = false;
      continue;
    }
    if (!inside) words.emplace_back();
    inside = true;
    if (quote == 0 && (letter == '\'' || letter == '"')) {
      quote = letter;
    } else if (letter == quote && quote != 0) {
      quote = 0;
    } else if (letter == '\\' && quote != '\'') {
      if (at + 1 == text.size()) cli::reject_value(option, text, "ends in a backslash", "write \\\\ for one");
      const char next = text[++at];
      // In double quotes a backslash only escapes characters with a meaning there.
      if (quote == '"' && next != '"' && next != '\\' && next != '$' && next != '`') words.back() += letter;
      words.back() += next;
    } else {
      words.back() += letter;
    }
  }
  if (quote != 0) cli::reject_value(option, text, "has an open quote", "quote words as for a shell");
  if (words.empty() || words.front().empty())
    cli::reject_value(option, text, "is not a command", "give one such as ssh");
  return words;
}

std::vector<std::string> parse_agent_command(const std::string& option, const std::string& text) {
  std::vector<std::string> words = split_shell_words(option, text);
  int commands = 0;
  for (const std::string& word : words) {
    for (std::size_t at = word.find('{'); at != std::string::npos; at = word.find('{', at + 1)) {
      const std::string_view rest = std::string_view(word).substr(at);
      const bool host = rest.starts_with(kHostPlace);
      if (rest.starts_with(kCommandPlace)) ++commands;
      if (!host && !rest.starts_with(kCommandPlace))
        cli::reject_value(option, text, fmt::format("has '{}'", cli::printable(word)),
                          "the places are {host} and {command}");
      if (&word == words.data()) cli::reject_value(option, text, "has no program", "begin with one, such as rsh");
      if (host && word.find(kHostPlace, at + 1) != std::string::npos)
        cli::reject_value(option, text, "names {host} twice in a word", "name it once");
    }
  }
  if (commands > 1) cli::reject_value(option, text, "names {command} twice", "name it once");
  return words;
}

std::string shell_quoted(std::string_view word) {
  std::string text = "'";
  for (const char letter : word) text += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return text + "'";
}

namespace {

constexpr const char* kListHint = "write HOST or HOST:RANKS, with commas between them: n0:2,n[1-3]:4";
constexpr const char* kLineHint = "write one host a line: HOST, HOST:RANKS or HOST slots=RANKS";

// Windows editors put it at the beginning of UTF-8 files.
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

struct Count {
  std::string_view host;
  std::string_view number{};
  bool given = false;
};

/// Splits "host:2"; an IPv6 address has brackets.
Count split_count(const std::string& source, std::string_view word) {
  std::size_t colon = std::string_view::npos;
  if (const auto close = word.find(']');
      word.starts_with('[') && word.substr(0, close).find(':') != std::string::npos) {
    if (close == std::string_view::npos) cli::reject_value(source, word, "has no closing bracket", kListHint);
    if (close + 1 < word.size() && word[close + 1] != ':')
      cli::reject_value(source, word, "has no colon after the bracket", kListHint);
    colon = close + 1 < word.size() ? close + 1 : std::string_view::npos;
  } else {
    colon = word.find(':');
    if (colon != std::string_view::npos && word.find(':', colon + 1) != std::string_view::npos)
      cli::reject_value(source, word, "has more than one colon", "an IPv6 address needs brackets: [fd00::7]:2");
  }
  if (colon == std::string_view::npos) return {.host = word, .given = false};
  return {.host = word.substr(0, colon), .number = word.substr(colon + 1), .given = true};
}

/// A name that ssh would take for an option is not a host.
std::string checked_name(const std::string& source, const std::string& name) {
  std::string host = parse_host(source, name);
  if (host.starts_with('-')) cli::reject_value(source, name, "is not a host name or address", kListHint);
  return host;
}

std::vector<std::string> names_of(const std::string& source, std::string_view host) {
  if (host.find('@') != std::string_view::npos)
    cli::reject_value(source, host, "names a user",
                      "all ranks run as one user; where its names differ, use ~/.ssh/config");
  if (host.empty()) cli::reject_value(source, host, "is not a host name or address", kListHint);
  if (host.starts_with('[') && host.find(':') != std::string_view::npos)
    return {checked_name(source, std::string(host))};
  std::vector<std::string> names;
  try {
    names = topology::expand_hostlist(cli::printable(host), kMaxNodes);
  } catch (const Error& error) {
    throw cli::usage_error(source, error);
  }
  for (std::string& name : names) name = checked_name(source, name);
  return names;
}

void add_word(const std::string& source, std::string_view word, std::vector<HostMention>& mentions) {
  const Count count = split_count(source, word);
  const int slots = count.given
                        ? cli::parse_count(fmt::format("the ranks of '{}' in {}", cli::printable(count.host), source),
                                           std::string(count.number), kMaxRanksPerNode)
                        : 0;
  for (std::string& name : names_of(source, count.host)) {
    if (mentions.size() == kMaxNodes * std::size_t{16})
      cli::reject_value(source, word, "is one host too many", fmt::format("a job has at most {} nodes", kMaxNodes));
    mentions.push_back({.name = std::move(name), .slots = slots, .max_slots = 0});
  }
}

/// Splits at the commas outside brackets.
std::vector<std::string_view> entries_of(std::string_view text) {
  std::vector<std::string_view> entries;
  std::size_t begin = 0;
  bool inside = false;
  for (std::size_t at = 0; at <= text.size(); ++at) {
    if (at < text.size() && text[at] == '[') inside = true;
    if (at < text.size() && text[at] == ']') inside = false;
    if (at < text.size() && (inside || text[at] != ',')) continue;
    entries.push_back(cli::trimmed(text.substr(begin, at - begin)));
    begin = at + 1;
  }
  return entries;
}

/// Host names are case-insensitive (RFC 4343).
std::string without_case(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name;
}

/// "slots = 2" means "slots=2".
std::vector<std::string> words_of(std::string_view line) {
  std::vector<std::string> words;
  bool joins = false;
  for (std::size_t at = 0; at < line.size();) {
    if (std::isspace(static_cast<unsigned char>(line[at])) != 0) {
      ++at;
      continue;
    }
    std::size_t end = at;
    while (end < line.size() && std::isspace(static_cast<unsigned char>(line[end])) == 0) ++end;
    const std::string_view word = line.substr(at, end - at);
    const bool continues = joins || (word.starts_with('=') && !words.empty());
    continues ? void(words.back() += word) : void(words.emplace_back(word));
    joins = word.ends_with('=');
    at = end;
  }
  return words;
}

/// "slots=2" and its synonyms in Open MPI.
void take_setting(const std::string& source, const std::string& word, HostMention& setting) {
  const auto equals = word.find('=');
  std::string key = word.substr(0, equals);
  std::replace(key.begin(), key.end(), '-', '_');
  const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
  const bool slots = key == "slots" || key == "cpu" || key == "cpus" || key == "count";
  const bool most = key == "max_slots" || key == "slots_max" || key == "max_cpus" || key == "cpus_max";
  if (!slots && !most) cli::reject_value(source, word, "is not understood", kLineHint);
  const int number = cli::parse_count(fmt::format("{} in {}", key, source), value, kMaxRanksPerNode);
  (slots ? setting.slots : setting.max_slots) = number;
}

void add_line(const std::string& source, std::string_view line, std::vector<HostMention>& mentions) {
  const std::vector<std::string> words = words_of(line.substr(0, line.find('#')));
  if (words.empty()) return;
  const std::size_t first = mentions.size();
  for (const std::string_view entry : entries_of(words.front())) add_word(source, entry, mentions);
  HostMention setting;
  for (std::size_t i = 1; i < words.size(); ++i) take_setting(source, words[i], setting);
  for (std::size_t i = first; i < mentions.size(); ++i) {
    if (setting.slots > 0 && mentions[i].slots > 0)
      cli::reject_value(source, line, "gives the number of ranks twice", kLineHint);
    if (setting.slots > 0) mentions[i].slots = setting.slots;
    mentions[i].max_slots = setting.max_slots;
  }
}

}  // namespace

std::vector<HostMention> parse_host_list(const std::string& source, const std::string& text) {
  std::vector<HostMention> mentions;
  for (const std::string_view entry : entries_of(text)) {
    if (entry.empty()) cli::reject_value(source, text, "has an empty entry", kListHint);
    add_word(source, entry, mentions);
  }
  return mentions;
}

std::vector<HostMention> parse_host_file(const std::string& source, const std::string& text) {
  std::vector<HostMention> mentions;
  int number = 0;
  std::string_view rest = text;
  if (rest.starts_with("\xff\xfe") || rest.starts_with("\xfe\xff") || rest.find('\0') != std::string_view::npos)
    cli::reject_value(source, rest.substr(0, 16), "begins a file in UTF-16 or one that is not text",
                      "save it as UTF-8: iconv -f UTF-16 -t UTF-8 FILE");
  if (rest.starts_with(kByteOrderMark)) rest.remove_prefix(kByteOrderMark.size());
  while (!rest.empty()) {
    const auto end = rest.find('\n');
    ++number;
    add_line(fmt::format("{}, line {}", source, number), rest.substr(0, end), mentions);
    rest = end == std::string_view::npos ? std::string_view{} : rest.substr(end + 1);
  }
  return mentions;
}

std::vector<HostEntry> merge_hosts(const std::string& source, const std::vector<HostMention>& mentions) {
  struct Sum {
    std::size_t at;
    int times;
    int max_slots;
  };
  std::vector<HostEntry> hosts;
  std::unordered_map<std::string, Sum> sums;
  for (const HostMention& mention : mentions) {
    const auto [found, first] =
        sums.try_emplace(without_case(mention.name), Sum{.at = hosts.size(), .times = 0, .max_slots = 0});
    if (first) hosts.push_back({.name = mention.name, .ranks = 0});
    Sum& sum = found->second;
    ++sum.times;
    sum.max_slots = std::max(sum.max_slots, mention.max_slots);
    hosts[sum.at].ranks = std::min(hosts[sum.at].ranks + mention.slots, kMaxRanksPerNode + 1);
  }
  const auto counted = std::count_if(mentions.begin(), mentions.end(), [](const auto& one) { return one.slots > 0; });
  if (counted > 0 && static_cast<std::size_t>(counted) < mentions.size()) {
    const auto without = std::find_if(mentions.begin(), mentions.end(), [](const auto& one) { return one.slots == 0; });
    cli::reject_value(source, without->name, "has no number of ranks, but others have",
                      "give all hosts a number, or none: then --nproc-per-node applies");
  }
  if (hosts.empty()) cli::reject_value(source, "", "names no host", kListHint);
  if (hosts.size() > static_cast<std::size_t>(kMaxNodes))
    cli::reject_value(source, hosts.back().name, "is one host too many",
                      fmt::format("a job has at most {} nodes", kMaxNodes));
  const bool listed_by_rank = counted == 0 && hosts.size() < mentions.size();
  for (HostEntry& host : hosts) {
    const Sum& sum = sums.at(without_case(host.name));
    if (listed_by_rank) host.ranks = std::min(sum.times, kMaxRanksPerNode + 1);
    if (host.ranks > kMaxRanksPerNode)
      cli::reject_value(source, host.name, "has too many ranks",
                        fmt::format("a node has at most {}", kMaxRanksPerNode));
    host.max_ranks = sum.max_slots;
    if (sum.max_slots > 0 && host.ranks > sum.max_slots)
      cli::reject_value(source, host.name, fmt::format("has {} ranks, but max_slots={}", host.ranks, sum.max_slots),
                        "give fewer slots, or a larger max_slots");
  }
  return hosts;
}

}  // namespace ddp::launcher
