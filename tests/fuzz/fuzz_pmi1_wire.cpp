// What a PMI-1 server may send: lines, limits and ports. Whatever the bytes, the parsers throw ddp::Error or give
// something that is encoded to a line of the same meaning.
#include "fuzz/fuzz.hpp"
#include "kvs/pmi1_wire.hpp"

namespace {

template <class Action>
void tolerate_refusal(Action&& action) {
  try {
    action();
  } catch (const ddp::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddp::kvs;
  const std::string_view text{reinterpret_cast<const char*>(data), size};
  tolerate_refusal([&] { require(parse_pmi_port(text).port != 0); });
  tolerate_refusal([&] {
    const PmiMessage message = parse_pmi1(text);
    require(!message.command.empty());
    tolerate_refusal([&] { message.number("rc"); });
    tolerate_refusal([&] {
      const Pmi1Maxes maxes = read_pmi1_maxes(message);
      const std::size_t most = pmi1_text_bytes(maxes, size % 600);
      require(most < maxes.value_bytes && most < kPmi1MostLineBytes);
    });
    tolerate_refusal([&] {
      const std::string line = encode_pmi1(message);
      const PmiMessage again = parse_pmi1(std::string_view(line).substr(0, line.size() - 1));
      require(again.command == message.command && again.fields == message.fields);
    });
  });
  return 0;
}
