// SPDX-License-Identifier: Apache-2.0
// The calls of gpufs/gpufs_device.h. g++ compiles this for the CPU machine, nvcc for CUDA as relocatable device code.
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "gpufs/file/append.hpp"
#include "gpufs/file/extents.hpp"
#include "gpufs/file/map_to_write.hpp"
#include "gpufs/file/open_all.hpp"
#include "gpufs/file/prefetch.hpp"
#include "gpufs/gpufs_device.h"
#include "gpufs/par/gather.hpp"
#include "gpufs/par/scatter.hpp"
#include "gpufs/pointer/map.hpp"
#include "gpufs/pointer/update.hpp"
#include "handles.hpp"

// C's types and constants must be equal to those of C++.
static_assert(sizeof(gpufs_mount) == 8 && sizeof(gpufs_file) == sizeof(gpufs::file_number));
static_assert(GPUFS_O_RDONLY == O_RDONLY && GPUFS_O_WRONLY == O_WRONLY && GPUFS_O_RDWR == O_RDWR && GPUFS_O_CREAT == O_CREAT);
static_assert(GPUFS_O_EXCL == O_EXCL && GPUFS_O_TRUNC == O_TRUNC && GPUFS_O_APPEND == O_APPEND);
static_assert(GPUFS_O_WRITE_ONCE == gpufs::names::open_write_once);
static_assert(GPUFS_SYNC_PAGE_CACHE == static_cast<int>(gpufs::durability::page_cache));
static_assert(GPUFS_SYNC_DATA == static_cast<int>(gpufs::durability::data));
static_assert(GPUFS_SYNC_STABLE == static_cast<int>(gpufs::durability::stable));
static_assert(GPUFS_ADVICE_NORMAL == static_cast<int>(gpufs::advice::normal));
static_assert(GPUFS_ADVICE_RANDOM == static_cast<int>(gpufs::advice::random));
static_assert(GPUFS_ADVICE_SEQUENTIAL == static_cast<int>(gpufs::advice::sequential));
static_assert(GPUFS_ADVICE_WILLNEED == static_cast<int>(gpufs::advice::willneed));
static_assert(GPUFS_ADVICE_DONTNEED == static_cast<int>(gpufs::advice::dontneed));
static_assert(GPUFS_ADVICE_NOREUSE == static_cast<int>(gpufs::advice::noreuse));
static_assert(GPUFS_ADVICE_WHOLE == static_cast<int>(gpufs::advice::whole));
#define GPUFS_SAME_SOURCE(c, cpp) GPUFS_SOURCE_##c == static_cast<int>(gpufs::source_kind::cpp)
static_assert(GPUFS_SAME_SOURCE(NIL, nil) && GPUFS_SAME_SOURCE(PULL, pull) && GPUFS_SAME_SOURCE(STAGED, staged));
static_assert(GPUFS_SAME_SOURCE(WINDOWS, windows) && GPUFS_SAME_SOURCE(MEM, mem) && gpufs::source::count == 8);
static_assert(sizeof(gpufs_status) == 40 && offsetof(gpufs_status, nbytes) == 0 && offsetof(gpufs_status, inode) == 8);
static_assert(offsetof(gpufs_status, mtime_ns) == 16 && offsetof(gpufs_status, mode) == 24 &&
              offsetof(gpufs_status, cache_id) == 28);
