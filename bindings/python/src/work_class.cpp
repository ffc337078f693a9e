// libddp.Work: ddp::Work, whose callbacks run in Python threads only, and the queue that event loops watch.
#include <nanobind/stl/vector.h>

#include "classes.hpp"
#include "completion_queue.hpp"
#include "errors.hpp"
#include "torch_adapter/call_apart.hpp"

namespace ddp::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

nb::object events() { return nb::module_::import_("libddp._events"); }

/// Calls what was to be called at the end of an operation that has ended.
void call_back(PythonWork& work) {
  release_dropped_objects();
  if (work.callbacks.empty()) return;
  const auto numbers = std::exchange(work.callbacks, {});
  call_python(events().attr("deliver"), nb::make_tuple(numbers));
}

/// Asking may carry the operation on, which takes time.
bool has_ended(const Work& work) {
  const WithoutGil released;
  return work.done();
}

/// Whether it has ended by @p limit.
bool wait_until(const Work& work, Deadline limit) {
  const WithoutGil released;
  try {
    work.wait(limit);
  } catch (const Error& error) {
    if (work.done()) return true;  // what it failed with is asked for later
    if (error.code() != ErrorCode::timeout) throw;
    return false;
  }
  return true;
}

void wait(PythonWork& work, nb::handle timeout) {
  const auto given = deadline_of(timeout);
  const Deadline latest = given ? *given : work.latest;
  while (!wait_until(work.work, earlier(Deadline::after(ddp_adapter::kSignalLook), latest))) {
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (latest.expired() && !has_ended(work.work)) {
      work.work.wait(latest);  // says what it is that still runs
    }
  }
  call_back(work);
  if (const auto error = work.work.error()) throw *error;
}

bool done(PythonWork& work) {
  const bool ended = has_ended(work.work);
  if (ended) call_back(work);
  return ended;
}

nb::object exception(PythonWork& work) {
  if (!done(work)) return nb::none();
  const auto error = work.work.error();
  return error ? exception_of(*error) : nb::none();
}

}  // namespace

void add_work(nb::module_& module) {
  nb::class_<PythonWork>(
      module, "Work",
      "An operation of a process group, running or ended. Dropping it does not cancel the operation, which "
      "keeps its tensors alive. `await work` waits for it in an event loop.")
      .def("wait", &wait, "timeout"_a = nb::none(),
           nb::sig("def wait(self, timeout: float | datetime.timedelta | None = None) -> None"),
           "Returns when the operation has ended; raises its error. Without timeout it ends within its own limit.\n\n"
           "timeout: seconds, after which Timeout is raised while the operation continues.")
      .def("done", &done, "Whether it has ended, successfully or not. Never blocks.")
      .def("exception", &exception, nb::sig("def exception(self) -> libddp._errors.Error | None"),
           "The error of an operation that has failed; None while it runs or if it succeeded. Never blocks.")
      .def(
          "add_done_callback",
          [](nb::handle self, nb::handle function) {
            const nb::object number = call_python(events().attr("call_at_end"), nb::make_tuple(self, function));
            if (!number.is_none()) nb::cast<PythonWork&>(self).callbacks.push_back(nb::cast<std::uint64_t>(number));
          },
          "function"_a,
          nb::sig("def add_done_callback(self, function: collections.abc.Callable[[Work], object]) -> None"),
          "Calls function(work) once after the end: in the event loop that runs in this thread, if there is one; else "
          "in the thread that next calls wait(), done() or exception() of this Work, or libddp.poll(). Never in a "
          "thread of libddp.")
      .def(
          "__await__", [](nb::handle self) { return events().attr("end_of")(self).attr("__await__")(); },
          nb::sig("def __await__(self) -> collections.abc.Generator[object, None, None]"))
      .def("__repr__", [](const PythonWork& work) {
        if (!has_ended(work.work)) return "<libddp.Work running>";
        return work.work.error() ? "<libddp.Work failed>" : "<libddp.Work done>";
      });

  nb::class_<CompletionQueue>(module, "CompletionQueue", "Reports to an event loop which operations have ended.")
      .def(nb::init<>())
      .def("fileno", &CompletionQueue::fileno, "Readable while there is something to take.")
      .def(
          "watch",
          [](CompletionQueue& queue, const PythonWork& work, std::uint64_t number) { queue.watch(work.work, number); },
          "work"_a, "number"_a)
      .def("take", &CompletionQueue::take, "The numbers of operations that have ended since the last call.");
}

}  // namespace ddp::python
