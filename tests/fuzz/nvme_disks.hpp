// SPDX-License-Identifier: Apache-2.0
// What a file over NVMe lies on: a namespace, a partition, a stripe, a mirror or a stripe of mirrors, over a few controllers in
// software. Where its bytes are is worked out here once more, unit by unit, so that nothing is taken from the store.
#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "file/harness.hpp"
#include "fuzz/program.hpp"
#include "gpufs/nvme/soft_controller.hpp"
#include "gpufs/store/nvme_store.hpp"
#include "nvme/tables.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {
namespace fuzz {

inline nvme_shape draw_shape(random_source& draw) {
  nvme_shape s;
  if (draw.percent(60)) s.ncolumns = static_cast<unsigned>(draw.between(2, 4));
  if (draw.percent(40)) s.ncopies = 2;
  s.in_partitions = draw.percent(40);
  s.ncontrollers = static_cast<unsigned>(draw.between(1, std::min(s.nparts(), 3u)));
  s.unit_nbytes = 4096u << draw.below(3);
  return s;
}

class nvme_disks {
 public:
  using make_disk = std::function<std::shared_ptr<nvme::soft_controller>(nvme::soft_options)>;
  // file: its bytes at first, as many as shape.whole gives. make: of options that say how much a disk has.
  nvme_disks(const nvme_shape& shape, const std::vector<std::byte>& file, random_source& draw, const make_disk& make)
      : shape_(shape), nbytes_(file.size()), spaces_(shape.in_partitions ? shape.ncontrollers : shape.nparts()) {
    const std::uint64_t in_column = nbytes_ / shape_.ncolumns;
    const std::uint64_t least = draw.below(shape_.ncolumns);
    for (unsigned c = 0; c < shape_.ncolumns; ++c) {
      // More than the file takes of it, but for one column no whole unit more.
      const std::uint64_t more = draw.below(c == least ? shape_.unit_nbytes / 4096 : 8) * 4096;
      const std::uint64_t n = in_column + (shape_.ncolumns == 1 ? 0 : more);
      for (unsigned copy = 0; copy < shape_.ncopies; ++copy) parts_.push_back({.nbytes = n});
    }
    for (unsigned i = 0; i < shape_.ncontrollers; ++i) add_controller(i, draw, make);
    put(file, spaces_);
    for (std::size_t i = 0; i < spaces_.size(); ++i) disk_of(i).write_image(0, spaces_[i], nsid_of(i));
  }

  const std::vector<std::shared_ptr<nvme::soft_controller>>& disks() const { return disks_; }
  // What the store is to make of the parts, and the name that the file has then.
  std::vector<store::nvme_volume> volumes() const {
    std::vector<store::nvme_volume> made;
    const auto unit = static_cast<std::uint32_t>(shape_.unit_nbytes);
    std::vector<std::string> columns;
    for (unsigned c = 0; c < shape_.ncolumns; ++c) {
      std::vector<std::string> copies;
      for (unsigned copy = 0; copy < shape_.ncopies; ++copy) copies.push_back(name_of(c * shape_.ncopies + copy));
      if (shape_.ncopies > 1) made.push_back({numbered("mirror", c), store::nvme_volume_kind::mirror, copies, unit});
      columns.push_back(shape_.ncopies > 1 ? made.back().name : copies[0]);
    }
    if (shape_.ncolumns > 1) made.push_back({"stripe", store::nvme_volume_kind::stripe, columns, unit});
    return made;
  }
  std::string name() const {
    const auto made = volumes();
    return made.empty() ? name_of(0) : made.back().name;
  }

  // The file's bytes now, by the first copies.
  std::vector<std::byte> file() const {
    const auto now = images();
    std::vector<std::byte> all(nbytes_);
    each_unit([&](std::uint64_t at, std::uint64_t n, unsigned column, std::uint64_t in_column) {
      const part& of = parts_[std::size_t{column} * shape_.ncopies];
      std::copy_n(now[of.space].begin() + static_cast<std::ptrdiff_t>(of.begin + in_column), n,
                  all.begin() + static_cast<std::ptrdiff_t>(at));
    });
    return all;
  }
  // Of copies that differ, and bytes beside the file's that are not what they were; or nothing.
  std::string wrong() const {
    auto wanted = spaces_;
    put(file(), wanted);
    const auto now = images();
    for (std::size_t i = 0; i < now.size(); ++i) {
      const auto differs = std::mismatch(now[i].begin(), now[i].end(), wanted[i].begin()).first;
      if (differs == now[i].end()) continue;
      return numbered("copies differ, or bytes beside the file were written: byte ",
                      static_cast<std::uint64_t>(differs - now[i].begin())) +
             numbered(" of space ", i);
    }
    return "";
  }

