// SPDX-License-Identifier: Apache-2.0
// One thread of a service.
#pragma once
#include <sys/uio.h>

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "core.hpp"
#include "read_answers.hpp"
#include "uring.hpp"

namespace gpufs::service {

// The rest of a request of rows that could not be read at once.
struct rows_left {
  std::vector<std::uint64_t> offsets;  // of all rows, as asked for
  std::vector<int> errors;             // of each row: 0 or negative
  std::vector<std::uint32_t> rows;     // the rows to read; from `next` on no read has begun
  std::size_t next = 0;
  std::uint32_t nunder_way = 0;  // asynchronous reads under way
  bool by_call = false;          // the rest is read by a call that may block
};

// A request on its way through a worker.
struct work {
  opcode op = opcode::none;               // none: it is answered, and only has its file to release
  std::uint32_t index = 0, sequence = 0;  // of its slot
  std::uint32_t flags = 0, number = 0;    // number: open: the device's number for the file
  std::uint32_t nbytes_along = 0;         // open: how many bytes of the file's beginning
  std::uint32_t handle = 0;               // rename: as in the request
  std::uint32_t nbytes = 0;               // read: as asked, but only bytes inside the file once that is known; calls on paths: of
                                          // the path; rows: of one row
  std::uint32_t skip = 0, mode = 0;       // write, open, read, rows: as in the request; mkdir: mode
  std::uint32_t done = 0;                 // read: how many bytes were read
  bool read = false;                      // all of them were read; the version is still to be checked
  std::int64_t offset = 0;
  open_files::entry* file = nullptr;  // set once its handle is checked
  std::unique_ptr<rows_left> rows;    // null: all rows are there, or no row was read yet
  open_files::ref hold;               // keeps the file open once a read or write has left its group
};

// Takes requests from the rings, its own first. It does the quick ones in small groups: reads from the page cache, and the start of
// asynchronous reads. It does requests that may block one at a time, or together if they are of one file and can be done together.
// Requests that it has taken and not begun lie in queues, from which the other workers steal.
class worker {
 public:
  worker(core& shared, std::uint32_t id) : core_(shared), counts_(shared.tallies[id]), id_(id) {}
  void run();  // returns once core.exiting is set and nothing is left
  // The call that it is in, for threads that look which calls hang.
  blocked_call& blocked() { return blocked_; }
  // Queues a read or write that may block, or the close of a file. Any thread calls.
  void push_slow(work w);
  // Gives a reference back where no call may block: if it is the last one, and the file closes slowly, a thread that may block
  // closes the file. Any thread.
  void let_go(open_files::ref file);

 private:
  static constexpr std::size_t group_size = 32;  // quick reads between two looks at the rings; they take about 40 us

  static constexpr std::size_t most_rows_waiting = 8;

  // An asynchronous read: of a request, or of a row of one.
  struct flight {
    work what;
    std::uint64_t since_ns = 0;
    bool by_store = false;  // the store answers it, else the ring
    bool overdue = false;   // the read hangs, and its file's nlate counts it
    work* of = nullptr;     // for a row: its request, in rows_
    std::uint32_t row = 0;  // which row of the request
    std::byte* to = nullptr;
  };

  // Each returns whether it found something to do.
  bool take_batch();
  bool run_quick();
  bool run_calls();
  bool reap();
  void idle();

  // Requests that wait in a worker; `size` may be read without the lock.
  struct queue {
    std::deque<work> waiting;
    std::atomic<std::uint32_t> size{0};
    void note_size() { size.store(static_cast<std::uint32_t>(waiting.size()), std::memory_order_relaxed); }
  };

  void admit(const taken_request& taken);
  bool queue_admitted();
  template <class Ask>
  bool any_worker(Ask ask);
  bool pop_group(worker& from, queue& q);
  bool pop_call(worker& from, work* out);
  bool pop_io(worker& from, queue& q, bool only_unused, open_files::entry** counted);
  bool waits_for_hung(const work& w);
  bool run_io(queue worker::*which);

  bool has_blocking() const;
  std::uint32_t nfresh() const { return nin_flight_ - noverdue_; }  // reads in flight that do not hang
  // Whether blocking calls must wait, so that they do not hold up answers of reads in flight. Reads that hang hold calls up only if
  // no thread can be started in our place.
  bool keeps_reads() const { return nfresh() != 0 || (noverdue_ != 0 && core_.can_add_worker()); }
  // Whether our reads may hold up blocking calls for long, so that other workers should be awake for these.
  bool may_keep_long() const { return noverdue_ != 0 || nby_store_ != 0; }
  void look_for_overdue();
  template <class Call>
  bool in_blocking(blocking_kind kind, std::atomic<std::uint32_t>& nblocked, const char* operation, open_files::entry* file,
                   Call call);

