// Host files and lists, --ssh-command, --agent-command. Whatever they are, they are understood or
// refused with one line; no host can be taken for an option of ssh.
#include "fuzz/fuzz.hpp"
#include "options/host_list.hpp"

namespace {

using namespace ddp::launcher;

template <class Step>
void attempt(const Step& step) {
  try {
    step();
  } catch (const ddp::Error& error) {
    require(std::string_view(error.what()).find('\n') == std::string_view::npos);
  }
}

void check_hosts(const std::vector<HostMention>& mentions) {
  const auto hosts = merge_hosts("hosts", mentions);
  require(!hosts.empty() && hosts.size() <= mentions.size());
  for (const HostEntry& host : hosts) {
    require(!host.name.empty() && host.name.front() != '-');
    require(host.name.find_first_of(" \t\n;&|$'\"@/") == std::string::npos);
    require(host.ranks >= 0 && host.ranks <= kMaxRanksPerNode);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text{reinterpret_cast<const char*>(data), size};
  attempt([&] { check_hosts(parse_host_file("hosts", text)); });
  attempt([&] { check_hosts(parse_host_list("-H", text)); });
  attempt([&] { require(!split_shell_words("--ssh-command", text).front().empty()); });
  attempt([&] { require(parse_agent_command("--agent-command", text).front().find(kHostPlace) == std::string::npos); });
  const auto words = split_shell_words("--ssh-command", "ssh " + shell_quoted(text));
  require(words.size() == 2 && words.back() == text);
  return 0;
}
