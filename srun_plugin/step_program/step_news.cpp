#include "step_program/step_news.hpp"

#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/byte_stream.hpp"

namespace ddp::srun_plugin {
namespace {

constexpr std::uint8_t kNewsVersion = 1;
constexpr const char* kNewsCount = "ddp-step/news";
constexpr const char* kNewsHost = "127.0.0.1";

std::string news_key(std::int64_t number) { return fmt::format("ddp-step/news/{}", number); }

}  // namespace

std::string inquiry_key(std::uint32_t number) { return fmt::format("ddp-step/inquiry/{}", number); }

Bytes encode(const StepNews& news) {
  return std::move(base::ByteWriter{}
                       .integer(kNewsVersion)
                       .integer(static_cast<std::uint8_t>(news.kind))
                       .text(news.node)
                       .integer(news.inquiry)
                       .blob(news.content))
      .bytes();
}

StepNews decode_news(std::span<const std::byte> bytes) {
  base::ByteReader reader(bytes, "news of a node");
  const auto version = reader.integer<std::uint8_t>();
  const auto kind = reader.integer<std::uint8_t>();
  if (version != kNewsVersion || kind > static_cast<std::uint8_t>(NewsKind::facts)) {
    throw Error{{.code = ErrorCode::protocol,
                 .attempted = "reading what a node says of the step",
                 .cause = fmt::format("its version is {}, its kind {}", version, kind),
                 .hint = "install one version of the plugin on all nodes"}};
  }
  StepNews news{.kind = static_cast<NewsKind>(kind), .node = reader.text()};
  news.inquiry = reader.integer<std::uint32_t>();
  const auto content = reader.blob();
  news.content.assign(content.begin(), content.end());
  reader.expect_end();
  return news;
}

void tell(StepStore& store, const StepNews& news) {
  // Who reads waits for each number: between the two requests, this process must not give up.
  store.set(news_key(store.add(kNewsCount, 1)), encode(news));
}

void tell_line(StepStore& store, const std::string& node, const std::string& text) {
  tell(store, {.kind = NewsKind::line, .node = node, .content = base::to_bytes(text)});
}

NewsReader::NewsReader(std::uint16_t port) : store_(kNewsHost, port) { ask(); }

void NewsReader::ask() { store_.ask_wait({news_key(next_)}); }

std::optional<StepNews> NewsReader::take() {
  store_.take_wait();
  const std::string key = news_key(next_++);
  const Bytes bytes = store_.get({key}).front();
  store_.set(key, {});
  ask();
  try {
    return decode_news(bytes);
  } catch (const Error&) {
    return std::nullopt;  // of another version, which the node has said
  }
}

}  // namespace ddp::srun_plugin
