#include "tensor_argument.hpp"

#include <cstring>
#include <string>

#include <ddp/error.hpp>

#include "errors.hpp"
#include "interpreter.hpp"

namespace ddp::python {
namespace {

namespace nb = nanobind;

constexpr auto kTypes =
    "types are float32, float64, float16, bfloat16, float8_e4m3fn, float8_e5m2, int8, int32, int64, uint8, uint32, "
    "uint64, bool, complex64 and complex128";

std::string kind_of(nb::handle object) {
  const nb::str name{nb::getattr(object.type(), "__name__", nb::str("object"))};
  return name.c_str();
}

[[noreturn]] void refuse(const char* name, std::string cause, std::string hint) {
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = std::string("using the argument ") + name,
               .cause = std::move(cause),
               .hint = std::move(hint)}};
}

/// @p format of the struct module, of one element in the machine's own byte order.
std::optional<DType> dtype_of_format(const char* format, Py_ssize_t size) {
  if (format == nullptr) return DType::uint8;  // PEP 3118
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (std::strcmp(format, "Zf") == 0) return DType::complex64;
  if (std::strcmp(format, "Zd") == 0) return DType::complex128;
  if (std::strlen(format) != 1) return std::nullopt;
  const char letter = *format;
  if (letter == '?') return DType::boolean;
  if (letter == 'e') return DType::float16;
  if (letter == 'f') return DType::float32;
  if (letter == 'd') return DType::float64;
  if (letter == 'B') return DType::uint8;
  if (std::strchr("ILQ", letter) != nullptr) {
    if (size == 4) return DType::uint32;
    return size == 8 ? std::optional(DType::uint64) : std::nullopt;
  }
  if (std::strchr("bilq", letter) == nullptr) return std::nullopt;
  if (size == 1) return DType::int8;
  if (size == 4) return DType::int32;
  if (size == 8) return DType::int64;
  return std::nullopt;
}

std::optional<DType> dtype_of_code(dlpack::DataType type) {
  if (type.lanes != 1) return std::nullopt;
  const auto is = [&](dlpack::TypeCode code, int bits) { return type.code == code && type.bits == bits; };
  if (is(dlpack::kFloat, 32)) return DType::float32;
  if (is(dlpack::kFloat, 64)) return DType::float64;
  if (is(dlpack::kFloat, 16)) return DType::float16;
  if (is(dlpack::kBFloat, 16)) return DType::bfloat16;
  if (is(dlpack::kInt, 8)) return DType::int8;
  if (is(dlpack::kInt, 32)) return DType::int32;
  if (is(dlpack::kInt, 64)) return DType::int64;
  if (is(dlpack::kUInt, 8)) return DType::uint8;
  if (is(dlpack::kBool, 8)) return DType::boolean;
  if (is(dlpack::kUInt, 32)) return DType::uint32;
  if (is(dlpack::kUInt, 64)) return DType::uint64;
  if (is(dlpack::kFloat8E4M3, 8)) return DType::float8_e4m3fn;
  if (is(dlpack::kFloat8E5M2, 8)) return DType::float8_e5m2;
  if (is(dlpack::kComplex, 64)) return DType::complex64;
  if (is(dlpack::kComplex, 128)) return DType::complex128;
  return std::nullopt;
}

/// @p strides in elements.
template <class Integer>
bool is_dense(const Integer* shape, const Integer* strides, int dimensions, Integer element) {
  Integer expected = element;
  for (int dimension = 0; dimension < dimensions; ++dimension) {
    if (shape[dimension] == 0) return true;
  }
  for (int dimension = dimensions - 1; dimension >= 0; --dimension) {
    if (shape[dimension] != 1 && strides[dimension] != expected) return false;
    expected *= shape[dimension];
  }
  return true;
}

[[noreturn]] void refuse_strided(const char* name) {
  refuse(name, "its elements do not lie one after another (not C-contiguous)",
         "give a copy: numpy.ascontiguousarray(x), or x.contiguous()");
}

