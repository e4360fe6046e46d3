// SPDX-License-Identifier: Apache-2.0
// The host side of a mount: threads that answer the requests of kernels (transport/detail/wire.hpp) from a store.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gpufs/simt/platform.hpp"
#include "gpufs/store/store.hpp"
#include "gpufs/transport/detail/layout.hpp"
#include "gpufs/transport/detail/row_buffers.hpp"

namespace gpufs::service {

struct service_options {
  std::uint32_t nrings = 32;
  std::uint32_t nslots = 64;             // a ring; a power of two
  std::uint32_t payload_nbytes = 4096;   // a slot; at least max_path_nbytes + 1, a multiple of 512
  bool writable = false;                 // kernels may write, if the store may: payloads have room for masks
  std::uint32_t nworkers = 0;            // threads; 0: one a core, at least 2, at most 16
  std::uint32_t nspare_workers = 128;    // started in place of threads that hang in the store
  std::uint32_t max_open_files = 65536;  // at most 2^20; then opens give -EMFILE
  std::uint32_t max_batch = 64;          // requests that a thread takes at once, at most 64
  // How often open pull files, and those by windows, are checked for change, as many at a time as 0.2 ms allow (100 to 700).
  std::chrono::milliseconds watch_interval{100};
};

// Counts since construction; each is exact, but they are read one after another while requests run.
struct service_counters {
  std::uint64_t opens = 0;                                        // that succeeded, and of these:
  std::uint64_t opens_nil = 0, opens_pull = 0, opens_staged = 0;  // (by windows: staged)
  std::uint64_t opens_with_bytes = 0;                             // that brought the file's beginning along
  std::uint64_t closes = 0;
  std::uint64_t reads = 0;          // that succeeded
  std::uint64_t bytes_read = 0;     // by them
  std::uint64_t cold_reads = 0;     // reads that were not served from the page cache at once
  std::uint64_t copies = 0;         // pages that the copy engine brought to frames; no reads
  std::uint64_t writes = 0;         // that succeeded
  std::uint64_t bytes_written = 0;  // by them
  std::uint64_t syncs = 0;          // that succeeded
  std::uint64_t errors = 0;         // answers below zero
  std::uint64_t batches = 0;        // how often a worker found requests,
  std::uint64_t requests = 0;       // how many it took, in all
  std::uint64_t max_batch = 0;      // and at most
  std::uint64_t stale_files = 0;    // open files whose version was seen to end
  std::uint64_t open_files = 0;     // now
};

struct log_entry {
  std::chrono::system_clock::time_point time;  // of the last one, when it was repeated
  std::string operation;                       // "open", "read", "write", ... as opcode's names; "watch", "service"
  std::string path;                            // empty where there is none
  int error = 0;                               // a positive errno, 0 for a notice
  std::string text;                            // what the errno does not say
  std::uint64_t count = 1;                     // how often in a row
};

struct file_description {
  std::string path;
  source_kind kind{};
  std::string reason;  // why its bytes come this way, now
  std::int64_t nbytes = 0;
};

// Owns the request rings, the open files and the threads. Host only; members may be called from any thread unless said
// otherwise.
//
// Requests of a ring are taken in the order of their tickets, all that are there at once and never waiting for more
// (opportunistic batching: "Supporting data-driven I/O on GPUs using GPUfs", SYSTOR'16, on transfer batching), and are
// answered in any order. A request that blocks (an open, a sync, a call on a path, a read or write of a store without a descriptor)
// occupies one thread; requests taken along with it are stolen by the others. Neither a file nor all opens and calls together can
// occupy the last thread.
//
// A store may hang: a FUSE folder, a file server, a disk. A call that takes 100 ms counts as one that hangs, until it comes back:
// another thread is started in place of its own, and further requests of its kind and its file, or of its path, wait for it. So
// others go on while up to half of nspare_workers calls of a kind hang (opens and other calls; reads and writes; looks whether a
// pulled file has changed); beyond, those of that kind wait, too.
//
// Rows (opcode::read_rows) are read where a page is: of a file in memory by loads from a mapping of the file, of others from the
// page cache, and what that does not have asynchronously, row by row. An error of one row is that row's alone.
//
// Writes that are there at once and lie one behind the other in a file become one call to the kernel. Of those that fail together,
// the ones that lie before the error count as written.
//
// A file that is open for writing gets a cache id of its own at each open. Its reads are not held to a version: they give what is
// there.
//
// An open brings the file's beginning along when it is asked to, in the payload that the path was in: of a staged file, up to
// 64 KiB, when they are in the page cache. That saves a small file one request in three. It never makes an open fail or wait:
// bytes that are not there at once, or not of the opened version, are left to the read that asks for them.
//
// A close that is taken while a read or write of that file waits may come first; that then gets -EBADF. (Kernels close when these
// have been answered.)
//
// A read with read_to_frame asks for one page of a file whose bytes the device may read itself: the copy engine writes it to a
// frame of the device's cache, many at a time, by a thread of its own, since CUDA may keep copies waiting until a kernel ends.
// Where that cannot be, the page comes in the payload, and the answer says which. The frame is the device's to keep free until the
// answer comes.
//
// Nothing that the device writes is trusted: a request is copied out of the shared memory once and each field checked.
//   unknown operation -ENOSYS           path length 0 -ENOENT, over 4095 -ENAMETOOLONG
//   forged or closed handle -EBADF      offset below 0, offset + nbytes past 2^63 - 1, nbytes over the payload -EINVAL
//   after stop() -ESHUTDOWN             file changed since it was opened -ESTALE
//   rows: none, or more than fit; of no bytes; not all inside the file; in a slot without a row buffer; of a file open for writing
//   -EINVAL
//   write: skip + nbytes over the payload -EINVAL       write, sync, truncate of a file not open for writing -EBADF
//   flags that the operation does not have, truncate below 0, extend of what there is not -EINVAL
//   whatever writes, but not service_options::writable -EROFS
class service {
 public:
  // Allocates the rings (zeroed, pinned), raises RLIMIT_NOFILE's soft limit as far as max_open_files needs and the hard limit
  // allows (the log says so), and starts the threads. Throws std::invalid_argument, std::bad_alloc or std::system_error.
  // The platform must outlive the service.
  service(simt::platform& machine, std::shared_ptr<store::store> files, const service_options& options = {});
  // stop(), then frees the rings. Kernels that use them must have ended.
  ~service();
  service(const service&) = delete;
  service& operator=(const service&) = delete;

