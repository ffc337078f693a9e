// Reads the error files of user programs, and trusts nothing in them.
#include "outcome/error_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/files.hpp"
#include "base/unique_fd.hpp"

namespace ddp::launcher {
namespace {

using Json = nlohmann::ordered_json;

// Shown of a file that is not JSON.
constexpr std::size_t kShownBytes = 4096;
// torch's files have 3 levels. Writing recurses, so depth is limited.
constexpr int kMostLevels = 32;
// The year 2250: the clock's own range ends in 2262.
constexpr std::int64_t kLatestTime = 8'835'000'000;

bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

/// The number of a "\uXXXX" at @p at, or nothing.
std::optional<unsigned> unicode_escape(std::string_view text, std::size_t at) {
  if (at + 6 > text.size() || text[at] != '\\' || text[at + 1] != 'u') return std::nullopt;
  for (std::size_t i = 2; i < 6; ++i) {
    if (!is_hex(text[at + i])) return std::nullopt;
  }
  unsigned value = 0;
  std::from_chars(&text[at + 2], &text[at + 2] + 4, value, 16);
  return value;
}

bool is_high(unsigned value) { return value >= 0xd800 && value < 0xdc00; }
bool is_low(unsigned value) { return value >= 0xdc00 && value < 0xe000; }

/// Python writes bytes that are no UTF-8, as in file names, as surrogates without a partner, which JSON does not know.
std::string without_lone_surrogates(std::string text) {
  for (std::size_t at = text.find('\\'); at != std::string::npos; at = text.find('\\', at)) {
    const auto value = unicode_escape(text, at);
    if (!value) {
      at += 2;
    } else if (is_high(*value) && is_low(unicode_escape(text, at + 6).value_or(0))) {
      at += 12;
    } else {
      if (is_high(*value) || is_low(*value)) text.replace(at + 2, 4, "fffd");
      at += 6;
    }
    if (at >= text.size()) break;
  }
  return text;
}

/// @p text with U+FFFD for what is no UTF-8.
std::string as_utf8(const std::string& text) {
  return Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
}

/// Discarded where @p text is no JSON. Levels that are too deep are left out.
Json parse(const std::string& text) {
  const auto shallow = [](int depth, Json::parse_event_t, const Json&) { return depth < kMostLevels; };
  return Json::parse(text, shallow, false);
}

/// The end of a file that was cut within its message or its traceback.
Json parse_cut(std::string text) {
  // An escape may have been cut too.
  for (std::size_t at = text.find('\\'); at != std::string::npos; at = text.find('\\', at)) {
    const std::size_t length = at + 1 < text.size() && text[at + 1] == 'u' ? 6 : 2;
    if (at + length > text.size()) {
      text.resize(at);
      break;
    }
    at += length;
  }
  for (const char* end : {R"("}})", R"("}}})", R"("})"}) {
    if (Json document = parse(text + end); document.is_object()) return document;
  }
  return Json(Json::value_t::discarded);
}

/// The file as an object that has a message; discarded if it is not one.
Json understand(const std::string& content) {
  const std::string text = without_lone_surrogates(as_utf8(content));
  Json document = parse(text);
  if (document.is_discarded() && content.size() >= kMaxErrorFileBytes) document = parse_cut(text);
  if (!document.is_object() || !document.contains("message")) return Json(Json::value_t::discarded);
  const Json& message = document["message"];
  if (!message.is_string() && !message.is_object()) return Json(Json::value_t::discarded);
  return document;
}

std::string beginning(const std::string& content) {
  if (content.size() <= kShownBytes) return as_utf8(content);
  return as_utf8(content.substr(0, kShownBytes)) + " ...";
}

/// A member's text; empty if it is none.
std::string text_of(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string{};
}

/// Unix seconds, as a number or as text.
std::optional<std::int64_t> seconds_of(const Json& object) {
  const auto found = object.find("timestamp");
  if (found == object.end()) return std::nullopt;
  std::int64_t seconds = 0;
  if (found->is_string()) {
    const auto& text = found->get_ref<const std::string&>();
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
    if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  } else if (found->is_number_integer()) {
    seconds = found->get<std::int64_t>();
  }
  if (seconds <= 0 || seconds > kLatestTime) return std::nullopt;
  return seconds;
}

std::string now_text() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(now).count());
}

}  // namespace

std::optional<std::string> read_error_file(const std::string& path) {
  if (path.empty()) return std::nullopt;
  // Not blocking: opening a pipe without a writer would wait.
  const base::UniqueFd fd{::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)};
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  std::string content(kMaxErrorFileBytes, '\0');
  std::size_t size = 0;
  while (size < content.size()) {
    const ssize_t count = ::read(fd.get(), &content[size], content.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    size += static_cast<std::size_t>(count);
  }
  if (size == 0) return std::nullopt;
  content.resize(size);
  return content;
}

WorkerError parse_error_file(const std::string& content) {
  const Json document = understand(content);
  if (document.is_discarded()) return {.message = beginning(content)};
  const Json& message = document["message"];
  WorkerError error;
  std::optional<std::int64_t> seconds;
  if (message.is_string()) {
    error.message = message.get<std::string>();
    seconds = seconds_of(document);
  } else {
    error.message = text_of(message, "message");
    if (const auto extra = message.find("extraInfo"); extra != message.end() && extra->is_object()) {
      error.traceback = text_of(*extra, "py_callstack");
      seconds = seconds_of(*extra);
    }
  }
  if (error.message.empty() && error.traceback.empty()) error.message = beginning(content);
  if (seconds) error.time = std::chrono::system_clock::time_point{std::chrono::seconds{*seconds}};
  return error;
}

std::string with_error_code(const std::string& content, int exit_code) {
  Json document = understand(content);
  if (document.is_discarded()) document = {{"message", {{"message", beginning(content)}}}};
  Json& message = document["message"];
  if (message.is_string()) {  // torch adds no code to this form
    if (document.contains("timestamp") && !seconds_of(document)) document.erase("timestamp");
  } else {
    // torch fails on other types and without a time.
    if (const auto text = message.find("message"); text == message.end() || !text->is_string())
      message["message"] = beginning(content);
    Json& extra = message["extraInfo"];
    if (!extra.is_object()) extra = Json::object();
    if (extra.contains("py_callstack") && !extra["py_callstack"].is_string()) extra.erase("py_callstack");
    // Text, as torch writes it.
    const auto seconds = seconds_of(extra);
    extra["timestamp"] = seconds ? std::to_string(*seconds) : now_text();
    if (exit_code != 0) message["errorCode"] = exit_code;
  }
  return document.dump(-1, ' ', true, Json::error_handler_t::replace);
}

void pass_on_error_file(const std::string& content, int exit_code, const std::string& path) {
  base::write_file(base::WholeFile{.path = path,
                                   .attempted = fmt::format(
                                       "passing a failed rank's error file on to TORCHELASTIC_ERROR_FILE={}", path)},
                   with_error_code(content, exit_code));
}

}  // namespace ddp::launcher
