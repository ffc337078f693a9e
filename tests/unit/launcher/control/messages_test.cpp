// Every message comes back from its bytes as it was, and bytes that encode() does not make are refused.
#include "control/messages.hpp"

#include <type_traits>

#include "control/message_fields.hpp"
#include "support/message_check.hpp"

namespace ddp::launcher::control {
namespace {

/// What the error says; an empty text if there is none.
std::string refusal_of(const Bytes& bytes) { return tests::refusal_of<Message>(bytes); }

template <class... Kinds>
std::vector<Message> samples_of(std::type_identity<std::variant<Kinds...>>) {
  std::vector<Message> samples;
  const auto add = [&]<class Kind>() {
    if constexpr (base::IsDescribed<Kind>) samples.push_back(tests::sample_message<Kind>());
  };
  (add.template operator()<Kinds>(), ...);
  return samples;
}
std::vector<Message> samples() { return samples_of(std::type_identity<Message>{}); }

template <class... Kinds>
std::vector<Message> defaults_of(std::type_identity<std::variant<Kinds...>>) {
  return {Kinds{}...};
}

TEST(ControlMessages, EveryKindComesBackAndIsRefusedWhenItIsWrong) {
  const auto check = []<class Kind>() {
    if constexpr (base::IsDescribed<Kind>) tests::check_message<Kind>();
  };
  [&]<class... Kinds>(std::type_identity<std::variant<Kinds...>>) {
    (check.template operator()<Kinds>(), ...);
  }(std::type_identity<Message>{});
  EXPECT_EQ(samples().size(), std::variant_size_v<Message> - 1);  // all but Encoded
  for (const Message& message : samples()) EXPECT_EQ(decode(encode(message)), message) << name_of(message);
}

TEST(ControlMessages, EveryDefaultComesBackAsItWas) {
  for (const Message& message : defaults_of(std::type_identity<Message>{})) {
    if (std::holds_alternative<Encoded>(message)) continue;
    EXPECT_EQ(decode(encode(message)), message) << name_of(message);
  }
}

TEST(ControlMessages, NumbersOutOfRangeAreRefusedAndNamed) {
  const auto refused = [](const Message& message, const std::string& what) {
    EXPECT_THAT(refusal_of(encode(message)), HasSubstr(what));
  };
  refused(AttemptPrepared{.epoch = -1}, "AttemptPrepared: 'epoch' is -1, which is not between 0 and");
  refused(AttemptPrepared{.store_port = 65536}, "AttemptPrepared: 'store_port' is 65536");
  refused(Hello{.interfaces = {{}, {.prefix_length = 129}}}, "Interface: 'prefix_length' is 129");
  refused(RankEnded{.end = {.code = 256, .by_signal = false, .core_dumped = false}}, "RankEnd: 'code' is 256");
  refused(Fence{.ranks = {1, -1}}, "Fence: 'ranks' is -1");
}

TEST(ControlMessages, UnknownKindsAreRefused) {
  const std::size_t kinds = std::variant_size_v<Message> - 1;
  for (const std::size_t kind : {kinds, kinds + 1, std::size_t{255}}) {
    EXPECT_THAT(refusal_of({static_cast<std::byte>(kind)}), HasSubstr("no message of kind " + std::to_string(kind)));
  }
  EXPECT_NE(refusal_of({}), "");
  EXPECT_NE(refusal_of(base::to_bytes("GET / HTTP/1.1\r\n")), "");
}

TEST(ControlMessages, ThoseThatMayBeLongAreKnownByTheirFirstByte) {
  for (const Message& message : samples()) {
    const bool bulk = std::holds_alternative<Fence>(message) || std::holds_alternative<ModexRequest>(message) ||
                      std::holds_alternative<ModexReply>(message) || std::holds_alternative<ConsoleOutput>(message) ||
                      std::holds_alternative<RanksObserved>(message);
    EXPECT_EQ(is_bulk(encode(message)), bulk) << name_of(message);
  }
  EXPECT_FALSE(is_bulk({}));
}

TEST(ControlMessages, AnEncodedOneIsSentAsItCame) {
  const Bytes bytes = encode(samples().back());
  EXPECT_EQ(encode(Encoded{std::make_shared<const Bytes>(bytes)}), bytes);
}

TEST(ControlMessages, NamesAreThoseOfTheTypes) {
  EXPECT_STREQ(name_of(RankEnded{}), "RankEnded");
  EXPECT_STREQ(name_of(Fence{}), "Fence");
}

// What becomes part of a path on another host.
TEST(ControlMessages, NamesThatWouldLeadElsewhereAreRefused) {
  for (const std::string& wrong : {std::string{"../x"}, std::string{"/etc"}, std::string{"a\nb"}, std::string{"\0", 1},
                                   std::string{"\x7f"}, std::string(256, 'x')}) {
    for (const Message& message :
         {Message{Hello{.host = wrong}}, Message{Hello{.run_id = wrong}}, Message{Hello{.addresses = {"n1", wrong}}},
          Message{PrepareAttempt{.log_suffix = wrong}}, Message{PrepareAttempt{.name_space = wrong}},
          Message{PrepareAttempt{.nodes = {NodeLayout{.host = wrong}}}},
          Message{StartAttempt{.store_addresses = {wrong}}}}) {
      EXPECT_THAT(refusal_of(encode(message)), HasSubstr("'/' or a control character"));
    }
  }
  EXPECT_NO_THROW(decode(encode(Hello{.host = std::string(255, 'x'), .program = "/home/a/train.py"})));
}

}  // namespace
}  // namespace ddp::launcher::control
