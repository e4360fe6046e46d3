// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

#include "apps/arrays/row_pieces.hpp"
#include "apps/arrays/rows.hpp"
#include "apps/bus_guard.hpp"
#include "apps/helper_threads.hpp"
#include "apps/parallel.hpp"

namespace gpufs::apps::arrays {
namespace {

constexpr std::size_t part_nbytes = 128 << 10;
constexpr std::size_t alone_nbytes = 512 << 10;  // copied by the time that helpers have woken up

// How many rows are on their way from memory before the one that is copied, and how many bytes of each: what follows in a longer
// row the processor fetches by itself. Rows at random, of 512 B and of 4 KiB, come 1.5 times as fast so, by one thread.
constexpr std::size_t rows_ahead = 16, ahead_nbytes = 1024;

// Calls work(first, end) for parts of n things of so many bytes each, from several threads.
template <class Work>
void in_parts(std::size_t n, std::uint64_t nbytes_each, const Work& work) {
  const auto worth = [&](std::size_t nbytes) { return std::max<std::size_t>(1, nbytes / std::max<std::uint64_t>(1, nbytes_each)); };
  const std::size_t here = worth(part_nbytes);
  if (n <= worth(alone_nbytes)) return work(std::size_t{0}, n);
  parallel_for(
      std::min(16u, thread_count(0)), (n + here - 1) / here,
      [&](std::size_t part) { work(part * here, std::min(n, (part + 1) * here)); }, helper_threads::of_process());
}

class mapped_rows final : public row_file {
 public:
  mapped_rows(const std::string& path, const row_place& place, bool writable)
      : pieces_(place), nbytes_(pieces_.file_end()), file_(path, writable ? O_RDWR : O_RDONLY, nbytes_) {
    if (nbytes_ == 0) return;
    void* const at = mmap(nullptr, nbytes_, PROT_READ, MAP_SHARED, file_.descriptor(), 0);
    if (at == MAP_FAILED) file_.fail(errno, std::strerror(errno));
    data_ = static_cast<const std::byte*>(at);
  }
  ~mapped_rows() override {
    if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), nbytes_);
  }

  void read(const row_list& rows, std::byte* out) override {
    const std::uint64_t last = end_of(rows), row_nbytes = pieces_.row_nbytes();
    std::atomic<bool> whole{true};
    if (rows.ids == nullptr) {  // as bytes, whatever the rows' size
      const byte_map map = pieces_.map();
      const std::uint64_t begin = rows.first * row_nbytes;
      in_parts(rows.n * row_nbytes, 1, [&](std::size_t first, std::size_t end) {
        const bool good = bus_guarded([&] {
          while (first < end) {
            const byte_run run = map.at(begin + first);
            const std::size_t nbytes = std::min<std::size_t>(run.nbytes, end - first);
            std::memcpy(out + first, data_ + run.offset, nbytes);
            first += nbytes;
          }
        });
        if (!good) whole = false;
      });
    } else if (row_nbytes != 0) {
      in_parts(rows.n, row_nbytes, [&](std::size_t first, std::size_t end) {
        if (!bus_guarded([&] { gather(rows, first, end, out); })) whole = false;
      });
    }
    file_.check(last);  // also what lay behind the end of a file that was cut in its page's middle: it read as zeros
    if (!whole) file_.fail(EIO, std::strerror(EIO));
  }

  // By pwrite(2), which says what went wrong; stores into the mapping could not.
  void write(const row_list& rows, const std::byte* src) override {
    (void)end_of(rows);
    file_.check();  // or a write behind the end would make the file longer
    const std::uint64_t row_nbytes = pieces_.row_nbytes();
    if (row_nbytes == 0) return;
    in_parts(rows.n, row_nbytes, [&](std::size_t first, std::size_t end) {
      for (std::size_t i = first; i < end;) {
        const byte_run run = pieces_.map().at(row(rows, i) * row_nbytes);
        const std::size_t most = std::min<std::size_t>(end, i + run.nbytes / row_nbytes);
        std::size_t next = i + 1;  // rows that lie together go together
        while (next < most && row(rows, next) == row(rows, i) + (next - i)) ++next;
        write_whole(src + i * row_nbytes, (next - i) * row_nbytes, run.offset);
        i = next;
      }
    });
  }

