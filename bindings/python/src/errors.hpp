// libddp's errors as Python exceptions, and durations of Python.
#pragma once

#include <chrono>
#include <optional>

#include <ddp/deadline.hpp>
#include <ddp/error.hpp>

#include <nanobind/nanobind.h>

namespace ddp::python {

/// Makes every ddp::Error that leaves a function of the module an exception of libddp._errors.
void translate_errors();

/// The exception object of an error.
nanobind::object exception_of(const Error& error);

/// An error that libddp has raised, from its exception object; nothing for another object.
std::optional<Error> error_of(nanobind::handle exception);

/// None, seconds as a number, or a datetime.timedelta. Throws Error(invalid_argument) for what is none of them.
std::optional<std::chrono::milliseconds> duration_of(nanobind::handle timeout);
std::optional<Deadline> deadline_of(nanobind::handle timeout);

}  // namespace ddp::python
