#include "kvs/pmi_store.hpp"

#include <exception>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/byte_stream.hpp"
#include "base/log.hpp"
#include "kvs/pmi1_store.hpp"
#include "kvs/pmi2_store.hpp"
#include "kvs/pmi_value.hpp"
#include "kvs/store_contract.hpp"

namespace ddp::kvs {

void PmiStore::put_into(Space space, std::string_view key, std::span<const std::byte> value) {
  check_key(key);
  const std::string attempted = fmt::format("putting '{}' over {}", key, transport());
  check_usable(usable_, attempted);
  const std::uint64_t hash = base::Fnv1a().add(key).value();
  if (const auto [entry, fresh] = put_keys_.emplace(hash, key); !fresh) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = attempted,
                 .cause = entry->second == key ? "the key was put before"
                                               : fmt::format("its hash is that of '{}'", entry->second),
                 .hint = "use another key"}};
  }
  const Deadline deadline = Deadline::after(kPutTimeout);
  std::size_t number = 0;
  for (const std::string& text : split_pmi_value(key, value, most_text_bytes()))
    put_text(space, pmi_wire_key(rank_, hash, number++), text, deadline);
}

Bytes PmiStore::get_from(Space space, int rank, std::string_view key, Deadline deadline) {
  check_key(key);
  check_rank(rank, world_size_);
  const std::string attempted = fmt::format("getting '{}' of rank {} over {}", key, rank, transport());
  check_usable(usable_, attempted);
  const std::uint64_t hash = base::Fnv1a().add(key).value();
  const auto first = read_text(space, pmi_wire_key(rank, hash, 0), deadline);
  if (!first) throw key_not_found(attempted);
  PmiValueAssembler value{key, *first};
  for (std::size_t number = 1; number < value.texts(); ++number) {
    const auto text = read_text(space, pmi_wire_key(rank, hash, number), deadline);
    if (!text) {
      throw Error{{.code = ErrorCode::protocol,
                   .attempted = attempted,
                   .cause = fmt::format("part {} of {} is missing", number + 1, value.texts())}};
    }
    value.add(*text);
  }
  return std::move(value).finish();
}

void PmiStore::log_failures(const std::function<void()>& finalize) noexcept {
  try {
    finalize();
  } catch (const Error& error) {
    // A connection that the server closed was reported when it was used.
    const bool expected = error.code() == ErrorCode::peer_lost;
    base::log_line(expected ? base::LogLevel::debug : base::LogLevel::warning, error.what());
  } catch (const std::exception& error) {
    base::log_line(base::LogLevel::warning, error.what());
  }
}

int pmi_version(const base::Environment& environment) {
  if (environment.has("PMI_FD")) return environment.has("PMI_JOBID") ? 2 : 1;
  return environment.has("PMI_PORT") ? 1 : 0;
}

std::unique_ptr<PmiStore> connect_pmi(int version, const base::Environment& environment, Deadline deadline) {
  if (version == 2) return std::make_unique<Pmi2Store>(environment, deadline);
  return std::make_unique<Pmi1Store>(environment, deadline);
}

}  // namespace ddp::kvs
