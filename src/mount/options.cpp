// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <system_error>
#include <utility>

#include "../cache/make_layout.hpp"
#include "gpufs/store/auto_store.hpp"
#include "gpufs/store/posix_store.hpp"

namespace gpufs {
namespace {

constexpr std::uint32_t min_page_nbytes = least_page_nbytes, max_page_nbytes = 2u << 20;
constexpr std::uint64_t staging_budget_nbytes = 256u << 20;

// Whether the value is one of the enumerators from 0 to `last`.
template <class Enumerator>
bool is_one_of(Enumerator value, Enumerator last) {
  return static_cast<unsigned>(value) <= static_cast<unsigned>(last);
}

}  // namespace

void refuse(const std::string& what, int number) { throw error("gpufs::mount: " + what, number); }

std::uint32_t frames_of(const mount_options& options) {
  const std::uint64_t n = options.cache_nbytes / options.page_nbytes;
  if (n < 1) refuse("cache_nbytes is smaller than one page");
  if (n > (1u << 28)) refuse("cache_nbytes / page_nbytes is over 2^28 frames; use larger pages");
  return static_cast<std::uint32_t>(n);
}

namespace {

// The cache's size in memory of the caller's, where none is asked for; whether it has room there.
void fit_cache(mount_options& o, const simt::platform& machine) {
  const std::uint64_t nbytes = o.cache_memory.size();
  if (!machine.may_be_memory(o.cache_memory.data(), nbytes)) {
    refuse("cache_memory is no memory of device " + std::to_string(machine.index()), EFAULT);
  }
  const std::uint32_t nframes = cache::frames_within(nbytes, o.page_nbytes);
  if (nframes == 0) refuse("cache_memory has " + std::to_string(nbytes) + " bytes, too few for a page");
  if (o.cache_nbytes == 0) o.cache_nbytes = std::uint64_t{nframes} * o.page_nbytes;
  const std::uint64_t wanted = cache::frames_nbytes(frames_of(o), o.page_nbytes);
  if (wanted > nbytes) {
    refuse("cache_memory has " + std::to_string(nbytes) + " bytes; with cache_nbytes " + std::to_string(o.cache_nbytes) +
           " it needs " + std::to_string(wanted));
  }
}

}  // namespace

mount_options filled_in(mount_options o, const simt::platform& machine) {
  o.device = machine.index();
  if (!std::has_single_bit(o.page_nbytes) || o.page_nbytes < min_page_nbytes || o.page_nbytes > max_page_nbytes) {
    refuse("page_nbytes is " + std::to_string(o.page_nbytes) + "; it must be a power of two from 512 to 2 MiB");
  }
  if (o.cache_memory.data() != nullptr || !o.cache_memory.empty()) {
    fit_cache(o, machine);
  } else if (o.cache_nbytes == 0) {
    o.cache_nbytes = machine.is_cuda() ? std::min<std::uint64_t>(machine.free_nbytes() / 4, 16ull << 30) : 64u << 20;
  }
  if (o.max_open_files == 0 || o.max_open_files > (1u << slot_bits)) {
    refuse("max_open_files is " + std::to_string(o.max_open_files) + "; it must be from 1 to 2^20");
  }
  if (o.max_mappings == 0 || o.max_mappings > (1u << 24)) refuse("max_mappings must be from 1 to 2^24");
  o.max_mappings = std::bit_ceil(o.max_mappings);
  if (o.pin_nbytes == 0) o.pin_nbytes = store::default_pin_nbytes();
  const std::uint32_t nframes = frames_of(o);
  if (o.dirty_nbytes == 0) o.dirty_nbytes = o.cache_nbytes / 4;
  o.dirty_nbytes = std::min(o.dirty_nbytes, o.cache_nbytes / 2);
  mount_internals& inside = o.internals;
  if (inside.nrings == 0) inside.nrings = std::clamp(nframes / 64, 1u, 256u);
  inside.nrings = std::min(inside.nrings, nframes);
  // Short rings, and many: a slow request holds up its own ring only.
  const std::uint64_t payload = std::max<std::uint64_t>(o.page_nbytes, names::max_path_nbytes + 1);
  const auto fit = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(staging_budget_nbytes / payload, 128, 2048));
  std::uint32_t& slots = inside.request_slots;
  if (slots == 0) slots = 8;
  if (inside.request_rings == 0) inside.request_rings = std::max(fit / slots, 1u);
  if (!std::has_single_bit(slots) || slots < 2) refuse("request_slots must be a power of two, at least 2");
  if (std::uint64_t{inside.request_rings} * slots > 1u << 16) refuse("request_rings x request_slots must be at most 2^16");
  if (inside.request_batch == 0 || inside.request_batch > 64) refuse("request_batch must be from 1 to 64");
  if (o.nworkers > 1024) refuse("nworkers must be at most 1024");
  if (!is_one_of(o.store, store_kind::mapped)) refuse("store is none of store_kind");
  if (!is_one_of(o.on_failed_accesses, failed_accesses::abort)) refuse("on_failed_accesses is none of failed_accesses");
  if (o.io_timeout.count() <= 0 || o.frame_timeout.count() < 0 || o.end_timeout.count() <= 0) {
    refuse("io_timeout and end_timeout must be positive, and frame_timeout not negative");
  }
  return o;
}

namespace {

std::shared_ptr<store::store> store_as_asked(simt::platform& machine, const std::string& root, const mount_options& o) {
  if (o.custom_store) return o.custom_store;
  if (root.find('\0') != std::string::npos) refuse("root has a NUL inside");
  std::error_code status;
  if (!std::filesystem::is_directory(root, status)) {
    refuse("root '" + root + "' is not a directory" + (status ? ": " + status.message() : std::string()),
           status ? status.value() : ENOTDIR);
  }
  const store::posix_options how{.writable = o.writable};
  switch (o.store) {
    case store_kind::posix:
      return std::make_shared<store::posix_store>(root, how);
    case store_kind::mapped:
      return std::make_shared<store::mapped_store>(machine, root, o.pin_nbytes, how);
    case store_kind::automatic:
      break;
  }
  return std::make_shared<store::auto_store>(machine, root, o.pin_nbytes, store::auto_options{.posix = how});
}

}  // namespace

std::shared_ptr<store::store> make_store(simt::platform& machine, const std::string& root, const mount_options& o) {
  std::shared_ptr<store::store> files = store_as_asked(machine, root, o);
  return o.internals.around_store ? o.internals.around_store(std::move(files)) : files;
}

}  // namespace gpufs
