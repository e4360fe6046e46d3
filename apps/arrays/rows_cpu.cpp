// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

#include "apps/arrays/rows.hpp"
#include "apps/bus_guard.hpp"
#include "apps/parallel.hpp"

namespace gpufs::apps::arrays {
namespace {

class mapped_rows final : public row_file {
 public:
  mapped_rows(const std::string& path, const row_place& place) : path_(path), place_(place) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) fail(std::strerror(errno));
    struct stat status {};
    const bool known = fstat(fd, &status) == 0;
    const std::uint64_t end = place.begin + place.row_nbytes * place.nrows;
    if (known && end <= static_cast<std::uint64_t>(status.st_size) && end != 0) {
      nbytes_ = end;
      data_ = mmap(nullptr, nbytes_, PROT_READ, MAP_SHARED, fd, 0);
    }
    const int error = errno;
    close(fd);
    if (!known || data_ == MAP_FAILED) {
      data_ = nullptr;
      fail(std::strerror(error));
    }
    if (data_ == nullptr && end != 0) fail("it ends before the array does");
  }
  ~mapped_rows() override {
    if (data_ != nullptr) munmap(data_, nbytes_);
  }

  void read(const std::int64_t* ids, std::size_t n, std::byte* out, bool) override {
    for (std::size_t i = 0; i < n; ++i) {
      if (ids[i] < 0 || static_cast<std::uint64_t>(ids[i]) >= place_.nrows)
        throw std::out_of_range("there is no row " + std::to_string(ids[i]));
    }
    // Parts that are worth a thread's start.
    constexpr std::size_t part_nbytes = 256 << 10;
    const std::size_t rows_a_part = std::max<std::size_t>(1, part_nbytes / std::max<std::uint64_t>(1, place_.row_nbytes));
    const std::size_t nparts = (n + rows_a_part - 1) / rows_a_part;
    const auto* const rows = static_cast<const std::byte*>(data_) + place_.begin;
    std::atomic<bool> whole{true};
    parallel_for(std::min(16u, thread_count(0)), nparts, [&](std::size_t part) {
      const std::size_t first = part * rows_a_part, end = std::min(n, first + rows_a_part);
      const bool good = bus_guarded([&] {
        for (std::size_t i = first; i < end; ++i) {
          std::memcpy(out + i * place_.row_nbytes, rows + static_cast<std::uint64_t>(ids[i]) * place_.row_nbytes,
                      place_.row_nbytes);
        }
      });
      if (!good) whole = false;
    });
    if (!whole) fail("it was truncated while it was read");
  }
  std::string way() const override { return "cpu: host threads copy from a mapping of the file"; }

 private:
  [[noreturn]] void fail(const std::string& why) const { throw error("cannot read '" + path_ + "': " + why); }

  std::string path_;
  row_place place_;
  void* data_ = nullptr;
  std::size_t nbytes_ = 0;
};

}  // namespace

std::unique_ptr<row_file> open_rows_cpu(const std::string& path, const row_place& place) {
  return std::make_unique<mapped_rows>(path, place);
}

}  // namespace gpufs::apps::arrays