[[noreturn]] void refuse_read_only(const char* name) {
  refuse(name, "it is read-only, but the operation writes to it", "give a writable array, or a copy");
}

/// The exception that is set, as text; clears it.
std::string take_exception() {
  nb::python_error error;
  const nb::str text(error.value());
  return text.c_str();
}

/// Of version 1 where the producer knows it, which tells what is read-only.
nb::object call_dlpack(nb::handle object, const char* name, const nb::dict& arguments) {
  const nb::object method = nb::getattr(object, "__dlpack__");
  const nb::tuple nothing;
  nb::dict versioned;
  versioned.update(arguments);
  versioned["max_version"] = nb::make_tuple(1, 1);
  const auto call = [&](const nb::dict& named) {
    return or_stop([&] { return PyObject_Call(method.ptr(), nothing.ptr(), named.ptr()); });
  };
  PyObject* capsule = call(versioned);
  if (capsule == nullptr && PyErr_ExceptionMatches(PyExc_TypeError) != 0) {
    PyErr_Clear();
    capsule = call(arguments);
  }
  if (capsule != nullptr) return nb::steal(capsule);
  refuse(name, "its __dlpack__() failed: " + take_exception(), "for tensors that require gradients give x.detach()");
}

/// That of the object's type itself: one that is derived may mean something else.
const dlpack::ExchangeApi* exchange_of(nb::handle object) {
  static PyObject* known_type = nullptr;  // the last one with such functions; with the GIL, and kept
  static const dlpack::ExchangeApi* known = nullptr;
  PyObject* const type = object.type().ptr();
  if (type == known_type) return known;
  const nb::object own = nb::getattr(object.type(), "__dict__", nb::none());
  if (own.is_none() || !nb::cast<bool>(own.attr("__contains__")("__dlpack_c_exchange_api__"))) return nullptr;
  const nb::object capsule = own["__dlpack_c_exchange_api__"];
  if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api") == 0) return nullptr;
  const auto* const api =
      static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (api->major != 1) return nullptr;
  known_type = nb::borrow(type).release().ptr();
  return known = api;
}

/// What __dlpack__() would give for memory of the CPU; null where that is to be asked, which explains what is wrong.
nb::object export_from_cpu(nb::handle object) {
  const dlpack::ExchangeApi* const api = exchange_of(object);
  if (api == nullptr || nb::cast<bool>(nb::getattr(object, "requires_grad", nb::bool_(false)))) return {};
  dlpack::VersionedTensor* made = nullptr;
  if (api->export_tensor(object.ptr(), &made) != 0) {
    PyErr_Clear();
    return {};
  }
  constexpr auto kName = "dltensor_versioned";
  const auto destroy = [](dlpack::VersionedTensor* tensor) {
    if (tensor->deleter != nullptr) tensor->deleter(tensor);
  };
  const auto destroy_capsule = [](PyObject* old) {
    auto* const tensor = static_cast<dlpack::VersionedTensor*>(PyCapsule_GetPointer(old, kName));
    if (tensor != nullptr && tensor->deleter != nullptr) tensor->deleter(tensor);
  };
  // PyTorch marks what is to be conjugated outside of the memory, which its __dlpack__() refuses.
  const bool plain = made->tensor.device.type == dlpack::kCpu && made->tensor.dtype.code != dlpack::kComplex;
  PyObject* const capsule = plain ? PyCapsule_New(made, kName, destroy_capsule) : nullptr;
  if (capsule == nullptr) {
    PyErr_Clear();
    destroy(made);
    return {};
  }
  return nb::steal(capsule);
}

}  // namespace

TensorView TensorArguments::add(nb::handle object, const char* name, Access access, bool optional) {
  if (optional && object.is_none()) return {};
  auto held = std::make_unique<HeldObject>();
  TensorView view;
  if (PyObject_CheckBuffer(object.ptr()) != 0) {
    view = add_buffer(object, name, access, *held);
  } else if (exchange_of(object) != nullptr || nb::hasattr(object, "__dlpack__")) {
    view = add_dlpack(object, name, access, *held);
  } else {
    refuse(name, "a " + kind_of(object) + " is not a tensor",
           "give what has the buffer protocol or __dlpack__: a numpy array, a torch.Tensor");
  }
  held->next = held_;
  held_ = held.release();
  return view;
}