  void read_group();
  void look_how_to_read(open_files::entry& file, std::uint32_t nreads);
  void begin_read(work& w, open_files::entry* file);
  bool begin_copy(work& w);
  std::int64_t read_at_once(const store::open_file& file, int fd, read_path& how, std::span<std::byte> to, std::int64_t offset);
  std::int64_t read_at_once(const store::open_file& file, int fd, read_path& how, std::span<const iovec> parts,
                            std::int64_t offset);
  bool read_cached(work& w);
  bool read_mapped(work& w);
  void read_async(work w);
  void read_by_store(work w);
  std::uint32_t take_tag(bool by_store, bool remote);
  void give_tag_back(std::uint32_t tag);
  int submit_read(std::uint32_t tag);
  int begin_in_store(flight& f, std::uint32_t tag);
  void end_read(std::uint32_t tag, std::int64_t result);
  void read_blocking(const work& w);
  void begin_rows(work& w, open_files::entry* file);
  store::readable_mapping* mapping_of(open_files::entry& file);
  static store::readable_mapping* map(open_files::entry& file);
  bool read_mapped_rows(const work& w, std::span<const std::uint64_t> offsets);
  void read_rows(work w, std::span<const std::uint64_t> offsets);
  std::size_t begin_together(std::span<const std::uint64_t> offsets, std::uint32_t row_nbytes, std::byte* to);
  bool begin_rows_left(work& w);
  void begin_left();
  void end_row(std::uint32_t tag, int result, bool by_call);
  void read_rows_blocking(work w);
  void answer_rows(const work& w);
  void note_missed_rows(const open_files::entry& file, std::span<const std::uint64_t> offsets, std::uint32_t row_nbytes);
  template <class EachFile>
  static void by_file(std::vector<work>& works, EachFile each);
  void finish(std::span<work> read);
  void write_group();
  void begin_write(work& w, open_files::entry* file);
  static bool can_join(const work& w);
  static void sort_writes(std::vector<work>& writes);
  void write_joined(std::span<const work> writes);
  void write_each(const work& w);
  int write_runs(const work& w, std::uint32_t* nwritten);
  void finish_write(const work& w, int error, std::uint32_t nwritten, std::string_view text = {});

  bool run_call(work& w);
  void run_slow_group();
  void open_file(const work& w, const std::string& path);
  int try_open(const work& w, const std::string& path, bool again, reply& out, source_kind& kind, std::string& why);
  bool has_other_size(const std::string& path, const reply& opened, std::uint64_t nclosed);
  bool has_ended_meanwhile(const open_files::entered& opened, source_kind kind, std::uint64_t nrenamed, std::uint64_t nclosed);
  bool is_written(const std::string& path, bool once);
  void end_versions(const store::file_info& info);
  void end_versions_of_others(std::uint32_t handle);
  int cut(reply& out);
  void note_written(const store::path_status& lost, std::uint64_t& place, std::uint64_t& once_place);
  int status_of(const std::string& path, reply& out);
  std::uint32_t read_along(const work& w, const store::open_file& file, read_path& how);
  void call_on_path(const work& w, const std::string& path);
  void call_on_file(work& w, open_files::entry* file);
  void list_extents(work& w, open_files::entry* file);
  void close_file(const work& w);

  void fail(const work& w, int error, std::string_view text = {});
  // Answers with the error, without the log.
  void refuse(const work& w, int error);
  void fail_read(const work& w, int error, std::string_view text = {});
  void fail(const work& w, std::string_view path, int error, std::string_view text);
  void answer(const work& w, const reply& out);
  const transport::row_buffers& row_buffers() const { return *core_.rows.load(std::memory_order_acquire); }  // once they were made
  std::byte* payload_of(const work& w) const { return core_.requests.payload(w.index); }
  std::uint64_t deep_nap_ns();

  core& core_;
  tally& counts_;
  const std::uint32_t id_;

  // Asynchronous reads in flight, by tag.
  uring ring_;
  bool have_ring_ = false;
  read_answers answers_;
  std::vector<std::unique_ptr<work>> rows_;  // requests of rows that are being read
  std::vector<flight> in_flight_;
  std::vector<std::uint32_t> free_tags_;
  std::uint32_t nin_flight_ = 0, noverdue_ = 0;
  std::uint32_t nremote_ = 0;    // of those in flight: reads of files that may hang, for which the kernel uses threads
  std::uint32_t nby_store_ = 0;  // of those in flight: reads that the store answers
  std::uint64_t looked_ns_ = 0;

  blocked_call blocked_;

  // The file system of the file that was opened last: other files in it need no new test, if it is the file system of the store's
  // root. (The device number of any other file system may be given to a new one once that is gone.)
  struct {
    std::uint64_t device = ~std::uint64_t{0};
    read_path how = read_path::nowait;
    bool remote = false;
  } known_;

  // Kept between calls for their memory; empty between calls.
  std::vector<work> quick_taken_, writes_taken_, calls_taken_, group_, read_, write_;
  std::vector<std::uint32_t> mask_;
  std::array<std::uint64_t, transport::row_buffers::most_rows> offsets_{};
  // How the reads of the file in hand are done: by which descriptor, and from which mapping, if any. ncalls_: of preadv.
  int reads_by_ = -1;
  own_descriptors* own_ = nullptr;
  std::uint32_t ncalls_ = 0;
  bool allows_bus_errors_ = false;
  store::readable_mapping* pages_from_ = nullptr;
  std::vector<iovec> parts_;
  std::array<std::byte, 2048> between_{};  // receives bytes between rows

  std::mutex lock_;                      // of the queues
  queue quick_, writes_, calls_, slow_;  // reads; writes; opens and other calls; reads and writes that block

  std::uint32_t nidle_ = 0;  // rounds without work
  std::uint64_t idle_since_ns_ = 0;
  std::uint64_t deep_nap_ns_ = 0, nap_cpu_ns_ = 0;
  std::uint32_t nnaps_ = 0;
};

}  // namespace gpufs::service
