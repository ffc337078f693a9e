// Options on how the ddpruns of several nodes find each other.
#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "options/option_groups.hpp"
#include "options/option_values.hpp"
#include "options/rendezvous_values.hpp"

namespace ddp::launcher {
namespace {

const std::vector<std::string> kBackends{"static", "c10d"};

RendezvousBackend parse_backend(const std::string& source, const std::string& text) {
  if (text == "etcd" || text == "etcd-v2")
    reject_value(source, text, "is not supported", "ddprun needs no etcd server: use c10d, with --rdzv-endpoint");
  return parse_choice(source, text, kBackends) == "c10d" ? RendezvousBackend::c10d : RendezvousBackend::fixed;
}

/// The id becomes part of the name of the log folder.
std::string parse_run_id(const std::string& source, const std::string& text) {
  const bool fits = text.size() <= 128 && std::none_of(text.begin(), text.end(), [](unsigned char c) {
                      return c == '/' || std::iscntrl(c) != 0;
                    });
  if (!fits)
    reject_value(source, text, "cannot be part of a folder name",
                 "give at most 128 characters, without '/' and control characters");
  return text.empty() ? "none" : text;
}

std::uint16_t parse_port(const std::string& source, const std::string& text) {
  return static_cast<std::uint16_t>(parse_whole(source, text, 0, 65'535));
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
      .add_value("--rdzv-endpoint", "HOST[:PORT]",
                 "Name or address of the node where all meet (default port: 29500 for static, 29400 for c10d). Put an "
                 "IPv6 address in brackets. Port 0 is any free one, for a single node.",
                 [&](const auto& source, const auto& text) {
                   rendezvous.endpoint_host.clear();
                   rendezvous.endpoint_port.reset();
                   if (trimmed(text).empty()) return;
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
      .add_value("--rdzv-conf", "KEY=VALUE,...",
                 "Limits in seconds: join_timeout (600), last_call_timeout (30), read_timeout (60); for static, "
                 "timeout (900) replaces the first and the last. is_host=1 or 0: whether this node is the endpoint.",
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
                   rendezvous.node_rank = parse_whole(source, text, 0, kMaxNodes - 1);
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
                   draft.options.local_addr = trimmed(text).empty() ? "" : parse_host(source, text);
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
  } else if (rendezvous.node_rank && options.nodes_given && *rendezvous.node_rank >= options.nodes.max) {
    reject_combination(fmt::format("node rank {} does not exist in a job of at most {} nodes", *rendezvous.node_rank,
                                   options.nodes.max),
                       fmt::format("--node-rank is 0 to {}; or give a larger --nnodes", options.nodes.max - 1));
  }
  if (!options.nodes_given || options.nodes.min == 1) return;
  if (rendezvous.endpoint_port == 0)
    reject_combination("port 0 in --rdzv-endpoint is any free port, which other nodes cannot know",
                       "give a port from 1 to 65535, or none");
  if (rendezvous.master_port == 0 && rendezvous.backend != RendezvousBackend::c10d)
    reject_combination("--master-port 0 is any free port, which other nodes cannot know",
                       "give a port from 1 to 65535");
}

}  // namespace ddp::launcher
