// SPDX-License-Identifier: Apache-2.0
// A mount: one directory that kernels see, with a page cache, request rings and host threads of its own.
#pragma once
#include <fcntl.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpufs/pointer/detail/mount_layout.hpp"
#include "gpufs/simt/platform.hpp"
#include "gpufs/store/store.hpp"

namespace gpufs {

// Thrown by a mount's constructor and by prepare(). what() says what was asked for and what failed. Other host calls pass on the
// exceptions that the platform throws when its device is lost.
class error : public std::runtime_error {
 public:
  explicit error(const std::string& what, int number = EINVAL) : std::runtime_error(what), number_(number) {}
  int number() const { return number_; }  // the errno that fits best

 private:
  int number_;
};

enum class store_kind {
  automatic,  // begins as posix; parts that are read often are registered and pulled, if the pin budget allows
  posix,      // host threads read into pinned staging slots
  mapped,     // the GPU pulls from a mapping that is registered at the open; files that cannot be mapped do not open
};

// What a mount does after accesses through pointers have failed (they read zeros, or wrote nothing).
enum class failed_accesses {
  say,    // on stderr, once in its life: how many so far, and the first one
  quiet,  // nothing: the program looks at counters().fault_errors, log() or the pointers' error()
  abort,  // say, and end the process
};

inline constexpr int current_device = -1;  // the calling thread's device when the mount is made

// Options for measurements, tests and gpufs's own programs; other programs need not set them.
struct mount_internals {
  std::uint32_t nrings = 0;          // allocation rings; 0: 64 or more, fewer in small caches
  std::uint32_t request_rings = 0;   // 0: 256, fewer for large pages
  std::uint32_t request_slots = 0;   // for each ring, a power of two from 2 on; 0: 8. At most 2^16 in all rings
  std::uint32_t request_batch = 64;  // requests that a host thread takes at once, 1 to 64
  // Gets the mount's store, and returns the store to use in its place.
  std::function<std::shared_ptr<store::store>(std::shared_ptr<store::store>)> around_store{};
};

struct mount_options {
  int device = current_device;       // the device whose kernels use it and whose memory it takes, below simt::device_count()
  std::uint64_t cache_nbytes = 0;    // 0: a quarter of the device's free memory, at most 16 GiB (CPU machine: 64 MiB)
  std::uint32_t page_nbytes = 4096;  // a power of two, 512 B to 2 MiB
  // Memory of the device, of an allocator of the caller's, for the cache's pages and 32 bytes a page; the rest, as the page table,
  // the mount allocates. With cache_nbytes 0 as many pages lie there as fit; those of cache_nbytes always do in 32 bytes a page and
  // 2 MiB more. It is overwritten, so what was enqueued on it before must have ended. It must stay until the mount has ended, and
  // where that end has waited for longer than end_timeout (which stderr says), for good.
  std::span<std::byte> cache_memory{};
  store_kind store = store_kind::automatic;
  std::shared_ptr<store::store> custom_store{};  // used instead of `store` (mem, nil, a test's own)
  std::uint32_t max_open_files = 65536;  // open at once on the device, at most 2^20. The process's soft RLIMIT_NOFILE is raised
                                         // towards it, and stays raised; the log says to what value
  // For so many open files the mount has tables from the beginning, in steps of 1,024. They take 1,400 bytes of device memory a
  // file, or 1,900 if writable. If kernels open more files, the host takes memory for the next 1,024, and the mount keeps it. CUDA
  // gives no memory while another thread waits for the kernel in cudaFree, cudaMemcpy or the like. Then the open gives -ENOMEM
  // after 2 s; later opens find the memory.
  std::uint32_t reserved_open_files = 1024;
  std::uint32_t max_mappings = 4096;  // open files (and forms of them) that have pointers; 1 KiB each. Of the default about four
                                      // fifths can be used, of up to 256 all
  // The device's copy engine brings in pages of 64 KiB and more, straight from the file's registered mapping to the cache, for
  // files that the device reads itself; else kernels pull them. So prefetch and read_async of such a file overlap with computing.
  // Three host threads are busy with it while pages are missed. Reads that wait are slower: 0.85 to 0.93 of pulling, on an H100. A
  // page that the engine does not bring within 20 ms (CUDA keeps copies waiting while it loads a kernel, or while cudaFree waits)
  // is pulled.
  bool copy_engine = false;
  std::uint64_t pin_nbytes = 0;    // host memory that mapped files may pin; 0: half of the available memory, or of the container's
                                   // limit
  bool writable = false;           // files may be opened for writing; costs a further eighth of cache_nbytes, and 20 bytes a page
  std::uint64_t dirty_nbytes = 0;  // how many bytes dirty pages may take: a group that writes more waits until some pages are
                                   // written back. 0: a quarter of the cache; at most half of it
  std::uint32_t nworkers = 0;      // host threads, at most 1024; 0: one for each core, at least 2, at most 16
  std::chrono::nanoseconds io_timeout = std::chrono::seconds(60);  // the host's answer to one request
  // How long a call waits for a frame while all are pinned. Reads through pointers wait a sixteenth of it, then read past the
  // cache.
  std::chrono::nanoseconds frame_timeout = std::chrono::milliseconds(500);
  // This is done at the end of the gpufs::simt::launch in which accesses failed. For kernels that are launched otherwise, at the
  // next call of counters(), open_files(), sync() or trim(), or at the mount's end, unless log() was called before.
  failed_accesses on_failed_accesses = failed_accesses::say;
  std::chrono::nanoseconds end_timeout = std::chrono::seconds(90);  // at most so long the mount's end waits for a store that hangs
  mount_internals internals{};
};

// A mount's counts since it was made. Readable while kernels run; sums over words that change meanwhile.
struct mount_counters : file_counters {  // hits, faults, bytes, ...: the sums over all files, also closed ones
  std::uint64_t allocations = 0, evictions = 0;
  std::uint64_t open_errors = 0, bad_file_numbers = 0, io_timeouts = 0, unpin_errors = 0;
  std::uint64_t pinned_frames = 0, free_frames = 0;  // now: pages mapped and not unmapped, or linked by pointers, show as pinned
  std::uint64_t under_way = 0;               // now: pages that prefetch or read_async asked for and that no group has come by since
  std::uint64_t pins = 0, dirty_frames = 0;  // now: the pins of all frames; pages changed through private mappings
  // Accesses through pointers that could not be served, and mappings with stop_on_error that were refused.
  std::uint64_t fault_errors = 0;
  std::uint64_t past_cache = 0;       // reads through pointers that linked no page: no frame was free, or advise(noreuse)
  std::uint64_t unwritten_pages = 0;  // now: pages that were written, and are not yet back in their files
  std::uint64_t write_backs = 0, bytes_written_back = 0;  // pages, or rows past the cache; the written bytes in them
  std::uint64_t write_errors = 0;                         // pages whose write-back failed
  std::uint64_t host_opens = 0, host_closes = 0, host_reads = 0, host_batches = 0, host_errors = 0;
  std::uint64_t host_copies = 0;  // pages that the copy engine brought in
  std::uint64_t held_copies = 0;  // now: pages that it was asked for and has not brought, and that callers have pulled instead
};

struct file_report {
  std::string path;
  std::int64_t nbytes = 0;
  source_kind source{};
  std::string reason;        // why its bytes come this way; of windows, how many are registered now, and why some were refused
  file_counters counters{};  // of this slot since the mount was made
};

// The host side, the same for both machines. Use gpufs::mount, which picks the machine of the translation unit.
//
// A mount belongs to the process that made it. A child of fork() has none of its threads. There the destructor does nothing (memory
// stays, nothing is written, the parent's mount goes on unchanged), and no other call is allowed. A child that needs files makes
// its own mount; not on CUDA, which does not survive a fork.
class host_mount {
 public:
  host_mount(simt::platform& device, const std::string& root, const mount_options& options);  // options.device is ignored
  // Kernels that use the mount must have ended; what they left unwritten is written, see sync(). It says on stderr what was
  // lost and not reported yet, and which accesses through pointers failed. It waits for the store; after 3 s it says on
  // stderr for which call, and of which file. After end_timeout it says so and returns. What is left then ends by itself, in
  // a thread of its own, when the store answers: until then the mount's memory, threads and files stay, and so does a
  // custom_store.
  ~host_mount();
  host_mount(host_mount&&) noexcept;
  host_mount& operator=(host_mount&&) noexcept;

