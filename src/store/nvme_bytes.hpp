// SPDX-License-Identifier: Apache-2.0
// The bytes of files that are made of namespaces of NVMe controllers: how the host reads, writes and flushes them, and where
// kernels find them (docs/design/nvme.md, "Where a file's bytes lie").
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../nvme/controller.hpp"
#include "gpufs/nvme/detail/file_layout.hpp"
#include "gpufs/simt/detail/device_memory.hpp"
#include "gpufs/simt/device_array.hpp"

namespace gpufs::store {

inline constexpr std::uint64_t most_file_nbytes = std::numeric_limits<std::int64_t>::max();  // offsets have a sign

struct nvme_device {
  nvme_device(simt::platform& machine, std::shared_ptr<nvme::controller_access> to, const nvme::controller_options& options)
      : access(std::move(to)), driver(*access, machine, options) {}

  std::shared_ptr<nvme::controller_access> access;
  nvme::controller driver;
};

std::string blocks_of(const nvme::namespace_facts& facts);  // how many, in words

// A namespace, as it was when the store was made.
struct nvme_namespace {
  nvme_namespace(nvme_device& device, const nvme::namespace_facts& seen, std::string named)
      : of(device), facts(seen), name(std::move(named)) {}

  // Whether it is so still: 0, or -errno and why not. Asks the controller, unless that was done a moment ago: else programs that
  // open thousands of files would wait for its admin queue, which takes one command at a time.
  int check(std::string* why);

  nvme_device& of;
  const nvme::namespace_facts facts;
  const std::string name;
  const nvme::namespace_layout* layout = nullptr;  // for kernels; null: it cannot be used

 private:
  static constexpr std::chrono::milliseconds believed_for{10};
  std::mutex mutex_;
  std::optional<std::chrono::steady_clock::time_point> seen_;  // when it was so
};

// Bytes of a namespace that lie together. They begin and end with blocks.
struct nvme_part {
  nvme_namespace* space;
  std::uint64_t begin, nbytes;
  std::string name;  // of the file that has just these bytes

  bool meets(const nvme_part& other) const {
    return space == other.space && begin < other.begin + other.nbytes && other.begin < begin + nbytes;
  }
};

// Equal copies of some bytes, or one: any host thread. A copy that cannot be written or flushed while another one can is left out:
// from then on nobody reads it.
class nvme_column {
 public:
  nvme_column(std::vector<nvme_part> copies, simt::platform& machine);

  std::uint32_t ncopies() const { return static_cast<std::uint32_t>(copies_.size()); }
  const nvme_part& part(std::uint32_t i) const { return copies_[i]; }
  nvme::file_part layout(std::uint32_t i) const {
    return {part(i).space->layout, part(i).begin, left_out_ ? left_out_->get() + i : nullptr};
  }

  // 0 or -errno, as nvme::controller has them. A read asks `first` first, then the other copies; its error is that of the first one
  // asked. A write or flush fails where no copy succeeds; then copies may differ in the bytes that were to be written.
  int read(std::uint64_t offset, std::span<std::byte> to, std::uint32_t first);
  int write(std::uint64_t offset, std::span<const std::byte> from);
  int flush();
  // Whether some copy's namespace is as it was; others are left out. 0, or the first one's -errno and why.
  int check(std::string* why);
  std::vector<std::string> left_out() const;  // names of copies

 private:
  struct range {
    std::uint64_t begin, end;
    bool operator==(const range&) const = default;
  };
  class turn;
  static constexpr int not_tried = 1;
  bool is_left_out(std::size_t i) const;
  template <class Work>
  std::vector<int> each_copy(Work work) const;
  // By what a call gave of each copy. 0: all that are not left out have it now; or the first error, and all stay.
  int leave_out(const std::vector<int>& errors);

  const std::vector<nvme_part> copies_;
  // Of several copies a word each: not 0, it is left out. Pinned memory, as a copy to the device's may wait for a kernel that waits
  // for the host, and may fail.
  std::optional<simt::pinned_array<std::uint32_t>> left_out_;
  std::mutex mutex_;  // of who leaves copies out, and of what is below
  std::condition_variable changes_;
  std::vector<range> writing_;  // of several copies: no two calls write the same bytes, or copies would differ
};

// A file's: columns that all have the same number of copies, in units that go to them in turn.
class nvme_bytes {
 public:
  // unit_shift: as nvme::file_shape's. nbytes: of the file, which the columns have.
  nvme_bytes(std::vector<std::shared_ptr<nvme_column>> columns, std::uint32_t unit_shift, std::uint64_t nbytes,
             simt::device_memory& memory);

  std::uint64_t nbytes() const { return nbytes_; }
  const nvme::file_layout* layout() const { return layout_; }  // device memory
  const std::vector<std::shared_ptr<nvme_column>>& columns() const { return columns_; }

  // Within the file. As nvme_column's; of a range in several units the first error, after which no more is read or written.
  int read(std::uint64_t offset, std::span<std::byte> to);
  int write(std::uint64_t offset, std::span<const std::byte> from);
  int flush();                   // all columns, also after an error
  bool has_host_queues() const;  // of each of its controllers
  int check(std::string* why);
  std::vector<std::string> left_out() const;

 private:
  const std::vector<std::shared_ptr<nvme_column>> columns_;
  nvme::file_shape shape_{};
  const std::uint64_t nbytes_;
  std::vector<nvme_namespace*> spaces_;  // each once
  const nvme::file_layout* layout_;
};

}  // namespace gpufs::store