static_assert(offsetof(gpufs_status, source) == 32);
static_assert(sizeof(gpufs_path_status) == 32 && offsetof(gpufs_path_status, inode) == 8);
static_assert(offsetof(gpufs_path_status, mtime_ns) == 16 && offsetof(gpufs_path_status, mode) == 24);
static_assert(sizeof(gpufs_page) == 48 && offsetof(gpufs_page, data) == 0 && offsetof(gpufs_page, nbytes) == 8);
static_assert(offsetof(gpufs_page, inside) == 16 && sizeof(gpufs::page_handle<const std::byte>) <= sizeof(gpufs_page::inside));
static_assert(sizeof(gpufs_writable_page) == 48 && offsetof(gpufs_writable_page, data) == 0);
static_assert(offsetof(gpufs_writable_page, nbytes) == 8 && offsetof(gpufs_writable_page, inside) == 16);
static_assert(sizeof(gpufs::page_handle<std::byte>) <= sizeof(gpufs_writable_page::inside));
static_assert(sizeof(gpufs_pending_read) == 48 && sizeof(gpufs::pending_read) <= sizeof(gpufs_pending_read::inside));
static_assert(sizeof(gpufs_directory_entry) == sizeof(gpufs::directory_entry));
#define GPUFS_SAME_PLACE(member) offsetof(gpufs_directory_entry, member) == offsetof(gpufs::directory_entry, member)
static_assert(GPUFS_SAME_PLACE(inode) && GPUFS_SAME_PLACE(file_nbytes) && GPUFS_SAME_PLACE(mtime_ns));
static_assert(GPUFS_SAME_PLACE(mode) && GPUFS_SAME_PLACE(entry_nbytes) && GPUFS_SAME_PLACE(name_nbytes));
static_assert(sizeof(gpufs_extent) == sizeof(gpufs::extent));
static_assert(offsetof(gpufs_extent, device_offset) == offsetof(gpufs::extent, device_offset));
static_assert(offsetof(gpufs_extent, nbytes) == offsetof(gpufs::extent, nbytes));
static_assert(offsetof(gpufs_extent, flags) == offsetof(gpufs::extent, flags));
static_assert(GPUFS_EXTENT_ELSEWHERE == gpufs::extent_elsewhere && GPUFS_EXTENT_UNWRITTEN == gpufs::extent_unwritten);
static_assert(GPUFS_EXTENT_SHARED == gpufs::extent_shared);
static_assert(sizeof(gpufs_rows) == 40 && offsetof(gpufs_rows, row_nbytes) == 0 && offsetof(gpufs_rows, nrows) == 8);
static_assert(offsetof(gpufs_rows, begin) == 16 && offsetof(gpufs_rows, stride_nbytes) == 24 &&
              offsetof(gpufs_rows, from_end) == 32);

