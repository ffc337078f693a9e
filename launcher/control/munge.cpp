#include "control/munge.hpp"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <ctime>
#include <memory>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp::launcher::control {
namespace {

// munge.h of MUNGE 0.5, whose ABI has been the same since 2007 (libmunge.so.2).
using Context = void*;
constexpr int kSuccess = 0;
constexpr std::array<const char*, 19> kErrorNames{
    "EMUNGE_SUCCESS",      "EMUNGE_SNAFU",         "EMUNGE_BAD_ARG",          "EMUNGE_BAD_LENGTH",
    "EMUNGE_OVERFLOW",     "EMUNGE_NO_MEMORY",     "EMUNGE_SOCKET",           "EMUNGE_TIMEOUT",
    "EMUNGE_BAD_CRED",     "EMUNGE_BAD_VERSION",   "EMUNGE_BAD_CIPHER",       "EMUNGE_BAD_MAC",
    "EMUNGE_BAD_ZIP",      "EMUNGE_BAD_REALM",     "EMUNGE_CRED_INVALID",     "EMUNGE_CRED_EXPIRED",
    "EMUNGE_CRED_REWOUND", "EMUNGE_CRED_REPLAYED", "EMUNGE_CRED_UNAUTHORIZED"};
constexpr int kBadArgument = 2;  // an empty credential
constexpr int kNoMemory = 5;
constexpr int kSocketError = 6;
constexpr int kTimeout = 7;
constexpr int kFirstCredentialError = 8;
constexpr int kInvalid = 14;
constexpr int kExpired = 15;
constexpr int kRewound = 16;
constexpr int kUnauthorized = 18;
constexpr int kOptionEncodeTime = 6;
constexpr int kOptionDecodeTime = 7;
constexpr int kOptionSocket = 8;
constexpr int kOptionUidRestriction = 9;

[[noreturn]] void fail(ErrorCode code, std::string cause, std::string native, std::string hint) {
  throw Error{{.code = code,
               .attempted =
                   code == ErrorCode::conflict ? "opening a munge credential" : "asking munged for a proof of identity",
               .cause = std::move(cause),
               .native = std::move(native),
               .hint = std::move(hint)}};
}

std::string name_of(int code) {
  const auto index = static_cast<std::size_t>(code);
  return fmt::format("{} ({})", code >= 0 && index < kErrorNames.size() ? kErrorNames.at(index) : "EMUNGE", code);
}

/// Never closed: another thread may be inside it.
struct Library {
  Context (*create)() = nullptr;
  void (*destroy)(Context) = nullptr;
  int (*get)(Context, int, ...) = nullptr;
  int (*set)(Context, int, ...) = nullptr;
  const char* (*text_of_last)(Context) = nullptr;
  const char* (*text_of)(int) = nullptr;
  int (*encode)(char**, Context, const void*, int) = nullptr;
  int (*decode)(const char*, Context, void**, int*, uid_t*, gid_t*) = nullptr;

  static const Library& get_one() {
    static const Library library;
    return library;
  }

 private:
  Library() {
    void* const handle = ::dlopen("libmunge.so.2", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr)
      fail(ErrorCode::unavailable, fmt::format("libmunge cannot be opened: {}", ::dlerror()), {}, {});
    find(handle, create, "munge_ctx_create");
    find(handle, destroy, "munge_ctx_destroy");
    find(handle, get, "munge_ctx_get");
    find(handle, set, "munge_ctx_set");
    find(handle, text_of_last, "munge_ctx_strerror");
    find(handle, text_of, "munge_strerror");
    find(handle, encode, "munge_encode");
    find(handle, decode, "munge_decode");
  }
  template <class Function>
  static void find(void* handle, Function*& function, const char* symbol) {
    function = reinterpret_cast<Function*>(::dlsym(handle, symbol));
    if (function == nullptr) fail(ErrorCode::unavailable, fmt::format("libmunge has no {}", symbol), {}, {});
  }
};

struct DestroyContext {
  void operator()(Context context) const noexcept { Library::get_one().destroy(context); }
};
struct Free {
  void operator()(void* memory) const noexcept { std::free(memory); }
};

class Call {
 public:
  explicit Call(const std::string& socket) : context_(library_.create()) {
    if (!context_) check(kNoMemory);
    if (!socket.empty()) check(library_.set(context_.get(), kOptionSocket, socket.c_str()));
  }

