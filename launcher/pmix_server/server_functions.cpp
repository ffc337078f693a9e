#include "pmix_server/server_functions.hpp"

#include <type_traits>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "kvs/pmix_library.hpp"

namespace ddp::launcher {
namespace {

PmixServerFunctions find_functions() {
  const kvs::PmixLibrary& library = kvs::pmix();
  PmixServerFunctions functions;
  const auto find = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(library.function(symbol));
    if (function == nullptr) {
      throw Error{{.code = ErrorCode::unavailable,
                   .attempted = "starting the PMIx server",
                   .cause = fmt::format("{} ({}) has no {}", library.file(), library.get_version(), symbol),
                   .hint = "use a libpmix with its server's functions, version 4.2 or newer"}};
    }
  };
#define DDP_PMIX_SERVER_FIND(member, function) find(functions.member, #function);
  DDP_PMIX_SERVER_FUNCTIONS(DDP_PMIX_SERVER_FIND)
#undef DDP_PMIX_SERVER_FIND
  return functions;
}

}  // namespace

const PmixServerFunctions& pmix_server() {
  static const PmixServerFunctions functions = find_functions();
  return functions;
}

}  // namespace ddp::launcher
