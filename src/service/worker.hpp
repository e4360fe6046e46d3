// One thread of a service.
#pragma once
#include <atomic>
#include <deque>
#include <mutex>
#include <string_view>
#include <vector>

#include "core.hpp"
#include "uring.hpp"

namespace gpufs::service {

// A request on its way through a worker.
struct work {
  opcode op = opcode::none;
  std::uint32_t index = 0, sequence = 0;  // of its slot
  std::uint32_t flags = 0, number = 0;    // open
  std::uint32_t nbytes = 0;               // read: inside the file; open: of the path
  std::uint32_t done = 0;                 // read: bytes that are there
  std::int64_t offset = 0;
  open_files::ref file;  // read
};

// Takes requests from the rings, its own first; does the quick ones (reads from the page cache, submitting asynchronous
// reads) in small groups, and blocking ones one at a time. What it has taken and not begun lies in two queues that the other
// workers steal from.
class worker {
 public:
  worker(core& shared, std::uint32_t id) : core_(shared), counts_(shared.tallies[id]), id_(id) {}
  void run();  // until core.exiting and nothing is left

 private:
  static constexpr std::size_t group_size = 8;  // quick reads between two looks at the rings; about 10 us

  // Each says whether it found something to do.
  bool take_batch();
  bool run_quick();
  bool run_slow();
  bool reap();
  void idle();

  void admit(const taken_request& taken);
  bool queue_admitted();
  bool pop_quick(worker& from);
  bool pop_slow(worker& from, work* out);
  void push_slow(work w);

  void read_group();
  bool read_cached(work& w);
  void read_async(work w);
  void submit_read(std::uint32_t tag);
  void read_blocking(const work& w);
  void finish(std::vector<work>& read);
  void open_file(const work& w);

  void fail(const work& w, int error, std::string_view text = {});
  void answer(const work& w, const reply& out);
  std::byte* payload_of(const work& w) const { return core_.requests.payload(w.index); }
  std::uint64_t deep_nap_ns();

  core& core_;
  tally& counts_;
  const std::uint32_t id_;

  // Asynchronous reads: what is in flight, by tag.
  uring ring_;
  bool have_ring_ = false;
  std::vector<work> in_flight_;
  std::vector<std::uint32_t> free_tags_;
  std::uint32_t nin_flight_ = 0;

  // Kept between calls for their memory; empty outside of them.
  std::vector<work> quick_taken_, slow_taken_, group_, read_;

  std::mutex lock_;  // of the queues
  std::deque<work> quick_, slow_;
  std::atomic<std::uint32_t> nquick_{0}, nslow_{0};  // their sizes, for looking without the lock

  std::uint32_t nidle_ = 0;  // rounds without work
  std::uint64_t idle_since_ns_ = 0;
  std::uint64_t deep_nap_ns_ = 0, nap_cpu_ns_ = 0;
  std::uint32_t nnaps_ = 0;
};

}  // namespace gpufs::service
