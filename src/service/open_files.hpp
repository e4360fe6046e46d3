// The host's open-file table: handles that a device may forge, references that keep a file open while it is read.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpufs/store/store.hpp"

namespace gpufs::service {

// How the bytes of a file are best read.
enum class read_path : std::uint8_t {
  nowait,  // preadv2(RWF_NOWAIT), and what is not in the page cache asynchronously
  memory,  // pread: a file system in memory, which does not block (and has no RWF_NOWAIT)
  async,   // asynchronously at once: the file system has no RWF_NOWAIT, or O_DIRECT
  call,    // open_file::pread
};

class open_files {
 public:
  struct entry {
    // Generation (upper half; 0: not open) and references (lower half; one is the table's while open). At 0 the entry is free.
    std::atomic<std::uint64_t> state{0};
    std::uint32_t index = 0, generation = 0;
    std::uint32_t pull_place = 0;  // in the list of open pull files
    std::unique_ptr<store::open_file> file;
    std::string path;  // stays when the file is closed: changes, with `generation`, under the entry's part's lock
    std::uint32_t device_number = 0;
    std::atomic<read_path> how{read_path::call};
    std::atomic<std::uint32_t> nblocked{0};  // workers inside a blocking read of it
    std::atomic<bool> stale{false};          // its change was reported
  };

  // Keeps an entry's file open; empty when default-constructed.
  class ref {
   public:
    ref() = default;
    ref(open_files* table, entry* e) : table_(table), entry_(e) {}
    ref(ref&& other) noexcept : table_(other.table_), entry_(std::exchange(other.entry_, nullptr)) {}
    ref& operator=(ref&& other) noexcept {
      if (this != &other) {
        reset();
        table_ = other.table_;
        entry_ = std::exchange(other.entry_, nullptr);
      }
      return *this;
    }
    ~ref() { reset(); }
    explicit operator bool() const { return entry_ != nullptr; }
    entry* operator->() const { return entry_; }
    entry* get() const { return entry_; }
    void reset() {
      if (entry_ != nullptr) table_->release(*std::exchange(entry_, nullptr));
    }

   private:
    open_files* table_ = nullptr;
    entry* entry_ = nullptr;
  };

  explicit open_files(std::uint32_t max_open_files);
  ~open_files() { clear(); }

  bool full() const { return nopen_.load(std::memory_order_relaxed) >= max_; }
  std::uint32_t size() const { return nopen_.load(std::memory_order_relaxed); }

  // 0 and a handle (never 0), or -EMFILE.
  int insert(std::unique_ptr<store::open_file> file, std::string path, std::uint32_t device_number, read_path how,
             std::uint32_t* handle);
  // The open file, or an empty ref for a handle that is none. Lock-free.
  ref acquire(std::uint32_t handle);
  // One more reference to a file that the caller keeps open.
  ref share(entry& e) {
    e.state.fetch_add(1, std::memory_order_relaxed);
    return {this, &e};
  }
  // The path behind a handle; also of a closed file, until its entry is used again.
  std::optional<std::string> path_of(std::uint32_t handle);
  // 0 or -EBADF. The file closes with the last reference.
  int close(std::uint32_t handle);
  // Closes all.
  void clear();
  // Up to `most` handles of open pull files, going round from *cursor.
  std::vector<std::uint32_t> pull_handles(std::size_t most, std::size_t* cursor) const;
  std::size_t npull() const { return npull_.load(std::memory_order_relaxed); }
  std::uint32_t handle_of(const entry& e) const { return e.generation << index_bits_ | e.index; }

 private:
  static constexpr std::uint32_t chunk_size = 1024;
  // An entry is used again only after this many others were freed, so that a stale handle meets its generation late.
  static constexpr std::size_t reuse_distance = 256;
  // Free entries lie in parts with locks of their own, so that threads that open and close many files seldom meet: index i in
  // part i mod nparts.
  static constexpr std::uint32_t nparts = 16;
  struct alignas(64) free_part {
    std::mutex lock;
    std::deque<std::uint32_t> indices;
  };
  using chunk = std::array<entry, chunk_size>;

  static constexpr std::uint32_t none = ~0u;
  std::uint32_t take_free();
  std::uint32_t take_unused();
  entry* find(std::uint32_t index) const;
  void release(entry& e);
  void drop_from_pulls(entry& e);

  const std::uint32_t max_;
  const unsigned index_bits_;
  std::unique_ptr<std::atomic<chunk*>[]> chunks_;
  alignas(64) std::atomic<std::uint32_t> nopen_{0};  // written by all; what is above is read by all
  std::atomic<std::size_t> npull_{0};
  std::array<free_part, nparts> free_;
  mutable std::mutex lock_;  // of what follows
  std::vector<std::unique_ptr<chunk>> owned_;
  std::atomic<std::uint32_t> nused_{0};  // entries that were ever used; grows under the lock
  std::vector<std::uint32_t> pulls_;     // indices of open pull files
};

}  // namespace gpufs::service
