// SPDX-License-Identifier: Apache-2.0
// What the Python modules of the programs share: paths, errors, progress, counters, engines. Included by one source of each module.
#pragma once
#include <nanobind/nanobind.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>

#include "gpufs/mount.hpp"
#include "gpufs/simt/platform.hpp"
#include "gpufs/simt/schedule.hpp"
#include "src/python/unlocked.hpp"

namespace gpufs::apps {

namespace nb = nanobind;

// A path as the file system has it: str with escaped bytes, bytes, or an object with __fspath__.
inline std::string to_path(const nb::object& path) {
  PyObject* encoded = nullptr;
  if (PyUnicode_FSConverter(path.ptr(), &encoded) == 0) throw nb::python_error();
  const nb::bytes bytes = nb::steal<nb::bytes>(encoded);
  return {bytes.c_str(), bytes.size()};
}

using python::locked, python::or_stay, python::unlocked;

// GpufsError; the message may hold the bytes of a file's name.
inline void raise(const char* message) {
  const nb::object text = nb::steal(PyUnicode_DecodeFSDefault(message));
  PyErr_SetObject(nb::module_::import_("gpufs.errors").attr("GpufsError").ptr(), text.ptr());
}

// C++ exceptions become GpufsError. (For all modules, whichever asks for it; so std::out_of_range, of rows, stays an IndexError.)
inline void translate_errors() {
  // Of threads that still run when the interpreter ends, which no binding's reference count is to blame for.
  nb::set_leak_warnings(false);
  nb::register_exception_translator(
      [](const std::exception_ptr& p, void*) {
        try {
          std::rethrow_exception(p);
        } catch (const gpufs::error& e) {
          raise(e.what());
        } catch (const gpufs::simt::launch_error& e) {
          raise(e.what());
        } catch (const std::system_error& e) {
          raise(e.what());
        }
      },
      nullptr);
}

// What make() gives. That there is no such device is a gpufs::error.
template <class Make>
auto of_a_device(const Make& make) {
  try {
    return make();
  } catch (const std::out_of_range& error) {
    throw gpufs::error(error.what(), ENODEV);
  }
}

// Calls a Python function with what has been done of a total at most every 50 ms, and lets Python's signal handlers run, so that
// Control-C ends long work. Only the thread that is unlocked for the work may call it. Before: arguments that come first.
template <class... Before>
std::function<void(Before..., std::uint64_t, std::uint64_t)> to_progress(const nb::object& function) {
  auto last = std::make_shared<std::chrono::steady_clock::time_point>();
  // A borrowed handle: `function` is an argument of the call that runs meanwhile.
  return [handle = nb::handle(function), last](Before... before, std::uint64_t done, std::uint64_t total) {
    const auto now = std::chrono::steady_clock::now();
    if (done < total && now - *last < std::chrono::milliseconds(50)) return;
    *last = now;
    const locked here;
    if (or_stay(PyErr_CheckSignals) != 0) throw nb::python_error();
    if (handle.is_none()) return;
    const nb::tuple arguments = nb::make_tuple(before..., done, total);
    const nb::object answer = nb::steal(or_stay([&] { return PyObject_CallObject(handle.ptr(), arguments.ptr()); }));
    if (!answer.is_valid()) throw nb::python_error();
  };
}

// Of the counters, those that tell how the page cache did.
inline nb::dict counters_of(const gpufs::mount_counters& c) {
  nb::dict d;
  d["hits"] = c.hits;
  d["faults"] = c.faults;
  d["waits"] = c.waits;
  d["evictions"] = c.evictions;
  d["bytes_filled"] = c.bytes_filled;
  d["bytes_read"] = c.bytes_read;
  d["opens"] = c.opens;
  d["errors"] = c.errors;
  d["pinned_frames"] = c.pinned_frames;
  d["host_reads"] = c.host_reads;
  d["host_batches"] = c.host_batches;
  return d;
}

// Why there is no engine of this name here; empty when there is.
inline std::string why_not(const std::string& engine) {
  if (engine == "cpu") return {};
  if (engine == "simt") {
#if GPUFS_HAVE_CPU_MACHINE
    return {};
#else
    return "this build of gpufs has no CPU machine (it was built without Boost.Context)";
#endif
  }
  if (engine == "gpu") {
#if GPUFS_WITH_CUDA
    return gpufs::simt::cuda_platform() != nullptr ? std::string() : gpufs::simt::cuda_unavailable_reason();
#else
    return "this build of gpufs has no CUDA machine (it was built without nvcc)";
#endif
  }
  return "there is no engine '" + engine + "'; there are cpu, simt and gpu";
}

// Throws gpufs::error: there is none.
inline void check_engine(const std::string& name) {
  if (const std::string why = why_not(name); !why.empty()) throw gpufs::error("engine " + name + ": " + why);
}

}  // namespace gpufs::apps