 private:
  struct part {
    std::uint64_t nbytes;
    std::size_t space = 0;    // whose bytes it has,
    std::uint64_t begin = 0;  // from there on
  };
  using bytes_of_spaces = std::vector<std::vector<std::byte>>;

  // Part p is of controller p % ncontrollers, its partition or namespace p / ncontrollers + 1. Spaces have the same order.
  std::string name_of(unsigned p) const {
    const unsigned i = p % shape_.ncontrollers, number = p / shape_.ncontrollers + 1;
    return (shape_.ncontrollers == 1 ? "" : numbered("c", i)) + (shape_.in_partitions ? "n1p" : "n") + std::to_string(number);
  }
  nvme::soft_controller& disk_of(std::size_t space) const { return *disks_[space % shape_.ncontrollers]; }
  std::uint32_t nsid_of(std::size_t space) const { return static_cast<std::uint32_t>(space / shape_.ncontrollers + 1); }

  void add_controller(unsigned i, random_source& draw, const make_disk& make) {
    nvme::soft_options o{.block_shift = draw.percent(70) ? 9u : 12u, .nnamespaces = 0};
    const std::uint32_t block = 1u << o.block_shift;
    if (shape_.in_partitions) {
      std::uint64_t end = table_image(0, block).first_usable();
      std::vector<table_image::entry> entries;
      for (unsigned p = i; p < parts_.size(); p += shape_.ncontrollers) {
        const std::uint64_t first = end + draw.below(20);
        end = first + parts_[p].nbytes / block;
        entries.push_back({first, end - 1});
        parts_[p].space = i;
        parts_[p].begin = first * block;
      }
      end += draw.below(20);
      const std::uint64_t behind = table_image(0, block).array_nblocks() + 1;
      table_image image(end + behind, block);
      image.bytes = content(draw.word(), 0, image.bytes.size());
      std::fill_n(image.bytes.begin(), image.first_usable() * block, std::byte{});
      std::fill(image.bytes.begin() + static_cast<std::ptrdiff_t>(end * block), image.bytes.end(), std::byte{});
      image.put_gpt(entries);
      spaces_[i] = std::move(image.bytes);
      o.nnamespaces = 1;
      o.nblocks = end + behind;
      disks_.push_back(make(o));
      return;
    }
    o.nblocks = 0;
    for (std::size_t p = i; p < parts_.size(); p += shape_.ncontrollers, ++o.nnamespaces) {
      parts_[p].space = p;
      spaces_[p] = content(draw.word(), 0, parts_[p].nbytes);
      o.nblocks = std::max(o.nblocks, parts_[p].nbytes / block);
    }
    disks_.push_back(make(o));
    for (std::size_t p = i; p < parts_.size(); p += shape_.ncontrollers) disks_[i]->resize(parts_[p].nbytes / block, nsid_of(p));
  }

  // each(where in the file, how many bytes, of which column, where in it)
  template <class Each>
  void each_unit(Each each) const {
    const std::uint64_t unit = shape_.ncolumns == 1 ? nbytes_ : shape_.unit_nbytes;
    unsigned column = 0;
    std::uint64_t row = 0;
    for (std::uint64_t at = 0; at < nbytes_; at += unit) {
      each(at, unit, column, row * unit);
      if (++column == shape_.ncolumns) {
        column = 0;
        ++row;
      }
    }
  }
  void put(const std::vector<std::byte>& file, bytes_of_spaces& into) const {
    each_unit([&](std::uint64_t at, std::uint64_t n, unsigned column, std::uint64_t in_column) {
      for (unsigned copy = 0; copy < shape_.ncopies; ++copy) {
        const part& of = parts_[column * shape_.ncopies + copy];
        std::copy_n(file.begin() + static_cast<std::ptrdiff_t>(at), n,
                    into[of.space].begin() + static_cast<std::ptrdiff_t>(of.begin + in_column));
      }
    });
  }
  bytes_of_spaces images() const {
    bytes_of_spaces all;
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      all.push_back(disk_of(i).bytes(nsid_of(i)));
      all.back().resize(spaces_[i].size());  // what it had before resize
    }
    return all;
  }

  const nvme_shape shape_;
  const std::uint64_t nbytes_;
  std::vector<part> parts_;  // of column c those from c * ncopies on
  std::vector<std::shared_ptr<nvme::soft_controller>> disks_;
  bytes_of_spaces spaces_;  // namespaces, at first
};

}  // namespace fuzz
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
