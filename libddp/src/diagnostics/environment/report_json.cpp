// The document of EnvironmentReport::to_json(), which `ddp-info env --diff` reads.
#include <fmt/format.h>

#include <ddp/diagnostics.hpp>

namespace ddp {
namespace {

std::string json_string(std::string_view text) {
  std::string result = "\"";
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    if (letter == '"' || letter == '\\') {
      result += '\\';
      result += letter;
    } else if (byte < 0x20U) {
      result += fmt::format("\\u{:04x}", byte);
    } else {
      result += letter;
    }
  }
  return result + '"';
}

/// "0-7,9": short for any number of ranks.
std::string ranges(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t first = 0; first < ranks.size();) {
    std::size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", ranks[first]);
    if (last > first) text += fmt::format("-{}", ranks[last]);
    first = last + 1;
  }
  return json_string(text);
}

/// The elements, one a line, as @p write makes them.
template <typename Elements, typename Write>
std::string list(const Elements& elements, Write write) {
  std::string text = "[";
  for (std::size_t i = 0; i < elements.size(); ++i) text += (i == 0 ? "\n  " : ",\n  ") + write(elements[i]);
  return text + "]";
}

std::string read_text(const std::optional<bool>& read) { return read ? (*read ? "true" : "false") : "null"; }

}  // namespace

std::string EnvironmentReport::to_json() const {
  std::string text = fmt::format("{{\"schema\": \"ddp-info-env/1\",\n\"ranks\": {},\n\"hosts\": ", hosts.size());
  text += list(hosts, json_string);
  text += ",\n\"nccl\": " + list(nccl, [](const Library& library) {
            return fmt::format(R"({{"path": {}, "found": {}, "version": {}, "names": {}, "problem": {}, "ranks": {}}})",
                               json_string(library.path), json_string(library.found), json_string(library.version),
                               library.names, json_string(library.problem), ranges(library.ranks));
          });
  text += ",\n\"files\": " + list(files, [](const File& file) {
            return fmt::format(R"({{"path": {}, "digest": {}, "ranks": {}}})", json_string(file.path),
                               json_string(file.digest), ranges(file.ranks));
          });
  text += ",\n\"findings\": " + list(findings, [](const EnvironmentFinding& finding) {
            return fmt::format(
                R"({{"rule": {}, "severity": {}, "variable": {}, "text": {}, "remedy": {}, "ranks": {}}})",
                json_string(finding.rule), finding.error ? "\"error\"" : "\"warning\"", json_string(finding.variable),
                json_string(finding.text), json_string(finding.remedy), ranges(finding.ranks));
          });
  text += ",\n\"variables\": " + list(variables, [](const Variable& variable) {
            std::string values;
            for (const Value& value : variable.values) {
              values += fmt::format(R"({}{{"value": {}, "origin": {}, "read": {}, "ranks": {}}})",
                                    values.empty() ? "" : ", ", json_string(value.value), json_string(value.origin),
                                    read_text(value.read), ranges(value.ranks));
            }
            return fmt::format(R"({{"name": {}, "family": {}, "values": [{}]}})", json_string(variable.name),
                               json_string(variable.family), values);
          });
  return text + "}\n";
}

}  // namespace ddp
