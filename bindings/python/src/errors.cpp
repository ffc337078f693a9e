#include "errors.hpp"

#include <cmath>
#include <string>

#include "interpreter.hpp"

namespace ddp::python {
namespace {

namespace nb = nanobind;

/// Ten years: beyond, nobody waits, and clocks overflow.
constexpr double kLongestSeconds = 10.0 * 365 * 24 * 3600;

void translate(const std::exception_ptr& problem, void*) {
  try {
    std::rethrow_exception(problem);
  } catch (const Error& error) {
    try {
      const nb::object exception = exception_of(error);
      PyErr_SetObject(exception.type().ptr(), exception.ptr());
    } catch (nb::python_error& instead) {  // a signal's handler runs in Python code, too
      instead.restore();
    }
  }
}

}  // namespace

void translate_errors() { nb::register_exception_translator(translate, nullptr); }

nb::object exception_of(const Error& error) {
  nb::list ranks;
  for (const int rank : error.ranks()) ranks.append(rank);
  const auto text = [](const std::string& words) { return nb::str(words.data(), words.size()); };
  return call_python(nb::module_::import_("libddp._errors").attr("make"),
                     nb::make_tuple(std::string(to_string(error.code())).c_str(), error.what(), text(error.attempted()),
                                    text(error.cause()), text(error.native()), nb::tuple(ranks), text(error.hint())));
}

std::optional<Error> error_of(nb::handle exception) {
  const bool ours = nb::isinstance(exception, nb::module_::import_("libddp._errors").attr("Error"));
  if (!ours || !nb::hasattr(exception, "code")) return std::nullopt;  // a program may make one by itself
  const auto text = [&](const char* name) { return nb::cast<std::string>(exception.attr(name)); };
  ErrorDetail detail{.code = ErrorCode::aborted,
                     .attempted = text("attempted"),
                     .cause = text("cause"),
                     .native = text("native"),
                     .hint = text("hint")};
  for (const nb::handle rank : exception.attr("ranks")) detail.ranks.push_back(nb::cast<int>(rank));
  for (int code = 0; code < static_cast<int>(ErrorCode::aborted); ++code) {
    if (text("code") == to_string(static_cast<ErrorCode>(code))) detail.code = static_cast<ErrorCode>(code);
  }
  return Error{std::move(detail)};
}

std::optional<std::chrono::milliseconds> duration_of(nb::handle timeout) {
  if (timeout.is_none()) return std::nullopt;
  double seconds = NAN;
  if (nb::hasattr(timeout, "total_seconds")) {
    seconds = nb::cast<double>(timeout.attr("total_seconds")());
  } else if (!nb::try_cast(timeout, seconds)) {
    seconds = NAN;
  }
  if (std::isnan(seconds) || seconds < 0) {
    const nb::str shown = nb::repr(timeout);
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = "using the argument timeout",
                 .cause = std::string(shown.c_str()) + " is not a duration",
                 .hint = "give seconds, a datetime.timedelta, or None for the default"}};
  }
  return std::chrono::ceil<std::chrono::milliseconds>(
      std::chrono::duration<double>(std::min(seconds, kLongestSeconds)));
}

std::optional<Deadline> deadline_of(nb::handle timeout) {
  const auto duration = duration_of(timeout);
  return duration ? std::optional(Deadline::after(*duration)) : std::nullopt;
}

}  // namespace ddp::python