  transport::transport_layout transport() const;
  // Where rows are gathered (opcode::read_rows): made, pinned, when it is first asked for, and there until the service ends.
  // Kernels get it by value. May throw std::bad_alloc.
  const transport::row_buffers& row_buffers();
  // Whether a file was ever opened whose bytes the host may be asked for.
  const std::atomic<bool>& has_opened_staged() const;
  const service_options& options() const;  // with the defaults filled in

  // Waits until every request that is there has been answered, no longer than `limit`: whether it has. No kernel asks meanwhile.
  bool finish(std::chrono::nanoseconds limit);

  // Answers what is in flight (what has reached the store is completed, the rest gets -ESHUTDOWN) and returns when that is
  // done; waits as long as the store does. From then on every request is answered with -ESHUTDOWN at once, and on_stale's
  // function is not called again. May be called several times.
  void stop();

  // What hangs in the store just now, for a message: "3 calls, one of them a read of 'a/b'"; empty where nothing does. The function
  // may be called from any thread also while the service ends, and says nothing once it has ended.
  std::function<std::string()> what_hangs() const;

  // `changed(number, handle)` is called from a thread of the service, once for each open file of kind pull that is no longer
  // the version that was opened: `number` is what the device gave in the open request's `offset` (cut to 32 bits; a hint, as
  // it comes from the device), `handle` what open answered. Noticed within watch_interval while some 100 pull files are
  // open, later in proportion. It must not call the service's on_stale or stop.
  void on_stale(std::function<void(std::uint32_t number, std::uint32_t handle)> changed);

  // `registered(number, handle, pull_base, windows)` is called from a thread of the service when more windows of a file of kind
  // windows are registered than the device was told of; number, handle: as on_stale's. False: not now, it is called again. The file
  // stays open meanwhile. Noticed as staleness is. It must not call the service's on_windows or stop.
  using windows_teller = std::function<bool(std::uint32_t number, std::uint32_t handle, const std::byte* pull_base,
                                            const store::registered_windows& windows)>;
  void on_windows(windows_teller registered);
  // `make(n)` is called from a thread of its own when the device asks for piece n of its memory, for more open files: where it lies
  // there, also when it was asked for before; 0: there is no such piece. It may take long; the device's other requests are answered
  // meanwhile. std::bad_alloc is -ENOMEM, what else it throws -EIO. It must not call the service's on_extend or stop.
  void on_extend(std::function<std::uint64_t(std::uint32_t n)> make);
  // From now on reads with read_to_frame may have the device's copy engine bring their page straight to frame n, at
  // begin + n * nbytes in its memory; until then all are read into payloads. Called once at most, before kernels ask and while the
  // first frame is free. False: the device cannot do that; the log says why.
  bool copy_to_frames(std::byte* begin, std::uint32_t nframes, std::uint32_t nbytes);
  // The device has forgotten what it was told of windows.
  void tell_windows_again();
  // Files that are open to be read by windows of which some are registered.
  struct reads_by_windows {
    std::uint32_t slot, handle;
  };
  std::vector<reads_by_windows> by_windows() const;
  // open_file::give_up_windows of these files. The device may be told of no window until the store has made room.
  void give_up_windows(std::span<const std::uint32_t> handles);

  service_counters counters() const;
  std::map<int, std::uint64_t> errors() const;  // answers by positive errno
  std::vector<log_entry> log_entries() const;   // the last 1,024, oldest first
  std::vector<std::string> log() const;         // the same as lines of text
  std::string last_error() const;               // the last of them that is no notice, or empty
  // An open file, or nothing when the handle is not (or no longer) one.
  std::optional<file_description> describe(std::uint32_t handle) const;
  // Writes to an open file, in the caller's thread: 0 or a negative errno, which the log has, too.
  int write(std::uint32_t handle, std::span<const std::byte> bytes, std::int64_t offset);
  // As sync does (store.hpp: note_written_in_place), of an open file into whose mapping the device has stored; in the caller's
  // thread.
  int note_written_in_place(std::uint32_t handle, std::int64_t nbytes);
  // The path of a file that is or was open, unless its handle's place has been used for another since.
  std::optional<std::string> path_of(std::uint32_t handle) const;

 private:
  struct hang_report;
  struct impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace gpufs::service
