// Prefix templates come from the user's environment. Whatever they are, the result is bounded, text without "$" stays
// as it is, and every "$" that is left stands for itself.
#include "fuzz/fuzz.hpp"
#include "logs/log_plan.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddp::launcher;
  const std::string_view text{reinterpret_cast<const char*>(data), size};
  const PrefixValues values{.role_name = "trainer", .rank = 4095, .local_rank = 7};
  const std::string filled = fill_prefix_template(text, values);
  // "$rank", 5 bytes, gives 4: only "trainer" and doubled dollars change the length, and none makes it longer.
  require(filled.size() <= size);
  if (text.find('$') == std::string_view::npos) require(filled == text);
  require(std::count(filled.begin(), filled.end(), '$') <= std::count(text.begin(), text.end(), '$'));

  std::string escaped;
  for (const char c : text) escaped += c == '$' ? "$$" : std::string(1, c);
  require(fill_prefix_template(escaped, values) == text);
  require(fill_prefix_template(std::string{text} + "\n${rank}", values).ends_with("\n4095"));
  return 0;
}
