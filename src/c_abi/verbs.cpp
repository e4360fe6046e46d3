// SPDX-License-Identifier: Apache-2.0
// The calls of gpufs/gpufs_device.h. g++ compiles this for the CPU machine, nvcc for CUDA as relocatable device code.
#include <type_traits>

#include "gpufs/file/open_all.hpp"
#include "gpufs/gpufs_device.h"
#include "handles.hpp"

namespace gpufs::c_abi {
inline namespace GPUFS_MACHINE {

// Null where the handle is not one of this gpufs and this machine.
GPUFS_DEVICE const file_mount* mount_of(gpufs_mount fs) {
  if (fs >> address_bits != (GPUFS_ON_CUDA ? cuda_stamp : cpu_stamp)) return nullptr;
  return reinterpret_cast<const file_mount*>(fs & ((std::uint64_t{1} << address_bits) - 1));
}

// Calls then(mount_ref), or gives -EPROTO.
template <class Then>
GPUFS_DEVICE auto with(gpufs_mount fs, Then then) -> decltype(then(mount_ref())) {
  const file_mount* const mount = mount_of(fs);
  return mount == nullptr ? -EPROTO : then(mount_ref(mount));
}

// Calls then(file).
template <class Then>
GPUFS_DEVICE auto with(gpufs_mount fs, gpufs_file number, Then then) -> decltype(then(file())) {
  return with(fs, [&](const mount_ref& mount) { return then(file(mount, file_number{number})); });
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
