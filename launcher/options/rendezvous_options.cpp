// torchrun's grammar for endpoints and rendezvous settings, with unambiguous IPv6 addresses.
#include "options/rendezvous_options.hpp"

#include <algorithm>
#include <array>
#include <cctype>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/closest_word.hpp"
#include "cli/option_values.hpp"
#include "options/option_groups.hpp"

namespace ddp::launcher {
namespace {

constexpr const char* kEndpointHint = "give HOST, HOST:PORT or [IPv6 ADDRESS]:PORT";

bool is_word_character(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

bool is_host_name(std::string_view host) {
  return !host.empty() && host.front() != '-' && std::all_of(host.begin(), host.end(), [](char c) {
    return is_word_character(c) || c == '.' || c == '-' || c == '_';
  });
}

/// Whether it has only characters of "fe80::1%eth0"; look-up checks the address itself.
bool is_ipv6_like(std::string_view host) {
  return std::count(host.begin(), host.end(), ':') >= 2 && std::all_of(host.begin(), host.end(), [](char c) {
           return is_word_character(c) || c == ':' || c == '.' || c == '%' || c == '-' || c == '_';
         });
}

std::uint16_t parse_endpoint_port(const std::string& option, const std::string& text, std::string_view port) {
  const bool digits =
      !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == std::string_view::npos;
  int number = 0;
  for (const char digit : digits ? port : std::string_view{}) number = number * 10 + (digit - '0');
  if (!digits || number > 65'535)
    cli::reject_value(option, text, "has no valid port", fmt::format("{}, where PORT is 0 to 65535", kEndpointHint));
  return static_cast<std::uint16_t>(number);
}

/// The effect of one key; empty: torchrun uses the key, but it has no effect here.
struct ConfKey {
  const char* name;
  void (*set)(const std::string& option, const std::string& text, RendezvousOptions& rendezvous);
  const char* reason;  ///< why a key has no effect
};

bool parse_truth(const std::string& option, const std::string& text) {
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const char* word : {"1", "true", "t", "yes", "y"}) {
    if (lower == word) return true;
  }
  for (const char* word : {"0", "false", "f", "no", "n"}) {
    if (lower == word) return false;
  }
  cli::reject_value(option, text, "is neither true nor false", "give 1 or 0");
}

template <std::chrono::milliseconds RendezvousOptions::*Member>
void set_time(const std::string& option, const std::string& text, RendezvousOptions& rendezvous) {
  rendezvous.*Member = cli::parse_positive_seconds(option, text, cli::kOneYear);
}

constexpr const char* kOwnHeartbeat = "ddprun notices at once when a node is lost";

const std::array kKeys{
    ConfKey{"join_timeout", &set_time<&RendezvousOptions::join_timeout>, ""},
    ConfKey{"last_call_timeout",
            [](const std::string& option, const std::string& text, RendezvousOptions& rendezvous) {
              rendezvous.last_call_timeout = cli::parse_seconds(option, text, cli::kOneYear);
            },
            ""},
    ConfKey{"scale_up_delay",
            [](const std::string& option, const std::string& text, RendezvousOptions& rendezvous) {
              rendezvous.scale_up_delay = cli::parse_seconds(option, text, cli::kOneYear);
            },
            ""},
    ConfKey{"read_timeout", &set_time<&RendezvousOptions::read_timeout>, ""},
    ConfKey{"timeout", &set_time<&RendezvousOptions::static_timeout>, ""},
    ConfKey{"is_host",
            [](const std::string& option, const std::string& text, RendezvousOptions& rendezvous) {
              rendezvous.is_host = parse_truth(option, text);
            },
            ""},
    ConfKey{"store_type",
            [](const std::string& option, const std::string& text, RendezvousOptions&) {
              if (text != "tcp")
                cli::reject_value(option, text, "is not supported", "nodes rendezvous over TCP: leave it out");
            },
            ""},
    ConfKey{"close_timeout", nullptr, "a finished job is closed at once"},
    ConfKey{"heartbeat_timeout", nullptr, kOwnHeartbeat},
    ConfKey{"keep_alive_interval", nullptr, kOwnHeartbeat},
    ConfKey{"keep_alive_max_attempt", nullptr, kOwnHeartbeat},
    ConfKey{"rank", nullptr, "--node-rank gives the number of the node"},
};

const ConfKey& find_key(const std::string& option, const std::string& name) {
  const auto found = std::find_if(kKeys.begin(), kKeys.end(), [&](const ConfKey& key) { return name == key.name; });
  if (found != kKeys.end()) return *found;
  std::vector<std::string> names;
  for (const ConfKey& key : kKeys) names.emplace_back(key.name);
  const std::string closest = base::closest_word(name, names, std::max<std::size_t>(name.size() / 2, 2));
  cli::reject_value(option, name, "is not a rendezvous setting",
                    closest.empty() ? fmt::format("use one of {}", fmt::join(names, ", "))
                                    : fmt::format("did you mean '{}'?", closest));
}

}  // namespace

Endpoint parse_endpoint(const std::string& option, const std::string& text) {
  const std::string_view whole = cli::trimmed(text);
  const auto refuse = [&](std::string_view why) { cli::reject_value(option, text, why, kEndpointHint); };
  if (whole.starts_with('[')) {
    const auto end = whole.find(']');
    if (end == std::string_view::npos) refuse("has no closing bracket");
    const std::string_view host = whole.substr(1, end - 1);
    const std::string_view rest = whole.substr(end + 1);
    if (!is_ipv6_like(host)) refuse("has no IPv6 address in its brackets");
    if (rest.empty()) return {.host = std::string(host)};
    if (rest.front() != ':') refuse("has no colon after the bracket");
    return {.host = std::string(host), .port = parse_endpoint_port(option, text, rest.substr(1))};
  }
  const auto colon = whole.find(':');
  if (whole.find("://") != std::string_view::npos) refuse("is a URL");
  if (colon != std::string_view::npos && whole.find(':', colon + 1) != std::string_view::npos)
    refuse("has more than one colon: an IPv6 address needs brackets");
  const std::string_view host = whole.substr(0, colon);
  if (!is_host_name(host)) refuse("does not begin with a host name or address");
  if (colon == std::string_view::npos) return {.host = std::string(host)};
  return {.host = std::string(host), .port = parse_endpoint_port(option, text, whole.substr(colon + 1))};
}

std::string parse_host(const std::string& option, const std::string& text) {
  std::string_view host = cli::trimmed(text);
  if (host.size() > 1 && host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (!is_host_name(host) && !is_ipv6_like(host))
    cli::reject_value(option, text, "is not a host name or address", "give HOST or an IP address, without a port");
  return std::string(host);
}

void parse_rendezvous_conf(const std::string& option, const std::string& text, RendezvousOptions& rendezvous,
                           std::vector<std::string>& notices) {
  if (cli::trimmed(text).empty()) return;
  for (const std::string_view part : cli::parts_of(text, ',')) {
    const auto equals = part.find('=');
    const std::string key{cli::trimmed(part.substr(0, equals))};
    if (key.empty()) cli::reject_value(option, text, "has an entry without a key", "give KEY=VALUE,KEY=VALUE,...");
    const ConfKey& known = find_key(option, key);
    const std::string value{equals == std::string_view::npos ? std::string_view{}
                                                             : cli::trimmed(part.substr(equals + 1))};
    if (value.empty()) cli::reject_value(option, text, fmt::format("gives no value for {}", key), "write KEY=VALUE");
    if (known.set == nullptr) {
      notices.push_back(fmt::format("{} in {} is ignored: {}", key, option, known.reason));
    } else {
      known.set(fmt::format("{} in {}", key, option), value, rendezvous);
    }
  }
}

// Options on how the ddpruns of several nodes find each other.

namespace {

const std::vector<std::string> kBackends{"static", "c10d"};

RendezvousBackend parse_backend(const std::string& source, const std::string& text) {
  if (text == "etcd" || text == "etcd-v2")
    cli::reject_value(source, text, "is not supported", "ddprun needs no etcd server: use c10d, with --rdzv-endpoint");
  return cli::parse_choice(source, text, kBackends) == "c10d" ? RendezvousBackend::c10d : RendezvousBackend::fixed;
}

/// The id becomes part of the log folder's name.
std::string parse_run_id(const std::string& source, const std::string& text) {
  const bool fits = text.size() <= 128 && std::none_of(text.begin(), text.end(), [](unsigned char c) {
                      return c == '/' || std::iscntrl(c) != 0;
                    });
  if (!fits)
    cli::reject_value(source, text, "cannot be part of a folder name",
                      "give at most 128 characters, without '/' and control characters");
  return text.empty() ? "none" : text;
}

std::uint16_t parse_port(const std::string& source, const std::string& text) {
  return static_cast<std::uint16_t>(cli::parse_whole(source, text, 0, 65'535));
}

}  // namespace

void add_rendezvous_options(OptionTable& table, OptionDraft& draft) {
  RendezvousOptions& rendezvous = draft.options.rendezvous;
  table.begin_group("Rendezvous");
  table
      .add_value(
          "--rdzv-backend", "static|c10d",
          "How nodes are numbered: by --node-rank (static, the default), or by host name (c10d). Not needed under "
          "Slurm.",
          [&](const auto& source, const auto& text) { rendezvous.backend = parse_backend(source, text); })
      .torchrun()
      .choices(kBackends);
  table
      .add_value(
          "--rdzv-endpoint", "HOST[:PORT]",
          "Name or address of the node to rendezvous at (default port: 29500 for static, 29400 for c10d). Put an "
          "IPv6 address in brackets. Port 0 is any free one, for a single node.",
          [&](const auto& source, const auto& text) {
            rendezvous.endpoint_host.clear();
            rendezvous.endpoint_port.reset();
            if (cli::trimmed(text).empty()) return;
            Endpoint endpoint = parse_endpoint(source, text);
            rendezvous.endpoint_host = std::move(endpoint.host);
            rendezvous.endpoint_port = endpoint.port;
          })
      .torchrun();
  table
      .add_value("--rdzv-id", "ID",
                 "Name of the job, the same on all its nodes, and of its log folders (default 'none'; for log folders, "
                 "Slurm's job).",
                 [&](const auto& source, const auto& text) { rendezvous.run_id = parse_run_id(source, text); })
      .torchrun();
  table
      .add_value(
          "--rdzv-conf", "KEY=VALUE,...",
          "Limits in seconds: join_timeout (600), last_call_timeout (30), scale_up_delay (2), read_timeout (60); "
          "for static, timeout (900) replaces the first and the last. is_host=1 or 0: whether this node is the "
          "endpoint.",
          [&](const auto& source, const auto& text) {
            parse_rendezvous_conf(source, text, rendezvous, draft.options.notices);
          })
      .torchrun();
  table.add_flag(
      "--rdzv-insecure",
      "Let anyone who reaches the endpoint join the job and run programs as this user. Without it, nodes prove "
      "who started them: by DDP_RDZV_SECRET, munge, or the key file ~/.config/libddp/rendezvous.key.",
      rendezvous.insecure);
  table
      .add_value("--node-rank", "N", "Number of this node, for static (default 0).",
                 [&](const auto& source, const auto& text) {
                   rendezvous.node_rank = cli::parse_whole(source, text, 0, kMaxNodes - 1);
                 })
      .torchrun();
  table
      .add_value("--master-addr", "HOST", "Name or address of node 0, for static (default 127.0.0.1).",
                 [&](const auto& source, const auto& text) {
                   rendezvous.master_addr = parse_host(source, text);
                   rendezvous.master_addr_given = true;
                 })
      .torchrun();
  table
      .add_value("--master-port", "PORT", "Port of node 0, for static (default 29500; any free one for a single node).",
                 [&](const auto& source, const auto& text) { rendezvous.master_port = parse_port(source, text); })
      .torchrun();
  table
      .add_value("--local-addr", "HOST", "Name or address at which other nodes reach this one.",
                 [&](const auto& source, const auto& text) {
                   draft.options.local_addr = cli::trimmed(text).empty() ? "" : parse_host(source, text);
                 })
      .torchrun();
}

void settle_rendezvous_options(const OptionTable& table, OptionDraft& draft) {
  const LaunchOptions& options = draft.options;
  const RendezvousOptions& rendezvous = options.rendezvous;
  if (rendezvous.backend == RendezvousBackend::c10d) {
    for (const char* name : {"--node-rank", "--master-addr", "--master-port"}) {
      if (table.given(name)) draft.notice(fmt::format("{} is ignored: it is for --rdzv-backend static", name));
    }
  } else if (rendezvous.node_rank && options.nodes_given &&
             *rendezvous.node_rank >= options.nodes.max + options.spares) {
    cli::reject_combination(
        fmt::format("node rank {} does not exist in a job of at most {} nodes", *rendezvous.node_rank,
                    options.nodes.max + options.spares),
        fmt::format("--node-rank is 0 to {}; or give a larger --nnodes", options.nodes.max + options.spares - 1));
  }
  if (!options.nodes_given || options.nodes.min == 1) return;
  if (rendezvous.endpoint_port == 0)
    cli::reject_combination("port 0 in --rdzv-endpoint is any free port, which other nodes cannot know",
                            "give a port from 1 to 65535, or none");
  if (rendezvous.master_port == 0 && rendezvous.backend != RendezvousBackend::c10d)
    cli::reject_combination("--master-port 0 is any free port, which other nodes cannot know",
                            "give a port from 1 to 65535");
}

}  // namespace ddp::launcher
