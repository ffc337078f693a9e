// An example backend that uses only libddp's public headers: ranks send each other files. Each rank has a folder where
// the others put messages, complete as soon as they have their names. Every rank sends its input to all others and
// computes the result itself: simple, and the same bits everywhere. For a few ranks that share a file system; it does
// not notice the death of a rank.
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <type_traits>

#include <ddp/backend.hpp>
#include <ddp/error.hpp>

namespace {

using ddp::Bytes;
using ddp::DType;
using ddp::Operation;
using ddp::OperationKind;
using ddp::Outcome;
using ddp::ReduceOp;
using Inputs = std::vector<Bytes>;  // by rank

/// Narrow types are combined as float, and rounded once.
template <class T>
auto widen(T value) {
  if constexpr (std::is_class_v<T>) {
    return ddp::to_float(value);
  } else {
    return value;
  }
}
template <class T, class Wide>
T narrow(Wide value) {
  if constexpr (std::is_same_v<T, ddp::Half>) {
    return ddp::to_half(value);
  } else if constexpr (std::is_same_v<T, ddp::BFloat16>) {
    return ddp::to_bfloat16(value);
  } else if constexpr (std::is_same_v<T, ddp::Float8E4M3>) {
    return ddp::to_float8_e4m3(value);
  } else if constexpr (std::is_same_v<T, ddp::Float8E5M2>) {
    return ddp::to_float8_e5m2(value);
  } else {
    return static_cast<T>(value);
  }
}

template <class Wide>
Wide combine(ReduceOp op, Wide a, Wide b) {
  switch (op) {
    case ReduceOp::min: return std::min(a, b);
    case ReduceOp::max: return std::max(a, b);
    default: break;
  }
  const bool product = op == ReduceOp::product;
  if constexpr (std::is_same_v<Wide, bool>) {
    return product ? a && b : a || b;
  } else if constexpr (std::is_integral_v<Wide>) {  // sums wrap
    const auto left = static_cast<std::uint64_t>(a);
    const auto right = static_cast<std::uint64_t>(b);
    return static_cast<Wide>(product ? left * right : left + right);
  } else {
    return product ? a * b : a + b;
  }
}

/// Elements [first, first + count) of all inputs, in rank order.
template <class T>
void reduce_as(const Operation& operation, const Inputs& inputs, std::size_t first, std::size_t count, Bytes& result) {
  result.resize(count * sizeof(T));
  for (std::size_t i = 0; i < count; ++i) {
    const auto element = [&](const Bytes& input) {
      T value;
      std::memcpy(&value, input.data() + (first + i) * sizeof(T), sizeof(T));
      return widen(value);
    };
    auto value = element(inputs.front());
    for (std::size_t rank = 1; rank < inputs.size(); ++rank) {
      value = combine(operation.reduce_op, value, element(inputs[rank]));
    }
    if constexpr (!std::is_same_v<T, bool>) {
      if (operation.reduce_op == ReduceOp::avg) {
        value = static_cast<decltype(value)>(value / static_cast<decltype(value)>(inputs.size()));
      }
    }
    if constexpr (std::is_floating_point_v<decltype(value)>) {
      value = static_cast<decltype(value)>(value * operation.prescale);
    }
    const T final = narrow<T>(value);
    std::memcpy(result.data() + i * sizeof(T), &final, sizeof(T));
  }
}

Bytes reduced(const Operation& operation, const Inputs& inputs, std::size_t first) {
  Bytes result;
  const DType component = ddp::component_of(operation.dtype);  // complex numbers are two of them
  const std::size_t parts = ddp::size_of(operation.dtype) / ddp::size_of(component);
  const auto as = [&](auto sample) {
    reduce_as<decltype(sample)>(operation, inputs, first * parts, operation.count * parts, result);
  };
  switch (component) {
    case DType::float32: as(float{}); break;
    case DType::float64: as(double{}); break;
    case DType::float16: as(ddp::Half{}); break;
    case DType::bfloat16: as(ddp::BFloat16{}); break;
    case DType::int8: as(std::int8_t{}); break;
    case DType::int32: as(std::int32_t{}); break;
    case DType::int64: as(std::int64_t{}); break;
    case DType::uint8: as(std::uint8_t{}); break;
    case DType::uint32: as(std::uint32_t{}); break;
    case DType::uint64: as(std::uint64_t{}); break;
    case DType::float8_e4m3fn: as(ddp::Float8E4M3{}); break;
    case DType::float8_e5m2: as(ddp::Float8E5M2{}); break;
    default: as(bool{}); break;
  }
  return result;
}

Bytes part_of(const Bytes& whole, std::size_t part, std::size_t part_bytes) {
  const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(part * part_bytes);
  return {begin, begin + static_cast<std::ptrdiff_t>(part_bytes)};
}

/// This rank's result; empty if it gets none.
Bytes result_of(const Operation& operation, const Inputs& inputs, std::size_t rank) {
  const auto root = static_cast<std::size_t>(operation.root);
  const std::size_t part_bytes = operation.count * size_of(operation.dtype);
  Bytes result;
  const auto append = [&](const Bytes& more) { result.insert(result.end(), more.begin(), more.end()); };
  switch (operation.kind) {
    case OperationKind::all_reduce: return reduced(operation, inputs, 0);
    case OperationKind::reduce: return rank == root ? reduced(operation, inputs, 0) : Bytes{};
    case OperationKind::reduce_scatter: return reduced(operation, inputs, rank * operation.count);
    case OperationKind::broadcast: return inputs[root];
    case OperationKind::scatter: return part_of(inputs[root], rank, part_bytes);
    case OperationKind::gather:
      if (rank != root) return {};
      [[fallthrough]];
    case OperationKind::all_gather:
    case OperationKind::all_gather_v:
      for (const Bytes& input : inputs) append(input);
      return result;
    case OperationKind::all_to_all:  // count is the whole's
      for (const Bytes& input : inputs) append(part_of(input, rank, part_bytes / inputs.size()));
      return result;
    default: return {};
  }
}

class FileBackend final : public ddp::Backend {
 public:
  explicit FileBackend(const ddp::BackendConfig& config)
      : rank_(static_cast<std::size_t>(config.rank)), size_(static_cast<std::size_t>(config.size)) {
    std::string name = (std::filesystem::temp_directory_path() / "ddp-example-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw ddp::Error{{.code = ddp::ErrorCode::system,
                        .attempted = "making the folder " + name,
                        .cause = std::strerror(errno),
                        .hint = "check TMPDIR"}};
    }
    own_ = name;
  }
  ~FileBackend() override { close(ddp::Deadline::after(std::chrono::seconds(0))); }

  const ddp::BackendTraits& traits() const noexcept override {
    static const ddp::BackendTraits traits{.serves_cpu = true,
                                           .serves_cuda = false,
                                           .completes_inline = true,
                                           .needs_progress = true,
                                           .stream_ordered = false,
                                           .detects_peer_death = false,
                                           .concurrent_collectives = 8};
    return traits;
  }
  Bytes address() const override {
    const std::string name = own_.string();
    const auto* bytes = reinterpret_cast<const std::byte*>(name.data());
    return {bytes, bytes + name.size()};
  }
  void connect(const std::vector<Bytes>& addresses, ddp::Deadline /*immediate*/) override {
    for (const Bytes& address : addresses) {
      folders_.emplace_back(std::string(reinterpret_cast<const char*>(address.data()), address.size()));
    }
  }
  ddp::Request& init(std::span<const Operation> operations, ddp::Deadline deadline) override {
    if (unused_.empty()) unused_.push_back(&requests_.emplace_back(*this));
    FileRequest& request = *unused_.back();
    unused_.pop_back();
    request.start(operations, deadline);
    return request;
  }
  void abort() noexcept override { aborted_ = true; }
  void close(ddp::Deadline /*immediate*/) noexcept override {
    std::error_code ignored;
    std::filesystem::remove_all(own_, ignored);
  }

 private:
  class FileRequest final : public ddp::Request {
   public:
    explicit FileRequest(FileBackend& backend) : backend_(backend) {}
    void start(std::span<const Operation> operations, ddp::Deadline deadline) {
      operations_ = operations;
      deadline_ = deadline;
      failure_ = {};
    }
    void post() noexcept override {
      names_.clear();
      inputs_.assign(operations_.size(), {});
      try {
        for (const Operation& operation : operations_) names_.push_back(backend_.send(operation));
        outcome_ = Outcome::running;
      } catch (const std::exception& problem) {
        fail(Outcome::peers_failed, {}, problem.what());
      }
    }
    Outcome poll() noexcept override {
      if (outcome_ != Outcome::running) return outcome_;
      if (backend_.aborted_) return outcome_ = Outcome::aborted;
      try {
        bool all = true;
        for (std::size_t i = 0; i < operations_.size(); ++i) all = receive(i) && all;
        if (outcome_ == Outcome::running && all) outcome_ = Outcome::ok;
        if (outcome_ == Outcome::running && deadline_.expired()) fail(Outcome::timeout, {}, "its deadline has passed");
      } catch (const std::exception& problem) {
        fail(Outcome::peers_failed, {}, problem.what());
      }
      return outcome_;
    }
    ddp::Failure failure() const override { return failure_; }
    void release() noexcept override { backend_.unused_.push_back(this); }

   private:
    void fail(Outcome outcome, std::vector<int> ranks, std::string cause) {
      outcome_ = outcome;
      failure_ = {.ranks = std::move(ranks), .cause = std::move(cause)};
    }
    /// Whether operation @p i is complete; then its result is in place.
    bool receive(std::size_t i) {
      const Operation& operation = operations_[i];
      auto& inputs = inputs_[i];
      if (operation.kind == OperationKind::send) return true;
      const bool first = inputs.empty();
      inputs.resize(backend_.size_);
      if (first && !operation.is_transfer()) inputs[backend_.rank_] = backend_.own_input(operation);
      bool all = true;
      for (std::size_t rank = 0; rank < backend_.size_; ++rank) {
        if (operation.is_transfer() ? rank != static_cast<std::size_t>(operation.root) : rank == backend_.rank_)
          continue;
        if (inputs[rank]) continue;
        inputs[rank] = backend_.take(names_[i] + std::to_string(rank), operation.fingerprint(), different_);
        if (different_) fail(Outcome::mismatch, {static_cast<int>(rank)}, "this rank called something else");
        all = all && inputs[rank] && !different_;
      }
      if (!all || (operation.kind == OperationKind::barrier)) return all;
      Bytes result;
      if (operation.is_transfer()) {
        result = *inputs[static_cast<std::size_t>(operation.root)];
      } else if (operation.count > 0 || operation.kind == OperationKind::all_gather_v) {
        Inputs complete;
        for (const auto& input : inputs) complete.push_back(*input);
        result = result_of(operation, complete, backend_.rank_);
      }
      if (!result.empty()) std::memcpy(operation.output.data(), result.data(), result.size());
      return true;
    }

    FileBackend& backend_;
    std::span<const Operation> operations_;
    ddp::Deadline deadline_{ddp::Deadline::Clock::time_point{}};
    std::vector<std::string> names_;  ///< names of the operations' messages, without the sender
    std::vector<std::vector<std::optional<Bytes>>> inputs_;
    bool different_ = false;
    Outcome outcome_ = Outcome::running;
    ddp::Failure failure_;
  };

  static Bytes own_input(const Operation& operation) {
    Bytes bytes(operation.input.size_bytes());
    if (!bytes.empty()) std::memcpy(bytes.data(), operation.input.data(), bytes.size());
    return bytes;
  }

  /// Sends this rank's input to all that need it. @return the messages' name, without the sender.
  std::string send(const Operation& operation) {
    if (!operation.is_transfer()) {
      const std::string name = "collective-" + std::to_string(operation.sequence) + "-";
      for (std::size_t rank = 0; rank < size_; ++rank) {
        if (rank != rank_) put(folders_[rank], name + std::to_string(rank_), operation);
      }
      return name;
    }
    // transfers between two ranks with the same tag match in the order of their calls
    const bool sends = operation.kind == OperationKind::send;
    const std::string tag = "transfer-" + std::to_string(operation.tag) + "-";
    const std::string peer = std::to_string(operation.root);
    const std::string name = tag + std::to_string(transfers_[(sends ? "to-" : "from-") + tag + peer]++) + "-";
    if (sends) put(folders_[static_cast<std::size_t>(operation.root)], name + std::to_string(rank_), operation);
    return name;
  }
  static void put(const std::filesystem::path& folder, const std::string& name, const Operation& operation) {
    const Bytes input = own_input(operation);
    const std::uint64_t fingerprint = operation.fingerprint();
    std::ofstream file(folder / (name + ".part"), std::ios::binary);
    file.write(reinterpret_cast<const char*>(&fingerprint), sizeof fingerprint);
    file.write(reinterpret_cast<const char*>(input.data()), static_cast<std::streamsize>(input.size()));
    file.close();
    if (!file) throw std::runtime_error("cannot write " + (folder / name).string());
    std::filesystem::rename(folder / (name + ".part"), folder / name);
  }
  /// A message, if it has arrived.
  std::optional<Bytes> take(const std::string& name, std::uint64_t wanted, bool& different) const {
    std::ifstream file(own_ / name, std::ios::binary);
    std::uint64_t fingerprint = 0;
    if (!file.read(reinterpret_cast<char*>(&fingerprint), sizeof fingerprint)) return std::nullopt;
    different = fingerprint != wanted;
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    std::filesystem::remove(own_ / name);
    const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
    return Bytes{bytes, bytes + text.size()};
  }

  const std::size_t rank_;
  const std::size_t size_;
  std::filesystem::path own_;
  std::vector<std::filesystem::path> folders_;
  std::map<std::string, unsigned> transfers_;
  std::atomic<bool> aborted_{false};
  std::deque<FileRequest> requests_;
  std::vector<FileRequest*> unused_;
};

std::unique_ptr<ddp::Backend> create(const ddp::BackendConfig& config) { return std::make_unique<FileBackend>(config); }

}  // namespace

extern "C" const ddp::BackendPlugin ddp_backend_plugin;
const ddp::BackendPlugin ddp_backend_plugin{.version = ddp::kBackendVersion, .name = "example", .create = &create};