std::optional<TensorView> TensorArguments::add_plain(nb::handle tensor, bool fixed) {
  static PyObject* const storage_of = PyUnicode_InternFromString("untyped_storage");
  static PyObject* const resizable_of = PyUnicode_InternFromString("resizable");
  const dlpack::ExchangeApi* const api = exchange_of(tensor);
  dlpack::Tensor seen{};
  if (api == nullptr || api->describe == nullptr) return std::nullopt;
  const auto call = [](nb::handle object, PyObject* method) {
    PyObject* const self = object.ptr();  // PyObject_CallMethodNoArgs is not in the stable ABI
    PyObject* const made = or_stop([&] { return PyObject_VectorcallMethod(method, &self, 1, nullptr); });
    if (made == nullptr) PyErr_Clear();
    return nb::steal(made);
  };
  if (api->describe(tensor.ptr(), &seen) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  const auto dtype = dtype_of_code(seen.dtype);
  if (!dtype || seen.device.type != dlpack::kCpu) return std::nullopt;
  if (seen.strides != nullptr && !is_dense<std::int64_t>(seen.shape, seen.strides, seen.dimensions, 1)) {
    return std::nullopt;
  }
  void* const kept = storage_functions != nullptr ? storage_functions->fix(tensor.ptr()) : nullptr;
  nb::object storage = kept == nullptr ? call(tensor, storage_of) : nb::object();
  if (kept == nullptr && (!storage.is_valid() || (fixed && !call(storage, resizable_of).is(nb::handle(Py_False))))) {
    return std::nullopt;
  }
  TensorView view(static_cast<std::byte*>(seen.data) + seen.byte_offset, *dtype,
                  std::span<const std::int64_t>(seen.shape, static_cast<std::size_t>(seen.dimensions)));
  held_ = new HeldObject{.object = storage.release().ptr(), .storage = kept, .next = held_};
  return view;
}

void TensorArguments::fix(nb::handle tensor) {
  void* const kept = storage_functions != nullptr ? storage_functions->fix(tensor.ptr()) : nullptr;
  if (kept != nullptr) held_ = new HeldObject{.storage = kept, .next = held_};
}

TensorView TensorArguments::add_buffer(nb::handle object, const char* name, Access access, HeldObject& held) {
  const auto get = [&](int flags) { return PyObject_GetBuffer(object.ptr(), &held.buffer, flags) == 0; };
  if (!get(PyBUF_STRIDES | PyBUF_FORMAT)) {
    const std::string why = take_exception();
    refuse(name, "its buffer cannot be had: " + why, kTypes);
  }
  struct Undo {  // whoever throws below has not kept it
    Py_buffer& buffer;
    bool keep = false;
    ~Undo() {
      if (!keep) PyBuffer_Release(&buffer);
    }
  } undo{held.buffer};
  const Py_buffer& buffer = held.buffer;
  const auto dtype = dtype_of_format(buffer.format, buffer.itemsize);
  if (!dtype) {
    refuse(name, "elements of the format '" + std::string(buffer.format) + "' cannot be exchanged", kTypes);
  }
  if (access == Access::write && buffer.readonly != 0) refuse_read_only(name);
  if (!is_dense<Py_ssize_t>(buffer.shape, buffer.strides, buffer.ndim, buffer.itemsize)) refuse_strided(name);
  const std::vector<std::int64_t> shape(buffer.shape, buffer.shape + buffer.ndim);
  TensorView view(buffer.buf, *dtype, shape);
  undo.keep = true;
  return view;
}

TensorView TensorArguments::add_dlpack(nb::handle object, const char* name, Access access, HeldObject& held) {
  std::int32_t device_type = dlpack::kCpu;
  nb::object capsule = export_from_cpu(object);
  if (!capsule.is_valid() && nb::hasattr(object, "__dlpack_device__")) {
    const nb::object device = call_python(object.attr("__dlpack_device__"), nb::tuple());
    device_type = nb::cast<std::int32_t>(nb::int_(device[0]));
  }
  const bool on_cuda = device_type == dlpack::kCuda || device_type == dlpack::kCudaManaged;
  if (!on_cuda && device_type != dlpack::kCpu && device_type != dlpack::kCudaHost) {
    refuse(name, "it is on a device of DLPack's type " + std::to_string(device_type),
           "CPUs and CUDA devices can exchange tensors");
  }
  // The producer makes its work visible to the default stream (1), or leaves that to the caller's own stream (-1).
  if (!capsule.is_valid()) {
    nb::dict arguments;
    if (on_cuda) arguments["stream"] = nb::int_(stream_ ? -1 : 1);
    capsule = call_dlpack(object, name, arguments);
  }

  const dlpack::Tensor* tensor = nullptr;
  bool read_only = false;
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") != 0) {
    const auto* versioned =
        static_cast<const dlpack::VersionedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (versioned->major != 1) {
      refuse(name, "it speaks DLPack " + std::to_string(versioned->major) + ", libddp speaks 1", "");
    }
    tensor = &versioned->tensor;
    read_only = (versioned->flags & dlpack::kReadOnly) != 0;
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor") != 0) {
    tensor = &static_cast<const dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))->tensor;
  } else {
    refuse(name, "its __dlpack__() gave no capsule of a tensor", "");
  }
  const auto dtype = dtype_of_code(tensor->dtype);
  if (!dtype) {
    refuse(name,
           "elements of DLPack's type code " + std::to_string(tensor->dtype.code) + " with " +
               std::to_string(tensor->dtype.bits) + " bits cannot be exchanged",
           kTypes);
  }
  if (access == Access::write && read_only) refuse_read_only(name);
  if (tensor->strides != nullptr && !is_dense<std::int64_t>(tensor->shape, tensor->strides, tensor->dimensions, 1)) {
    refuse_strided(name);
  }
  const ddp::Device device =
      on_cuda ? ddp::Device{.type = DeviceType::cuda, .index = tensor->device.index} : ddp::Device{};
  if (on_cuda && !device_) device_ = device;
  const std::span<const std::int64_t> shape(tensor->shape, static_cast<std::size_t>(tensor->dimensions));
  TensorView view(static_cast<std::byte*>(tensor->data) + tensor->byte_offset, *dtype, shape, device);
  // Not consumed, so that the capsule's own destructor ends it.
  held.object = nb::object(capsule).release().ptr();
  return view;
}

