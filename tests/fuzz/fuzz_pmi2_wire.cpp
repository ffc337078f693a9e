// What a PMI-2 server may send: lengths, messages, greetings and stored values. Whatever the bytes, the parsers throw
// ddp::Error or give something that is encoded to the same again.
#include "fuzz/fuzz.hpp"
#include "kvs/pmi2_wire.hpp"
#include "kvs/pmi_value.hpp"

namespace {

template <class Action>
void tolerate_error(Action&& action) {
  try {
    action();
  } catch (const ddp::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddp::kvs;
  const std::string_view text{reinterpret_cast<const char*>(data), size};
  tolerate_error([&] { check_pmi2_greeting(text); });
  tolerate_error([&] { require(parse_pmi2_length(text) <= 999'999); });
  tolerate_error([&] {
    const PmiMessage message = parse_pmi2(text);
    require(!message.command.empty());
    tolerate_error([&] { message.number("rc"); });
    tolerate_error([&] { require(encode_pmi2(message).substr(6) == text); });
  });
  tolerate_error([&] {
    const auto cut = text.find('\n');
    PmiValueAssembler value{"key", text.substr(0, cut)};
    if (cut != text.npos) value.add(text.substr(cut + 1));
    const ddp::Bytes bytes = std::move(value).finish();
    require(bytes.size() <= size);
  });
  const auto texts = split_pmi_value("key", {reinterpret_cast<const std::byte*>(data), size}, kPmi2MaxValueBytes);
  PmiValueAssembler again{"key", texts.at(0)};
  for (std::size_t i = 1; i < texts.size(); ++i) again.add(texts[i]);
  const ddp::Bytes bytes = std::move(again).finish();
  require(std::string_view{reinterpret_cast<const char*>(bytes.data()), bytes.size()} == text);
  return 0;
}
