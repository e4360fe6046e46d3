// SPDX-License-Identifier: Apache-2.0
// The calls of gpufs/gpufs.h: exceptions become errnos and a text.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <exception>
#include <iterator>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>

#include "gpufs/gpufs.h"
#include "gpufs/mount.hpp"
#include "gpufs/mount/detail/inside.hpp"
#include "gpufs/simt/launch.hpp"
#include "handles.hpp"

struct gpufs_host_mount {
  gpufs::host_mount mount;
  bool is_cuda;
};

namespace {

using gpufs::mount_counters;
using gpufs::mount_options;

thread_local std::string last_error;

int fail(int error, std::string_view what) {
  last_error = what;
  return -error;
}

// Returns call()'s result, or the negated errno of the exception that it throws.
template <class Call>
auto guarded(Call call) noexcept -> decltype(call()) {
  try {
    return call();
  } catch (const gpufs::error& error) {
    return fail(error.number(), error.what());
  } catch (const gpufs::simt::launch_error& error) {
    return fail(ECANCELED, error.what());
  } catch (const std::system_error& error) {
    return fail(error.code().value(), error.what());
  } catch (const std::bad_alloc& error) {
    return fail(ENOMEM, error.what());
  } catch (const std::exception& error) {
    return fail(EIO, error.what());
  } catch (...) {
    return fail(EIO, "an exception that is no std::exception");
  }
}

struct option {
  std::string_view name;
  bool (*set)(mount_options& options, std::uint64_t value);  // false: the value does not fit
};
template <auto Member>
auto& member_of(mount_options& options) {
  if constexpr (std::is_invocable_v<decltype(Member), mount_options&>) {
    return options.*Member;
  } else {
    return options.internals.*Member;
  }
}
template <auto Member>
bool set_to(mount_options& options, std::uint64_t value) {
  auto& to = member_of<Member>(options);
  using type = std::remove_reference_t<decltype(to)>;
  if constexpr (std::is_same_v<type, std::chrono::nanoseconds>) {
    to = std::chrono::nanoseconds(static_cast<std::int64_t>(value));
    return to.count() >= 0;
  } else {
    to = static_cast<type>(value);
    return static_cast<std::uint64_t>(to) == value;
  }
}
template <auto Member>
constexpr option option_of(std::string_view name) {
  return {name, set_to<Member>};
}
// All options but custom_store, which is no number; cache_memory is two numbers.
constexpr option options_by_name[] = {
#define GPUFS_OPTION(name) option_of<&mount_options::name>(#name)
    GPUFS_OPTION(device),
    GPUFS_OPTION(cache_nbytes),
    GPUFS_OPTION(page_nbytes),
    option{"cache_memory",
           [](mount_options& options, std::uint64_t address) {
             options.cache_memory = {reinterpret_cast<std::byte*>(address), options.cache_memory.size()};
             return true;
           }},
    option{"cache_memory_nbytes",
           [](mount_options& options, std::uint64_t nbytes) {
             options.cache_memory = {options.cache_memory.data(), nbytes};
             return true;
           }},
    GPUFS_OPTION(store),
    GPUFS_OPTION(max_open_files),
    GPUFS_OPTION(reserved_open_files),
    GPUFS_OPTION(max_mappings),
    GPUFS_OPTION(pin_nbytes),
    GPUFS_OPTION(writable),
    GPUFS_OPTION(dirty_nbytes),
    GPUFS_OPTION(nworkers),
    GPUFS_OPTION(io_timeout),
    GPUFS_OPTION(frame_timeout),
    GPUFS_OPTION(on_failed_accesses),
    GPUFS_OPTION(end_timeout),
    GPUFS_OPTION(copy_engine),
#undef GPUFS_OPTION
#define GPUFS_OPTION(name) option_of<&gpufs::mount_internals::name>(#name)
    GPUFS_OPTION(nrings),
    GPUFS_OPTION(request_rings),
    GPUFS_OPTION(request_slots),
    GPUFS_OPTION(request_batch),
#undef GPUFS_OPTION
};

struct counter {
  std::string_view name;
  std::uint64_t (*get)(const mount_counters& counters);
};
constexpr counter counters_by_name[] = {
#define GPUFS_COUNTER(name)                                                    \
  {                                                                            \
#name, [](const mount_counters& all) -> std::uint64_t { return all.name; } \
  }
    GPUFS_COUNTER(hits),          GPUFS_COUNTER(bytes_read),
    GPUFS_COUNTER(faults),        GPUFS_COUNTER(waits),
    GPUFS_COUNTER(errors),        GPUFS_COUNTER(bytes_filled),
    GPUFS_COUNTER(opens),         GPUFS_COUNTER(bytes_written),
    GPUFS_COUNTER(allocations),   GPUFS_COUNTER(evictions),
    GPUFS_COUNTER(open_errors),   GPUFS_COUNTER(bad_file_numbers),
    GPUFS_COUNTER(io_timeouts),   GPUFS_COUNTER(unpin_errors),
    GPUFS_COUNTER(pinned_frames), GPUFS_COUNTER(free_frames),
    GPUFS_COUNTER(under_way),     GPUFS_COUNTER(pins),
    GPUFS_COUNTER(dirty_frames),  GPUFS_COUNTER(fault_errors),
    GPUFS_COUNTER(past_cache),    GPUFS_COUNTER(unwritten_pages),
    GPUFS_COUNTER(write_backs),   GPUFS_COUNTER(bytes_written_back),
    GPUFS_COUNTER(write_errors),  GPUFS_COUNTER(host_opens),
    GPUFS_COUNTER(host_closes),   GPUFS_COUNTER(host_reads),
    GPUFS_COUNTER(host_batches),  GPUFS_COUNTER(host_errors),
    GPUFS_COUNTER(host_copies),   GPUFS_COUNTER(held_copies),
#undef GPUFS_COUNTER
};

struct anything {
  template <class T>
  operator T() const;  // NOLINT(google-explicit-constructor): it stands for a member's value
};
// The number of members of an aggregate: the most values that can initialize it.
template <class Aggregate, class... Values>
constexpr std::size_t nmembers() {
  if constexpr (requires { Aggregate{Values{}..., anything{}}; }) {
    return nmembers<Aggregate, Values..., anything>();
  } else {
    return sizeof...(Values);
  }
}
// A member that is added to either struct must be named here. C does not have custom_store, internals and around_store. The size of
// cache_memory has a name of its own.
static_assert(nmembers<mount_options>() - 3 + 1 + nmembers<gpufs::mount_internals>() == std::size(options_by_name));
static_assert(sizeof(mount_counters) == std::size(counters_by_name) * sizeof(std::uint64_t));

template <class Named, std::size_t N>
const Named* find(const Named (&all)[N], std::string_view name) {
  const auto* const found = std::find_if(all, all + N, [&](const Named& one) { return one.name == name; });
  return found == all + N ? nullptr : found;
}

// Throws if there is no such device.
gpufs::simt::platform& device_of(std::int32_t machine, int device) {
  namespace runtime = gpufs::simt::runtime;
  const bool current = device == gpufs::current_device;
  if (machine == GPUFS_CPU_MACHINE) return current ? runtime::cpu_current_device() : runtime::cpu_device(device);
  if (machine != GPUFS_CUDA_MACHINE) throw std::invalid_argument("there is no such machine");
#if GPUFS_WITH_CUDA
  return current ? runtime::cuda_current_device() : runtime::cuda_device(device);
#else
  throw std::runtime_error("this build of gpufs has no CUDA machine");
#endif
}

}  // namespace