namespace gpufs::c_abi {
inline namespace GPUFS_MACHINE {

// Null if the handle is not one of this gpufs and this machine.
GPUFS_DEVICE const file_mount* mount_of(gpufs_mount fs) {
  if (fs >> address_bits != (GPUFS_ON_CUDA ? cuda_stamp : cpu_stamp)) return nullptr;
  return reinterpret_cast<const file_mount*>(fs & ((std::uint64_t{1} << address_bits) - 1));
}

// Returns then(mount_ref), or -EPROTO.
template <class Then>
GPUFS_DEVICE auto with(gpufs_mount fs, Then then) -> decltype(then(mount_ref())) {
  const file_mount* const mount = mount_of(fs);
  return mount == nullptr ? -EPROTO : then(mount_ref(mount));
}

// Returns then(file), or -EPROTO.
template <class Then>
GPUFS_DEVICE auto with(gpufs_mount fs, gpufs_file number, Then then) -> decltype(then(file())) {
  return with(fs, [&](const mount_ref& mount) { return then(file(mount, file_number{number})); });
}

// Puts a C++ object into the words of a C struct.
template <class Object, std::size_t N>
GPUFS_DEVICE void keep(std::uint64_t (&inside)[N], const Object& object) {
  static_assert(std::is_trivially_copyable_v<Object> && sizeof(Object) <= sizeof inside);
  std::memcpy(inside, &object, sizeof object);
}
template <class Object, std::size_t N>
GPUFS_DEVICE Object kept(const std::uint64_t (&inside)[N]) {
  Object object;
  std::memcpy(&object, inside, sizeof object);
  return object;
}

// Puts a mapped page, or map_page's error, into `out`.
template <class CPage, class Byte>
GPUFS_DEVICE std::int32_t give_page(CPage* out, mapped_page<Byte> mapped) {
  *out = {};
  const int error = mapped.error();
  out->data = mapped.data();
  out->nbytes = mapped.nbytes();
  keep(out->inside, mapped.release());
  return error;
}

// The C++ page of a C page; an empty one if the C page is not mapped, or no longer.
template <class Byte, class CPage>
GPUFS_DEVICE mapped_page<Byte> page_of(const CPage& mapped) {
  return mapped.data == nullptr ? mapped_page<Byte>() : mapped_page<Byte>(kept<page_handle<Byte>>(mapped.inside));
}
template <class Byte, class Group, class CPage>
GPUFS_DEVICE std::int32_t give_back(Group group, CPage* mapped) {
  if (mapped == nullptr) return -EFAULT;
  const std::int32_t error = gpufs::unmap_page(group, page_of<Byte>(*mapped));
  mapped->data = nullptr;
  return error;
}

template <class Group>
GPUFS_DEVICE std::uint32_t rank(Group group) {
  return group.rank();
}
template <class Group>
GPUFS_DEVICE std::uint32_t size(Group group) {
  return group.size();
}
template <class Group>
GPUFS_DEVICE void sync(Group group) {
  group.sync();
}

template <class Group>
GPUFS_DEVICE gpufs_file open(Group group, gpufs_mount fs, const char* path, std::int32_t flags) {
  return with(fs, [&](const mount_ref& mount) { return static_cast<gpufs_file>(gpufs::open(group, mount, path, flags).number()); });
}
template <class Group>
GPUFS_DEVICE std::int32_t close(Group group, gpufs_mount fs, gpufs_file opened) {
  return with(fs, opened, [&](const file& f) { return gpufs::close(group, f); });
}

template <class Group>
GPUFS_DEVICE std::int64_t pread(Group group, gpufs_mount fs, gpufs_file opened, void* dst, std::uint64_t nbytes,
                                std::int64_t offset) {
  return with(fs, opened, [&](const file& f) { return gpufs::pread(group, f, dst, nbytes, offset); });
}

// C's numbers of sources stay; in C++ those without a version come last.
GPUFS_DEVICE std::uint32_t source_of(source_kind kind) {
  std::uint32_t number = static_cast<std::uint32_t>(kind);
  if (kind == source_kind::nvme) number = GPUFS_SOURCE_NVME;
  if (kind == source_kind::live) number = GPUFS_SOURCE_LIVE;
  if (kind == source_kind::zero) number = GPUFS_SOURCE_ZERO;
  return number;
}

template <class Group>
GPUFS_DEVICE std::int32_t fstat(Group group, gpufs_mount fs, gpufs_file opened, gpufs_status* out) {
  return with(fs, opened, [&](const file& f) {
    const file_status status = gpufs::fstat(group, f);
    if (status.error != 0) return status.error;
    if (out == nullptr) return -EFAULT;
    *out = {status.nbytes, status.inode, status.mtime_ns, status.mode, status.cache_id, source_of(status.source), 0};
    return 0;
  });
}

template <class Group>
GPUFS_DEVICE std::int32_t map_page(Group group, gpufs_mount fs, gpufs_file opened, std::int64_t offset, gpufs_page* out) {
  if (out == nullptr) return -EFAULT;
  *out = {};
  return with(fs, opened, [&](const file& f) { return give_page(out, gpufs::map_page(group, f, offset)); });
}
template <class Group>
GPUFS_DEVICE std::int32_t unmap_page(Group group, gpufs_page* mapped) {
  return give_back<const std::byte>(group, mapped);
}

template <class Group>
GPUFS_DEVICE std::int64_t pwrite(Group group, gpufs_mount fs, gpufs_file opened, const void* src, std::uint64_t nbytes,
                                 std::int64_t offset) {
  return with(fs, opened, [&](const file& f) { return gpufs::pwrite(group, f, src, nbytes, offset); });
}
template <class Group>
GPUFS_DEVICE std::int64_t append(Group group, gpufs_mount fs, gpufs_file opened, const void* src, std::uint64_t nbytes) {
  return with(fs, opened, [&](const file& f) { return gpufs::append(group, f, src, nbytes); });
}
template <class Group>
GPUFS_DEVICE std::int64_t append_each(Group group, gpufs_mount fs, gpufs_file opened, const void* src, std::uint64_t nbytes) {
  return with(fs, opened, [&](const file& f) { return gpufs::append_each(group, f, src, nbytes); });
}

GPUFS_DEVICE bool is_durability(std::int32_t how) { return how >= GPUFS_SYNC_PAGE_CACHE && how <= GPUFS_SYNC_STABLE; }
template <class Group>
GPUFS_DEVICE std::int32_t fsync(Group group, gpufs_mount fs, gpufs_file opened, std::int32_t how) {
  if (!is_durability(how)) return -EINVAL;
  return with(fs, opened, [&](const file& f) { return gpufs::fsync(group, f, static_cast<durability>(how)); });
}
template <class Group>
GPUFS_DEVICE std::int32_t ftruncate(Group group, gpufs_mount fs, gpufs_file opened, std::int64_t nbytes) {
  return with(fs, opened, [&](const file& f) { return gpufs::ftruncate(group, f, nbytes); });
}

template <class Group>
GPUFS_DEVICE std::int32_t map_page_to_write(Group group, gpufs_mount fs, gpufs_file opened, std::int64_t offset,
                                            gpufs_writable_page* out) {
  if (out == nullptr) return -EFAULT;
  *out = {};
  return with(fs, opened, [&](const file& f) { return give_page(out, gpufs::map_page<std::byte>(group, f, offset)); });
}
template <class Group>
GPUFS_DEVICE std::int32_t msync(Group group, gpufs_writable_page* mapped, std::int32_t how) {
  if (!is_durability(how)) return -EINVAL;
  if (mapped == nullptr) return -EFAULT;
  const mapped_page<std::byte> page = page_of<std::byte>(*mapped);
  return gpufs::msync(group, page, static_cast<durability>(how));
}
template <class Group>
GPUFS_DEVICE std::int32_t unmap_writable_page(Group group, gpufs_writable_page* mapped) {
  return give_back<std::byte>(group, mapped);
}

template <class Group>
GPUFS_DEVICE std::int32_t prefetch(Group group, gpufs_mount fs, gpufs_file opened, std::int64_t offset, std::uint64_t nbytes) {
  return with(fs, opened, [&](const file& f) { return gpufs::prefetch(group, f, offset, nbytes); });
}
template <class Group>
GPUFS_DEVICE std::int32_t advise(Group group, gpufs_mount fs, gpufs_file opened, std::int64_t offset, std::uint64_t nbytes,
                                 std::int32_t what) {
  return with(fs, opened, [&](const file& f) { return gpufs::advise(group, f, offset, nbytes, static_cast<advice>(what)); });
}
template <class Group>
GPUFS_DEVICE std::int32_t read_async(Group group, gpufs_mount fs, gpufs_file opened, void* dst, std::uint64_t nbytes,
                                     std::int64_t offset, gpufs_pending_read* pending) {
  if (pending == nullptr) return -EFAULT;
  keep(pending->inside, pending_read{});  // a read of no file
  return with(fs, opened, [&](const file& f) {
    keep(pending->inside, gpufs::read_async(group, f, dst, nbytes, offset));
    return 0;
  });
}
// The C++ form of a pending read. If all its words are 0, no read was begun; it then becomes a read of no file.
GPUFS_DEVICE pending_read read_of(const gpufs_pending_read& pending) {
  const auto begun = kept<pending_read>(pending.inside);
  return begun.from.error() == 0 && begun.from.entry() == nullptr ? pending_read{} : begun;
}
template <class Group>
GPUFS_DEVICE std::int32_t ready(Group group, const gpufs_pending_read* pending) {
  if (pending == nullptr) return -EFAULT;
  return gpufs::ready(group, read_of(*pending)) ? 1 : 0;
}
template <class Group>
GPUFS_DEVICE std::int64_t wait(Group group, const gpufs_pending_read* pending) {
  if (pending == nullptr) return -EFAULT;
  return gpufs::wait(group, read_of(*pending));
}

template <class Group>
GPUFS_DEVICE std::int32_t unlink(Group group, gpufs_mount fs, const char* path) {
  return with(fs, [&](const mount_ref& mount) { return gpufs::unlink(group, mount, path); });
}
template <class Group>
GPUFS_DEVICE std::int32_t rmdir(Group group, gpufs_mount fs, const char* path) {
  return with(fs, [&](const mount_ref& mount) { return gpufs::rmdir(group, mount, path); });
}
template <class Group>
GPUFS_DEVICE std::int32_t rename(Group group, gpufs_mount fs, const char* from, const char* to) {
  return with(fs, [&](const mount_ref& mount) { return gpufs::rename(group, mount, from, to); });
}
template <class Group>
GPUFS_DEVICE std::int32_t mkdir(Group group, gpufs_mount fs, const char* path, std::uint32_t mode) {
  return with(fs, [&](const mount_ref& mount) { return gpufs::mkdir(group, mount, path, mode); });
}
template <class Group>
GPUFS_DEVICE std::int32_t stat(Group group, gpufs_mount fs, const char* path, gpufs_path_status* out) {
  return with(fs, [&](const mount_ref& mount) {
    const path_status status = gpufs::stat(group, mount, path);
    if (status.error != 0) return status.error;
    if (out == nullptr) return -EFAULT;
    *out = {status.nbytes, status.inode, status.mtime_ns, status.mode, 0};
    return 0;
  });
}
template <class Group>
GPUFS_DEVICE std::int64_t read_directory(Group group, gpufs_mount fs, const char* path, void* out, std::uint32_t nbytes,
                                         std::int64_t* position) {
  return with(fs, [&](const mount_ref& mount) -> std::int64_t {
    if (position == nullptr) return -EFAULT;
    const directory_part got = gpufs::read_directory(group, mount, path, out, nbytes, *position);
    *position = got.position;
    return got.nbytes;
  });
}

template <class Group>
GPUFS_DEVICE std::int64_t read_extents(Group group, gpufs_mount fs, gpufs_file number, gpufs_extent* out, std::uint32_t n,
                                       std::int64_t* offset) {
  return with(fs, number, [&](const file& f) -> std::int64_t {
    if (offset == nullptr) return -EFAULT;
    const extents_part got = gpufs::read_extents(group, f, reinterpret_cast<extent*>(out), n, *offset);
    *offset = got.offset;
    return got.n;
  });
}

template <class Group>
GPUFS_DEVICE std::int32_t open_all(Group group, gpufs_mount fs, const char* directory, const char* const* names, std::uint32_t n,
                                   std::int32_t flags, gpufs_file* files) {
  return with(fs, [&](const mount_ref& mount) {
    return gpufs::open_all(group, mount, directory, names, n, flags, reinterpret_cast<file_number*>(files)) ? 1 : 0;
  });
}
template <class Group>
GPUFS_DEVICE std::int32_t close_all(Group group, gpufs_mount fs, const gpufs_file* files, std::uint32_t n, std::int32_t* results) {
  return with(fs, [&](const mount_ref& mount) {
    return gpufs::close_all(group, mount, reinterpret_cast<const file_number*>(files), n, results) ? 1 : 0;
  });
}
template <class Group>
GPUFS_DEVICE std::uint32_t file_names(Group group, const void* entries, std::int64_t nbytes, const char** names,
                                      std::uint32_t most) {
  return gpufs::file_names(group, entries, nbytes, names, most);
}

// Calls gather or scatter with C++'s layout of the rows.
template <class Call>
GPUFS_DEVICE std::int32_t with_rows(gpufs_mount fs, gpufs_file number, const gpufs_rows* rows, std::uint64_t* place, Call call) {
  return with(fs, number, [&](const file& f) -> std::int32_t {
    if (rows == nullptr) return -EFAULT;
    if (rows->from_end > 1) return -EINVAL;
    const row_failure failed =
        call(f, row_layout{rows->row_nbytes, rows->nrows, rows->begin, rows->stride_nbytes, rows->from_end == 1});
    if (place != nullptr && failed.error != 0) *place = failed.place;
    return failed.error;
  });
}
template <class Group>
GPUFS_DEVICE std::int32_t gather(Group group, gpufs_mount fs, gpufs_file number, const gpufs_rows* rows,
                                 const std::int64_t* numbers, std::uint64_t n, void* dst, std::uint64_t* place) {
  return with_rows(fs, number, rows, place,
                   [&](const file& f, const row_layout& layout) { return gpufs::gather(group, f, layout, numbers, n, dst); });
}
template <class Group>
GPUFS_DEVICE std::int32_t scatter(Group group, gpufs_mount fs, gpufs_file number, const gpufs_rows* rows,
                                  const std::int64_t* numbers, std::uint64_t n, const void* src, std::uint64_t* place) {
  return with_rows(fs, number, rows, place,
                   [&](const file& f, const row_layout& layout) { return gpufs::scatter(group, f, layout, numbers, n, src); });
}

// Calls update(pointer to the element), and gives its error.
template <class Word, class Update>
GPUFS_DEVICE std::int32_t with_element(gpufs_mount fs, gpufs_file number, std::int64_t offset, Update update) {
  return with(fs, number, [&](const file& f) {
    const auto p = gpufs::map<Word>(gpufs::this_thread(), f, offset, 1);
    if (p.error() == 0) update(p);
    return p.error();
  });
}
// Out of line: what a fault needs is there once for each size of words, and not in each call.
template <class Word>
GPUFS_DEVICE_COLD std::int32_t update_word(gpufs_mount fs, gpufs_file number, std::int64_t offset, detail::update_kind how,
                                           Word value, Word* before) {
  Word was = 0;
  const std::int32_t error =
      with_element<Word>(fs, number, offset, [&](const ptr<Word>& p) { was = detail::updates::at<Word>(p, 0, how, value); });
  if (before != nullptr) *before = error == 0 ? was : 0;
  return error;
}
template <class Word>
GPUFS_DEVICE_COLD std::int32_t store_word(gpufs_mount fs, gpufs_file number, std::int64_t offset, Word value) {
  return with_element<Word>(fs, number, offset, [&](const ptr<Word>& p) { gpufs::store_at(p, 0, value); });
}
template <class T>
GPUFS_DEVICE std::int32_t update(gpufs_mount fs, gpufs_file number, std::int64_t offset, detail::update_kind how, T value,
                                 T* before) {
  using word = detail::updates::word<T>;
  word was = 0;
  const std::int32_t error = update_word<word>(fs, number, offset, how, detail::same_bits<word>(value), &was);
  if (before != nullptr) *before = detail::same_bits<T>(was);
  return error;
}
#define GPUFS_UPDATE(name, T, how)                                                                             \
  GPUFS_DEVICE std::int32_t name(gpufs_mount fs, gpufs_file number, std::int64_t offset, T value, T* before) { \
    return update(fs, number, offset, detail::updates::how<T>, value, before);                                 \
  }
GPUFS_UPDATE(fetch_add_u32, std::uint32_t, add)
GPUFS_UPDATE(fetch_add_u64, std::uint64_t, add)
GPUFS_UPDATE(fetch_add_f32, float, add)
GPUFS_UPDATE(fetch_add_f64, double, add)
GPUFS_UPDATE(fetch_min_i32, std::int32_t, least)
GPUFS_UPDATE(fetch_min_u32, std::uint32_t, least)
GPUFS_UPDATE(fetch_min_i64, std::int64_t, least)
GPUFS_UPDATE(fetch_min_u64, std::uint64_t, least)
GPUFS_UPDATE(fetch_max_i32, std::int32_t, most)
GPUFS_UPDATE(fetch_max_u32, std::uint32_t, most)
GPUFS_UPDATE(fetch_max_i64, std::int64_t, most)
GPUFS_UPDATE(fetch_max_u64, std::uint64_t, most)
#undef GPUFS_UPDATE
GPUFS_DEVICE std::int32_t exchange_u32(gpufs_mount fs, gpufs_file number, std::int64_t offset, std::uint32_t value,
                                       std::uint32_t* before) {
  return update_word(fs, number, offset, detail::update_kind::exchange, value, before);
}
GPUFS_DEVICE std::int32_t exchange_u64(gpufs_mount fs, gpufs_file number, std::int64_t offset, std::uint64_t value,
                                       std::uint64_t* before) {
  return update_word(fs, number, offset, detail::update_kind::exchange, value, before);
}
GPUFS_DEVICE std::int32_t store_u32(gpufs_mount fs, gpufs_file number, std::int64_t offset, std::uint32_t value) {
  return store_word(fs, number, offset, value);
}
GPUFS_DEVICE std::int32_t store_u64(gpufs_mount fs, gpufs_file number, std::int64_t offset, std::uint64_t value) {
  return store_word(fs, number, offset, value);
}

GPUFS_DEVICE std::int32_t device_abi_version() { return GPUFS_C_ABI_VERSION; }
GPUFS_DEVICE std::uint32_t block_rank() { return simt::block_rank(); }
GPUFS_DEVICE std::uint32_t grid_size() { return simt::grid_size(); }

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::c_abi

// The definitions: each calls the function of its name above.
#define GPUFS_AND(...) __VA_OPT__(, ) __VA_ARGS__
#define GPUFS_FUNCTION(result, name, parameters, arguments) \
  extern "C" GPUFS_C_DEVICE result gpufs_##name parameters { return gpufs::c_abi::name arguments; }
#define GPUFS_VERB(result, name, parameters, arguments)                  \
  extern "C" GPUFS_C_DEVICE result gpufs_##name##_thread parameters {    \
    return gpufs::c_abi::name(gpufs::this_thread() GPUFS_AND arguments); \
  }                                                                      \
  extern "C" GPUFS_C_DEVICE result gpufs_##name##_warp parameters {      \
    return gpufs::c_abi::name(gpufs::this_warp() GPUFS_AND arguments);   \
  }                                                                      \
  extern "C" GPUFS_C_DEVICE result gpufs_##name##_block parameters {     \
    return gpufs::c_abi::name(gpufs::this_block() GPUFS_AND arguments);  \
  }
#include "gpufs/gpufs_verbs.h"
