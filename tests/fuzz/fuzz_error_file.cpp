// Error files, which user programs write. Whatever the bytes, they can be shown as UTF-8 of bounded length, and what is
// passed on is a file that torch can read and that means the same. Last words may name ranks.
#include <nlohmann/json.hpp>

#include "fuzz/fuzz.hpp"
#include "outcome/error_file.hpp"
#include "outcome/group_verdict.hpp"

namespace {

// Throws where the text is no UTF-8.
void require_utf8(const std::string& text) {
  static_cast<void>(nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::strict));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddp::launcher;
  const std::string content{reinterpret_cast<const char*>(data), size};
  const WorkerError error = parse_error_file(content);
  require_utf8(error.message);
  require_utf8(error.traceback);
  require(error.message.size() + error.traceback.size() <= 3 * size + 16);  // U+FFFD takes three bytes
  require(size == 0 || !error.message.empty() || !error.traceback.empty());

  const std::string passed = with_error_code(content, 3);
  const nlohmann::json document = nlohmann::json::parse(passed);
  const nlohmann::json& message = document.at("message");
  if (!message.is_string()) {
    require(message.at("message").is_string());
    require(message.at("errorCode") == 3);
    require(std::stoll(message.at("extraInfo").at("timestamp").get<std::string>()) > 0);
  }
  require(parse_error_file(passed).traceback == error.traceback);
  require(with_error_code(passed, 3) == passed);

  const std::vector<int> blamed = blamed_ranks(content);
  require(std::is_sorted(blamed.begin(), blamed.end()) && (blamed.empty() || blamed.front() >= 0));
  return 0;
}