  const mount_options& options() const;  // with the defaults filled in
  simt::platform& device() const;        // kernels that use the mount, and their arrays, must be on this device
  mount_counters counters() const;
  std::vector<file_report> open_files() const;
  // Recent errors, oldest first. Then the failed accesses through pointers, each with file, offset, cause and thread: the first 256
  // records, where one record stands for all accesses of a warp in one mapping to one page that failed for one reason. Then the
  // number of requests that found no answer in time. Works also after a failed access has stopped a kernel; then, on CUDA, the log
  // lacks that number, and the number of accesses that a record stands for.
  std::vector<std::string> log() const;
  // Writes all bytes that kernels have written, but neither synced nor closed, to their files (the host page cache), as the mount's
  // end does: for kernels that ended early. No kernel that uses the mount may run. Returns the number of pages that are still
  // unwritten, plus the number of files that may have lost bytes: an earlier write-back failed, or the host's mapping of the file,
  // which kernels wrote to, is no longer the file's. The next fsync or close of such a file gives the error, too, and the log says
  // why. A page stays unwritten if the store fails, or if the host still owes a kernel the answer to an older write of it; a later
  // fsync then writes it.
  std::uint64_t sync();
  // Returns a number, new in this mount, under which a fault handler's pages are cached (gpufs/pointer/map.hpp): 1 to 14. Then it
  // throws gpufs::error.
  std::uint32_t new_form();
  // Registers the whole mapping of the file now (22 ms a GiB on a disk, 57 in memory), and keeps it until trim(), or
  // until other files find no room (trim). So kernels pull the file from the first miss on. Waits for a file that was changed just
  // now to settle (25 ms, on file systems with coarse stamps up to 2 s). With O_RDWR: for an open that writes, if the file is in
  // memory (130 ms a GiB), as long as the file keeps its size. If a file cannot be mapped (open_files() says why), that is no
  // error, and nothing is done. Throws gpufs::error if the path does not open so; EINVAL: other flags.
  void prepare(const std::string& path, int flags = O_RDONLY) const;
  // Unregisters mappings of closed files, and lets windows that were refused be tried again. Waits for running kernels. The end of
  // a gpufs::simt::launch does this, too, if something has found no room in the pin budget, and no other launch is under way: of
  // the mappings that were used least recently, and of no more than it takes; then of windows of open files that no kernel has
  // read for some launches.
  void trim();

 private:
  friend class mount_inside;  // gpufs/mount/detail/inside.hpp
  struct impl;
  struct ender {
    void operator()(impl* mount) const noexcept;
  };
  std::unique_ptr<impl, ender> impl_;
};

}  // namespace gpufs
