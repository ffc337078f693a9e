#include "world/process_mapping.hpp"

#include <charconv>
#include <map>
#include <string>

#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp::world {
namespace {

// Far above any machine; bounds the memory that a broken mapping can claim.
constexpr int kLargestNumber = 10'000'000;

struct Block {
  int first_node;
  int node_count;
  int ranks_per_node;
};

class Parser {
 public:
  explicit Parser(std::string_view text) : whole_(text), rest_(text) {}

  std::vector<Block> parse() {
    std::vector<Block> blocks;
    expect("(");
    expect("vector");
    while (take(",")) {
      expect("(");
      const int first_node = number();
      expect(",");
      const int node_count = number();
      expect(",");
      const int ranks_per_node = number();
      expect(")");
      if (node_count == 0 || ranks_per_node == 0) fail("a block is empty");
      blocks.push_back({first_node, node_count, ranks_per_node});
    }
    expect(")");
    if (!rest_.empty()) fail("something follows the closing parenthesis");
    if (blocks.empty()) fail("it has no blocks");
    return blocks;
  }

  [[noreturn]] void fail(std::string_view cause) const {
    throw Error{{.code = ErrorCode::protocol,
                 .attempted = fmt::format("reading the process mapping '{}'", whole_.substr(0, 200)),
                 .cause = std::string(cause),
                 .hint = "expected a form like (vector,(0,2,4))"}};
  }

 private:
  void skip_space() {
    while (!rest_.empty() && rest_.front() == ' ') rest_.remove_prefix(1);
  }
  bool take(std::string_view token) {
    skip_space();
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }
  void expect(std::string_view token) {
    if (!take(token)) fail(fmt::format("'{}' is missing at character {}", token, whole_.size() - rest_.size() + 1));
  }
  int number() {
    skip_space();
    int value = 0;
    const auto [end, status] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (status != std::errc{} || value < 0 || value > kLargestNumber) {
      fail(fmt::format("a number is missing at character {}", whole_.size() - rest_.size() + 1));
    }
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return value;
  }

  std::string_view whole_;
  std::string_view rest_;
};

}  // namespace

std::vector<int> parse_process_mapping(std::string_view text, int world_size) {
  Parser parser(text);
  const std::vector<Block> blocks = parser.parse();
  std::vector<int> node_of;
  node_of.reserve(static_cast<std::size_t>(world_size));
  const auto full = [&] { return static_cast<int>(node_of.size()) == world_size; };
  while (!full()) {
    for (const Block& block : blocks) {
      for (int node = 0; node < block.node_count && !full(); ++node) {
        for (int rank = 0; rank < block.ranks_per_node && !full(); ++rank) {
          node_of.push_back(block.first_node + node);
        }
      }
    }
  }
  std::map<int, int> dense;
  for (const int node : node_of) dense.emplace(node, 0);
  int next = 0;
  for (auto& entry : dense) entry.second = next++;
  for (int& node : node_of) node = dense.at(node);
  return node_of;
}

}  // namespace ddp::world