std::optional<Stream> TensorArguments::stream() const {
  if (!device_ || !stream_) return std::nullopt;
  // an integer by the array protocols' convention
  return Stream{.device = *device_, .handle = reinterpret_cast<void*>(*stream_)};  // NOLINT
}

std::vector<NamedTensor> named_tensors(nb::handle mapping, TensorArguments& tensors, Access access) {
  if (!nb::hasattr(mapping, "items")) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = "using the argument tensors",
                 .cause = "it is not a mapping from names to tensors",
                 .hint = "give a dict, such as model.state_dict()"}};
  }
  std::vector<NamedTensor> named;
  const nb::object items = call_python(nb::getattr(mapping, "items"), nb::tuple());
  for (const nb::handle item : nb::borrow<nb::iterable>(items)) {
    auto name = nb::cast<std::string>(nb::str(nb::handle(item[0])));
    const std::string called = "tensors['" + name + "']";
    TensorView view = tensors.add(nb::object(item[1]), called.c_str(), access);
    named.push_back({.name = std::move(name), .tensor = std::move(view)});
  }
  return named;
}

std::string path_of(nb::handle object) {
  const nb::object path = call_python(nb::module_::import_("os").attr("fsencode"), nb::make_tuple(object));
  const auto bytes = nb::borrow<nb::bytes>(path);
  return {bytes.c_str(), bytes.size()};
}

}  // namespace ddp::python