std::int32_t gpufs_abi_version(void) { return GPUFS_C_ABI_VERSION; }

const char* gpufs_last_error(void) { return last_error.c_str(); }

std::int32_t gpufs_mount_create(const char* root, std::int32_t machine, const gpufs_value* options, gpufs_host_mount** made) {
  return guarded([&]() -> int {
    if (root == nullptr || made == nullptr) return fail(EFAULT, "gpufs_mount_create: a null pointer");
    *made = nullptr;
    mount_options how;
    for (; options != nullptr && options->name != nullptr; ++options) {
      const option* const known = find(options_by_name, options->name);
      if (known == nullptr) return fail(EINVAL, std::string("gpufs_mount_create: there is no option '") + options->name + "'");
      if (!known->set(how, options->value)) {
        return fail(EINVAL, std::string("gpufs_mount_create: ") + options->name + " cannot be " + std::to_string(options->value));
      }
    }
    gpufs::simt::platform* device = nullptr;
    try {
      device = &device_of(machine, how.device);
    } catch (const std::exception& why) {
      return fail(ENODEV, std::string("gpufs_mount_create: ") + why.what());
    }
    *made = new gpufs_host_mount{gpufs::host_mount(*device, root, how), device->is_cuda()};
    return 0;
  });
}

gpufs_mount gpufs_mount_handle(const gpufs_host_mount* mount) {
  if (mount == nullptr) return 0;
  return gpufs::c_abi::handle_of(reinterpret_cast<std::uintptr_t>(gpufs::mount_inside(mount->mount).resident()), mount->is_cuda);
}

void gpufs_mount_destroy(gpufs_host_mount* mount) { delete mount; }

std::int64_t gpufs_mount_sync(gpufs_host_mount* mount) {
  return guarded([&]() -> std::int64_t {
    if (mount == nullptr) return fail(EFAULT, "gpufs_mount_sync: a null pointer");
    return static_cast<std::int64_t>(mount->mount.sync());
  });
}

std::int32_t gpufs_mount_prepare(gpufs_host_mount* mount, const char* path, std::int32_t flags) {
  return guarded([&]() -> int {
    if (mount == nullptr || path == nullptr) return fail(EFAULT, "gpufs_mount_prepare: a null pointer");
    mount->mount.prepare(path, flags);
    return 0;
  });
}

std::int32_t gpufs_mount_counters(const gpufs_host_mount* mount, gpufs_value* counters) {
  return guarded([&]() -> int {
    if (mount == nullptr || counters == nullptr) return fail(EFAULT, "gpufs_mount_counters: a null pointer");
    const mount_counters now = mount->mount.counters();
    for (; counters->name != nullptr; ++counters) {
      const counter* const known = find(counters_by_name, counters->name);
      if (known == nullptr) return fail(EINVAL, std::string("gpufs_mount_counters: there is no counter '") + counters->name + "'");
      counters->value = known->get(now);
    }
    return 0;
  });
}

std::int32_t gpufs_launch_cpu(void (*kernel)(void*), void* argument, std::uint32_t grid, std::uint32_t block) {
  struct call {
    void (*kernel)(void*);
    void* argument;
    void operator()() const { kernel(argument); }
  };
  return guarded([&]() -> int {
    if (kernel == nullptr) return fail(EFAULT, "gpufs_launch_cpu: a null pointer");
    const gpufs::simt::launch_config config{.grid = grid, .block = block};
    try {
      gpufs::simt::runtime::check_launch_config(config);
    } catch (const gpufs::simt::launch_error& refused) {
      return fail(EINVAL, refused.what());
    }
    gpufs::simt::launch(config, call{kernel, argument});
    return 0;
  });
}
