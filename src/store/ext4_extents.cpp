// SPDX-License-Identifier: Apache-2.0
// Where the bytes of ext4's files are: extent trees, block maps, inodes.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>

#include "ext4_files.hpp"
#include "read_loop.hpp"

namespace gpufs::store {
namespace {

constexpr std::uint32_t most_depth = 5;                  // of an extent tree, as Linux has it
constexpr std::size_t most_runs = std::size_t{1} << 24;  // of a file, which takes 1 GB to know

struct frees_extents {
  void operator()(ext2_extent_handle_t handle) const { ::ext2fs_extent_free(handle); }
};

}  // namespace

std::int64_t read_contents(const ext4_contents& of, std::int64_t nbytes, const ext4_device::read_bytes& read,
                           std::span<std::byte> dst, std::int64_t offset) {
  if (offset < 0) return -EINVAL;
  const std::size_t n = clip(dst.size(), offset, nbytes);
  if (n == 0) return 0;
  if (of.is_inline) {
    std::memcpy(dst.data(), of.bytes.data() + offset, n);
    return static_cast<std::int64_t>(n);
  }
  for (std::size_t done = 0; done < n;) {
    const nvme::extent_run run =
        nvme::find_extent(of.runs.data(), of.runs.size(), static_cast<std::uint64_t>(offset) + done, n - done);
    const auto part = dst.subspan(done, run.nbytes);
    if (run.is_zeros) {
      std::memset(part.data(), 0, part.size());
    } else if (const int error = read(run.begin, part); error != 0) {
      return error;
    }
    done += part.size();
  }
  return static_cast<std::int64_t>(n);
}

bool ext4_files::add_run(std::vector<extent>* to, std::uint64_t first, std::uint64_t place, std::uint64_t nblocks,
                         std::uint32_t flags) const {
  const std::uint64_t all = ::ext2fs_blocks_count(fs_->super), block = fs_->blocksize;
  if (to->size() == most_runs || nblocks == 0 || first + nblocks > std::uint64_t{1} << 32 ||
      place <= fs_->super->s_first_data_block || place > all || nblocks > all - place) {
    return false;
  }
  const extent made{static_cast<std::int64_t>(first * block), static_cast<std::int64_t>(place * block),
                    static_cast<std::int64_t>(nblocks * block), flags, 0};
  if (!to->empty()) {
    extent& before = to->back();
    if (made.offset < before.offset + before.nbytes) return false;
    if (made.offset == before.offset + before.nbytes && made.device_offset == before.device_offset + before.nbytes &&
        made.flags == before.flags) {
      before.nbytes += made.nbytes;
      return true;
    }
  }
  to->push_back(made);
  return true;
}

int ext4_files::contents_locked(const ext4_node& node, ext4_contents* out, std::string* why) {
  *out = {};
  const std::uint32_t flags = node.inode.i_flags;
  const auto refuse = [&](const char* is) {
    *why = std::string(S_ISDIR(node.status.mode) ? "the directory " : "the file ") + is;
    return -EOPNOTSUPP;
  };
  if ((flags & EXT4_ENCRYPT_FL) != 0) return refuse("is encrypted");
  if ((flags & EXT4_VERITY_FL) != 0) return refuse("has fs-verity, which nobody would check");
  if ((flags & EXT2_COMPR_FL) != 0) return refuse("is compressed");
  out->is_inline = (flags & EXT4_INLINE_DATA_FL) != 0;
  if (out->is_inline) return bytes_in_inode(node, &out->bytes, why);
  const int error =
      (flags & EXT4_EXTENTS_FL) != 0 ? extents_by_tree(node, &out->extents, why) : extents_by_blocks(node, &out->extents, why);
  for (const extent& each : out->extents) {
    if ((each.flags & extent_unwritten) != 0 || each.offset >= node.status.nbytes) continue;
    out->runs.push_back({static_cast<std::uint64_t>(each.offset), static_cast<std::uint64_t>(each.nbytes),
                         static_cast<std::uint64_t>(each.device_offset)});
  }
  return error;
}

int ext4_files::bytes_in_inode(const ext4_node& file, std::vector<std::byte>* out, std::string* why) {
  const auto number = static_cast<std::uint32_t>(file.status.inode);
  ext2_inode inode = file.inode;
  std::size_t nbytes = 0;
  if (const errcode_t answer = ask(::ext2fs_inline_data_size, fs_.get(), number, &nbytes); answer != 0)
    return failed(answer, "the data", number, why);
  out->resize(nbytes);
  if (const errcode_t answer = ask(::ext2fs_inline_data_get, fs_.get(), number, &inode, out->data(), &nbytes); answer != 0)
    return failed(answer, "the data", number, why);
  if (std::cmp_less(nbytes, file.status.nbytes)) {
    *why = "inode " + std::to_string(number) + " has fewer bytes than it says: run e2fsck";
    return -EUCLEAN;
  }
  return 0;
}

// Goes through the tree step by step, so that nodes that lead back, or out of their place, end it.
int ext4_files::extents_by_tree(const ext4_node& file, std::vector<extent>* out, std::string* why) {
  const auto number = static_cast<std::uint32_t>(file.status.inode);
  const auto is_wrong = [&](const char* what) {
    *why = "the extents of inode " + std::to_string(number) + " " + what + ": run e2fsck";
    return -EUCLEAN;
  };
  ext2_inode inode = file.inode;
  ext3_extent_header root;
  std::memcpy(&root, inode.i_block, sizeof root);
  if (root.eh_magic != EXT3_EXT_MAGIC || root.eh_depth > most_depth || root.eh_entries > 4) return is_wrong("have a damaged root");
  if (root.eh_entries == 0) return 0;
  ext2_extent_handle_t opened = nullptr;
  if (const errcode_t answer = ask(::ext2fs_extent_open2, fs_.get(), number, &inode, &opened); answer != 0)
    return failed(answer, "the extents", number, why);
  const std::unique_ptr<ext2_extent_handle, frees_extents> tree(opened);

  std::vector<int> left;    // of each node from the root on, entries to come
  std::uint64_t least = 0;  // no block from here on has come yet
  std::uint64_t nblocks = 0;
  std::uint64_t node = 0;  // the block that the last index leads to
  std::vector<std::byte> bytes(fs_->blocksize);
  int move = EXT2_EXTENT_ROOT;
  for (;;) {
    ext2fs_extent got{};
    if (const errcode_t answer = ask(::ext2fs_extent_get, tree.get(), move, &got); answer != 0)
      return failed(answer, "the extents", number, why);
    ext2_extent_info info{};
    if (const errcode_t answer = ask(::ext2fs_extent_get_info, tree.get(), &info); answer != 0)
      return failed(answer, "the extents", number, why);
    if (move == EXT2_EXTENT_ROOT || move == EXT2_EXTENT_DOWN) {
      if (info.num_entries <= 0) return is_wrong("have an empty node");
      if (info.curr_level != 0) {
        if (const errcode_t answer = ask(::io_channel_read_blk64, fs_->io, node, 1, bytes.data()); answer != 0)
          return failed(answer, "the extents", number, why);
        ext3_extent_header header;
        std::memcpy(&header, bytes.data(), sizeof header);
        if (std::cmp_not_equal(header.eh_depth, root.eh_depth - info.curr_level)) return is_wrong("have a node of another depth");
      }
      left.push_back(info.num_entries);
    }
    if (move != EXT2_EXTENT_UP) {  // which comes back to the index that led down
      --left.back();
      const bool is_leaf = (got.e_flags & EXT2_EXTENT_FLAGS_LEAF) != 0;
      if (is_leaf != (static_cast<std::uint32_t>(info.curr_level) == root.eh_depth)) return is_wrong("have leaves in odd places");
      if (got.e_lblk < least) return is_wrong("are out of order");
      if (!is_leaf) {
        least = got.e_lblk;
        node = got.e_pblk;
        move = EXT2_EXTENT_DOWN;
        continue;
      }
      const bool is_unwritten = (got.e_flags & EXT2_EXTENT_FLAGS_UNINIT) != 0;
      nblocks += got.e_len;
      if (nblocks > ::ext2fs_blocks_count(fs_->super) ||
          !add_run(out, got.e_lblk, got.e_pblk, got.e_len, is_unwritten ? extent_unwritten : 0)) {
        return is_wrong("are out of range, overlap, or are too many");
      }
      least = got.e_lblk + got.e_len;
    }
    if (left.back() > 0) {
      move = EXT2_EXTENT_NEXT_SIB;
    } else {
      left.pop_back();
      if (left.empty()) return 0;
      move = EXT2_EXTENT_UP;
    }
  }
}

int ext4_files::extents_by_blocks(const ext4_node& file, std::vector<extent>* out, std::string* why) {
  struct walk {
    const ext4_files* files;
    std::vector<extent>* out;
    std::uint64_t end, nblocks = 0;
    bool is_wrong = false;
    std::exception_ptr thrown{};  // which may not pass through C
  };
  const auto number = static_cast<std::uint32_t>(file.status.inode);
  const std::uint64_t block = fs_->blocksize;
  walk all{this, out, (static_cast<std::uint64_t>(file.status.nbytes) + block - 1) / block};
  const auto take = [](ext2_filsys, blk64_t* place, e2_blkcnt_t count, blk64_t, int, void* data) {
    auto& to = *static_cast<walk*>(data);
    // Also of blocks of the map, below zero, as these may lead to each other without end.
    to.is_wrong = ++to.nblocks > ::ext2fs_blocks_count(to.files->fs_->super);
    if (to.is_wrong) return BLOCK_ABORT;
    if (count < 0) return 0;
    const auto at = static_cast<std::uint64_t>(count);
    if (at >= to.end) return BLOCK_ABORT;
    try {
      to.is_wrong = !to.files->add_run(to.out, at, *place, 1, 0);
    } catch (...) {
      to.thrown = std::current_exception();
      return BLOCK_ABORT;
    }
    return to.is_wrong ? BLOCK_ABORT : 0;
  };
  const errcode_t answer = ask(::ext2fs_block_iterate3, fs_.get(), number, BLOCK_FLAG_READ_ONLY, nullptr, +take, &all);
  if (all.thrown != nullptr) std::rethrow_exception(all.thrown);
  if (answer != 0) return failed(answer, "the blocks", number, why);
  if (all.is_wrong) {
    *why = "the blocks of inode " + std::to_string(number) + " are out of range, or too many: run e2fsck";
    return -EUCLEAN;
  }
  return 0;
}

}  // namespace gpufs::store