  Bytes seal(std::span<const std::byte> payload, const uid_t* only_for) {
    if (only_for != nullptr) check(library_.set(context_.get(), kOptionUidRestriction, *only_for));
    char* made = nullptr;
    const int code = library_.encode(&made, context_.get(), payload.data(), static_cast<int>(payload.size()));
    const std::unique_ptr<char, Free> credential{made};
    check(code);
    const auto text = std::as_bytes(std::span{std::string_view{made}});
    return {text.begin(), text.end()};
  }

  Munge::Opened open(std::span<const std::byte> credential) {
    const std::string text{reinterpret_cast<const char*>(credential.data()), credential.size()};
    void* memory = nullptr;
    int size = 0;
    gid_t group = 0;
    Munge::Opened opened;
    const int code = library_.decode(text.c_str(), context_.get(), &memory, &size, &opened.user, &group);
    const std::unique_ptr<void, Free> payload{memory};
    check(code);
    const auto bytes = std::span{static_cast<const std::byte*>(memory), static_cast<std::size_t>(size)};
    opened.payload.assign(bytes.begin(), bytes.end());
    return opened;
  }

 private:
  void check(int code) const {
    if (code == kSuccess) return;
    const char* last = context_ ? library_.text_of_last(context_.get()) : nullptr;
    const std::string text = last != nullptr ? last : library_.text_of(code);
    if (code < kFirstCredentialError && code != kBadArgument)
      fail(ErrorCode::unavailable,
           code == kSocketError || code == kTimeout ? fmt::format("munged does not answer: {}", text) : text,
           name_of(code), "start munged (systemctl status munge)");
    fail(ErrorCode::conflict, fmt::format("munge does not accept it: {}{}", library_.text_of(code), times(code)),
         name_of(code), hint(code));
  }

  /// Of a credential that is valid but for its time.
  std::string times(int code) const {
    if (code != kExpired && code != kRewound) return {};
    std::time_t encoded = 0;
    std::time_t decoded = 0;
    if (library_.get(context_.get(), kOptionEncodeTime, &encoded) != kSuccess ||
        library_.get(context_.get(), kOptionDecodeTime, &decoded) != kSuccess)
      return {};
    return fmt::format(" (made at {:%H:%M:%S}, and here it is {:%H:%M:%S} UTC)", fmt::gmtime(encoded),
                       fmt::gmtime(decoded));
  }

  static std::string hint(int code) {
    if (code == kExpired || code == kRewound)
      return "the clocks of the two hosts must not be more than 5 minutes apart (timedatectl, chronyc tracking)";
    if (code == kInvalid) return "both hosts need the same munge.key";
    if (code == kUnauthorized) return "both ddpruns must be the same user's";
    return {};
  }

  const Library& library_ = Library::get_one();
  std::unique_ptr<void, DestroyContext> context_;
};

}  // namespace

Munge::Munge(std::string socket) : socket_(std::move(socket)), user_(0) {
  user_ = Call{socket_}.open(Call{socket_}.seal({}, nullptr)).user;
}

Bytes Munge::seal(std::span<const std::byte> payload) const { return Call{socket_}.seal(payload, &user_); }

Munge::Opened Munge::open(std::span<const std::byte> credential) const { return Call{socket_}.open(credential); }

void MungeProver::check(std::span<const std::byte> proof, const stream::Statement& statement) {
  const Munge::Opened opened = munge_.open(proof);
  std::string cause;
  if (opened.user != munge_.user()) {
    cause = fmt::format("it is a process of user {}, not of user {}", opened.user, munge_.user());
  } else if (!std::ranges::equal(opened.payload, statement)) {
    cause = "its munge credential was made for something else";
  }
  if (cause.empty()) return;
  throw Error{{.code = ErrorCode::conflict,
               .attempted = "checking who is at the other end",
               .cause = std::move(cause),
               .hint = hint()}};
}

}  // namespace ddp::launcher::control