  void prefetch(const row_list& rows, const std::atomic<bool>& stop) override {
    const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    std::uint64_t begin = 0, end = 0;  // what lies together is asked for at once
    const auto ask = [&] {
      if (begin < end) madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_WILLNEED);
    };
    for (std::uint64_t i = 0; i < rows.n && !stop.load(std::memory_order_relaxed); ++i) {
      const std::uint64_t number = row(rows, i);
      if (number >= pieces_.nrows() || pieces_.row_nbytes() == 0) continue;
      const std::uint64_t offset = pieces_.map().at(number * pieces_.row_nbytes()).offset;
      const std::uint64_t first = offset / page * page, last = offset + pieces_.row_nbytes();
      if (first > end || first < begin) {
        ask();
        begin = first;
        end = last;
      }
      end = std::max(end, last);
      constexpr std::uint64_t most = 8 << 20;  // so that stopping does not take long
      if (end - begin > most) {
        for (; end - begin > most && !stop.load(std::memory_order_relaxed); begin += most)
          madvise(const_cast<std::byte*>(data_) + begin, most, MADV_WILLNEED);
      }
    }
    ask();
  }

  void flush(bool durable) override {
    file_.check();
    if (durable && fdatasync(file_.descriptor()) != 0) file_.fail(errno, std::strerror(errno));
  }
  void close() override {}

 private:
  // Of a number that below 0 counts from the end. Beyond all rows if there is none.
  static std::uint64_t from_begin(std::int64_t id, std::uint64_t nrows) {
    return static_cast<std::uint64_t>(id) + (id < 0 ? nrows : 0);
  }
  std::uint64_t row(const row_list& rows, std::uint64_t i) const {
    if (rows.ids == nullptr) return rows.first + i;
    return from_begin(rows.ids[i], pieces_.nrows());
  }
  // How long a file has all of them. std::out_of_range: there are not all.
  std::uint64_t end_of(const row_list& rows) const {
    if (rows.n == 0) return 0;
    std::uint64_t last = row(rows, rows.n - 1);
    for (std::uint64_t i = 0; rows.ids != nullptr && i < rows.n; ++i) last = std::max(last, row(rows, i));
    if (last >= pieces_.nrows()) throw std::out_of_range("there is no row " + std::to_string(last));
    return pieces_.file_end(last);
  }
  // Copies the rows with these places in the list.
  [[gnu::noinline]] void gather(const row_list& list, std::size_t first, std::size_t end, std::byte* out) const {
    const row_list rows = list;  // copies, which no store to `out` can change
    const byte_map map = pieces_.map();
    const std::byte* const data = data_;
    const std::uint64_t nbytes = pieces_.row_nbytes(), nrows = pieces_.nrows();
    std::array<std::uint64_t, rows_ahead> offsets;  // of the next rows, whose bytes are asked for
    const auto ask = [&](std::size_t i) {
      const std::uint64_t offset = map.at(from_begin(rows.ids[i], nrows) * nbytes).offset;
      offsets[i % rows_ahead] = offset;
      for (std::uint64_t k = 0; k < std::min<std::uint64_t>(nbytes, ahead_nbytes); k += 64)
        __builtin_prefetch(data + offset + k, 0, 2);
    };
    for (std::size_t i = first; i < std::min(end, first + rows_ahead); ++i) ask(i);
    for (std::size_t i = first; i < end; ++i) {
      const std::uint64_t offset = offsets[i % rows_ahead];
      if (i + rows_ahead < end) ask(i + rows_ahead);
      std::memcpy(out + i * nbytes, data + offset, nbytes);
    }
  }
  void write_whole(const std::byte* src, std::uint64_t nbytes, std::uint64_t offset) const {
    while (nbytes != 0) {
      const ssize_t done = pwrite(file_.descriptor(), src, nbytes, static_cast<off_t>(offset));
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) file_.fail(errno, std::strerror(errno));
      src += done;
      nbytes -= static_cast<std::uint64_t>(done);
      offset += static_cast<std::uint64_t>(done);
    }
  }

  row_pieces pieces_;
  std::uint64_t nbytes_;  // of the file, that is mapped
  guarded_file file_;
  const std::byte* data_ = nullptr;
};

class cpu_mount final : public row_mount {
 public:
  explicit cpu_mount(std::string root) : root_(std::move(root)) {}

  std::unique_ptr<row_file> open(const std::string& path, const row_place& place, bool writable) override {
    return std::make_unique<mapped_rows>(root_ + "/" + path, place, writable);
  }

  void read_files(std::span<const whole_file> files, std::byte* out, bool /*on_device*/) override {
    std::vector<int> errors(files.size());
    constexpr std::size_t nbytes_of_an_open = 16 << 10;  // what could be copied meanwhile
    in_parts(files.size(), nbytes_of_an_open, [&](std::size_t first, std::size_t end) {
      for (std::size_t i = first; i < end; ++i) errors[i] = read_whole(files[i], out + files[i].at);
    });
    for (std::size_t i = 0; i < files.size(); ++i) {
      if (errors[i] != 0) throw file_error(errors[i], std::strerror(errors[i]), root_ + "/" + files[i].path);
    }
  }
  std::string way() const override { return "cpu: host threads copy from a mapping of the file"; }

 private:
  // 0 or an errno.
  int read_whole(const whole_file& file, std::byte* out) const {
    const int fd = ::open((root_ + "/" + file.path).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);  // it may lead out of the root
    if (fd < 0) return errno;
    int error = 0;
    std::uint64_t done = 0;
    while (error == 0 && done < file.nbytes) {
      const ssize_t got = ::read(fd, out + done, file.nbytes - done);
      if (got < 0 && errno != EINTR) error = errno;
      if (got == 0) error = ESTALE;
      if (got > 0) done += static_cast<std::uint64_t>(got);
    }
    struct stat status {};
    if (error == 0 && (fstat(fd, &status) != 0 || static_cast<std::uint64_t>(status.st_size) != file.nbytes)) error = ESTALE;
    ::close(fd);
    return error;
  }

  std::string root_;
};

}  // namespace

std::unique_ptr<row_mount> make_mount_cpu(const std::string& root) { return std::make_unique<cpu_mount>(root); }

}  // namespace gpufs::apps::arrays
