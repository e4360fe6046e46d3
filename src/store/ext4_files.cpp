// SPDX-License-Identifier: Apache-2.0
#include "ext4_files.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "pack_entry.hpp"
#include "path.hpp"

namespace gpufs::store {
namespace {

constexpr int most_links = 40;                        // as Linux follows
constexpr std::size_t most_kept_entries = 1'000'000;  // of directories that were read: some 100 MB
constexpr std::size_t most_entries = 16'000'000;      // of one directory, also empty ones: a map may lead in circles

std::string hex(std::uint32_t word) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%x", word);
  return text;
}

// Seconds since 1970, of which the low 32 bits are signed, and two more bits and nanoseconds lie in a word that large inodes have.
std::uint64_t time_of(std::uint32_t seconds, std::uint32_t extra) {
  const std::int64_t all = std::int64_t{static_cast<std::int32_t>(seconds)} + (std::int64_t{extra & EXT4_EPOCH_MASK} << 32);
  return all < 0 ? 0 : static_cast<std::uint64_t>(all) * 1'000'000'000 + (extra >> EXT4_EPOCH_BITS);
}

// Puts the names of a path behind those to come, in their order from the back. Whether the path wants a directory.
bool push_names(std::string_view path, std::vector<std::string>* to) {
  const bool wants_directory = path.ends_with('/');
  while (!path.empty()) {
    const std::size_t slash = path.rfind('/');
    const std::size_t begin = slash == std::string_view::npos ? 0 : slash + 1;
    if (begin != path.size()) to->emplace_back(path.substr(begin));
    path = path.substr(0, begin == 0 ? 0 : slash);
  }
  return wants_directory;
}

}  // namespace

void ext4_files::refuse(int error, const std::string& why) {
  throw std::system_error(error, std::generic_category(), "gpufs: the ext4 file system: " + why);
}

void ext4_files::refuse_for(errcode_t answer, const std::string& damaged) const {
  const int error = device_.error_of(answer);
  if (error == -EUCLEAN) refuse(EUCLEAN, damaged + ": run e2fsck");
  refuse(-error, error == -ENOMEM ? "there is not enough memory to read it" : "the device cannot be read");
}

ext4_files::ext4_files(std::uint64_t device_nbytes, ext4_device::read_bytes read)
    : read_(std::move(read)), device_(device_nbytes, read_) {
  static std::once_flag knows_words;
  std::call_once(knows_words, [] { ::initialize_ext2_error_table(); });
  check_superblock();
  ext2_filsys fs = nullptr;
  const errcode_t answer = device_.open(EXT2_FLAG_64BITS, &fs);
  fs_.reset(fs);
  if (answer != 0) refuse_for(answer, "its groups' descriptors cannot be read");
  check_groups();
}

// Before anything else is read, so that what is wrong is said, and not what comes of it.
void ext4_files::check_superblock() {
  ext2_filsys opened = nullptr;
  const errcode_t answer = device_.open(EXT2_FLAG_64BITS | EXT2_FLAG_SUPER_ONLY, &opened);
  const std::unique_ptr<struct_ext2_filsys, closes> fs(opened);
  const auto word_at = [this](std::uint64_t at) {
    std::byte bytes[4];
    std::uint32_t word = 0;
    if (device_.read(SUPERBLOCK_OFFSET + at, bytes) == 0) std::memcpy(&word, bytes, sizeof word);
    return word;
  };
  switch (answer) {
    case 0:
      break;
    case EXT2_ET_BAD_MAGIC:
      refuse(EINVAL, "there is none: neither ext2 nor ext3 or ext4");
    case EXT2_ET_SHORT_READ:
      refuse(EINVAL, "there is none: the device has " + std::to_string(device_.nbytes()) + " bytes");
    case EXT2_ET_SB_CSUM_INVALID:
      refuse(EUCLEAN, "the checksum of its superblock is wrong: run e2fsck");
    case EXT2_ET_UNSUPP_FEATURE:
    case EXT2_ET_RO_UNSUPP_FEATURE:
    case EXT2_ET_UNKNOWN_CSUM:
      refuse(EOPNOTSUPP, "it has features that the installed libext2fs does not know: s_feature_incompat is " + hex(word_at(0x60)));
    case EXT2_ET_REV_TOO_HIGH:
      refuse(EOPNOTSUPP, "its revision is one that the installed libext2fs does not know: s_rev_level is " + hex(word_at(0x4c)));
    default:
      refuse_for(answer, std::string("its superblock cannot be used (") + ::error_message(answer) + ")");
  }
  const ext2_super_block& super = *fs->super;
  const std::uint64_t nblocks = ::ext2fs_blocks_count(fs->super);
  if (nblocks > device_.nbytes() / fs->blocksize) {
    refuse(ENXIO, "it has " + std::to_string(nblocks) + " blocks of " + std::to_string(fs->blocksize) + " bytes, and the device " +
                      std::to_string(device_.nbytes()) + " bytes: is it part of an array, or cut off?");
  }
  if (::ext2fs_has_feature_journal_needs_recovery(fs->super) != 0)
    refuse(EROFS, "its journal has what was not written to its place yet: mount and unmount it, or run e2fsck");
  if ((super.s_state & EXT2_ERROR_FS) != 0) refuse(EUCLEAN, "Linux has noted errors in it: run e2fsck");
  if ((super.s_state & EXT2_VALID_FS) == 0 || super.s_last_orphan != 0 || ::ext2fs_has_feature_orphan_present(fs->super) != 0)
    refuse(EBUSY, "it was not unmounted: unmount it where it is mounted, or run e2fsck");
}

void ext4_files::check_groups() {
  if (const errcode_t answer = ask(::ext2fs_check_desc, fs_.get()); answer != 0)
    refuse_for(answer, "its groups' descriptors are damaged");
  for (dgrp_t group = 0; group < fs_->group_desc_count; ++group) {
    if (::ext2fs_group_desc_csum_verify(fs_.get(), group) == 0)
      refuse(EUCLEAN, "the checksum of group " + std::to_string(group) + " is wrong: run e2fsck");
  }
}

int ext4_files::failed(errcode_t answer, const char* what, std::uint32_t number, std::string* why) {
  const int error = device_.error_of(answer);
  if (error == -EUCLEAN)
    *why = std::string(what) + " of inode " + std::to_string(number) + ": " + ::error_message(answer) + "; run e2fsck";
  return error;
}

int ext4_files::read_node(std::uint32_t number, ext4_node* out, std::string* why) {
  ext2_inode_large inode{};
  if (const errcode_t answer = ask(::ext2fs_read_inode_full, fs_.get(), number, EXT2_INODE(&inode), static_cast<int>(sizeof inode));
      answer != 0)
    return failed(answer, "the words", number, why);
  const std::size_t has = EXT2_INODE_SIZE(fs_->super) > EXT2_GOOD_OLD_INODE_SIZE ? inode.i_extra_isize : 0;
  const bool has_extra = has + EXT2_GOOD_OLD_INODE_SIZE >= offsetof(ext2_inode_large, i_atime_extra);
  *out = {};
  std::memcpy(&out->inode, &inode, sizeof out->inode);
  const std::uint64_t nbytes = EXT2_I_SIZE(&out->inode);
  if (nbytes >> 63 != 0 || inode.i_links_count == 0 || inode.i_mode == 0) {
    *why = "inode " + std::to_string(number) + " is damaged, or no file's: run e2fsck";
    return -EUCLEAN;
  }
  out->status.nbytes = static_cast<std::int64_t>(nbytes);
  out->status.inode = number;
  out->status.mtime_ns = time_of(inode.i_mtime, has_extra ? inode.i_mtime_extra : 0);
  out->status.mode = inode.i_mode;
  out->ctime_ns = time_of(inode.i_ctime, has_extra ? inode.i_ctime_extra : 0);
  return 0;
}

// False: they cannot be so.
bool ext4_files::add_entries(std::span<std::byte> from, std::vector<entry>* to, std::size_t* nseen) const {
  constexpr std::size_t head = offsetof(ext2_dir_entry, name);
  for (std::size_t at = 0; at + head <= from.size();) {
    ext2_dir_entry next;
    std::memcpy(&next, from.data() + at, head);
    unsigned nbytes = 0;
    if (::ext2fs_get_rec_len(fs_.get(), &next, &nbytes) != 0) return false;
    const auto name_nbytes = static_cast<std::size_t>(::ext2fs_dirent_name_len(&next));
    if (nbytes < head + name_nbytes || nbytes % 4 != 0 || nbytes > from.size() - at || ++*nseen > most_entries) return false;
    const std::string_view name(reinterpret_cast<const char*>(from.data() + at + head), name_nbytes);
    at += nbytes;
    if (next.inode == 0 || name == "." || name == "..") continue;
    // No name: who joins it to a path would leave the directory.
    if (name.empty() || name.find('/') != name.npos || name.find('\0') != name.npos) return false;
    to->push_back({std::string(name), next.inode});
  }
  return true;
}

int ext4_files::directory_of(const ext4_node& node, std::shared_ptr<const listing>* out, std::string* why) {
  const auto number = static_cast<std::uint32_t>(node.status.inode);
  if (const auto found = directories_.find(number); found != directories_.end()) {
    *out = found->second;
    return 0;
  }
  ext4_contents contents;
  if (const int error = contents_locked(node, &contents, why); error != 0) return error;
  auto made = std::make_shared<listing>();
  std::size_t nseen = 0;
  bool is_right = true;
  if (contents.is_inline) {
    // Behind the parent's number, for which blocks have entries.
    is_right = contents.bytes.size() >= 4 && add_entries(std::span(contents.bytes).subspan(4), &made->entries, &nseen);
  }
  const std::uint64_t block = fs_->blocksize;
  std::vector<std::byte> bytes(block);
  for (const nvme::file_extent& run : contents.runs) {
    const std::uint64_t nbytes = std::min(run.nbytes, static_cast<std::uint64_t>(node.status.nbytes) - run.offset);
    for (std::uint64_t at = 0; is_right && at < nbytes; at += block) {
      if (const errcode_t answer =
              ask(::ext2fs_read_dir_block4, fs_.get(), (run.begin + at) / block, bytes.data(), 0, ext2_ino_t{number});
          answer != 0)
        return failed(answer, "the entries", number, why);
      is_right = add_entries(bytes, &made->entries, &nseen);
    }
  }
  if (!is_right) {
    *why = "directory " + std::to_string(number) + " has entries that are out of place, or no names, or too many: run e2fsck";
    return -EUCLEAN;
  }
  for (const entry& each : made->entries) made->numbers.emplace(each.name, each.number);
  const std::size_t kept = 1 + made->entries.size();
  if (kept <= most_kept_entries) {
    if (nkept_ + kept > most_kept_entries) {
      directories_.clear();
      nkept_ = 0;
    }
    nkept_ += kept;
    directories_[number] = made;
  }
  *out = std::move(made);
  return 0;
}

int ext4_files::target_of(const ext4_node& link, std::string* out, std::string* why) {
  const auto nbytes = static_cast<std::size_t>(link.status.nbytes);
  if (nbytes == 0 || nbytes > names::max_path_nbytes) {
    *why = "symbolic link " + std::to_string(link.status.inode) + " is damaged: run e2fsck";
    return -EUCLEAN;
  }
  ext2_inode inode = link.inode;
  if (::ext2fs_is_fast_symlink(&inode) != 0 && nbytes < sizeof inode.i_block) {
    out->assign(reinterpret_cast<const char*>(inode.i_block), nbytes);
    return 0;
  }
  ext4_contents contents;
  if (const int error = contents_locked(link, &contents, why); error != 0) return error;
  out->resize(nbytes);
  const std::int64_t n = read_contents(contents, link.status.nbytes, read_, std::as_writable_bytes(std::span(*out)), 0);
  return n < 0 ? static_cast<int>(n) : 0;
}

int ext4_files::find(std::string_view path, bool follows, ext4_node* out, std::string* why) {
  std::string_view relative;
  if (const int wrong = path.empty() ? -EISDIR : check_path(path, &relative); wrong != 0 && wrong != -EISDIR) return wrong;
  const std::lock_guard lock(mutex_);
  std::vector<ext4_node> way(1);  // the directories, from the root on
  if (const int error = read_node(EXT2_ROOT_INO, &way[0], why); error != 0) return error;
  if (!S_ISDIR(way[0].status.mode)) {
    *why = "its root is no directory: run e2fsck";
    return -EUCLEAN;
  }
  std::vector<std::string> names;
  bool wants_directory = push_names(relative, &names);
  int nlinks = 0;
  while (!names.empty()) {
    const std::string name = std::move(names.back());
    names.pop_back();
    if (name == ".") continue;
    if (name == "..") {
      if (way.size() == 1) return -EXDEV;
      way.pop_back();
      continue;
    }
    if (name.size() > EXT2_NAME_LEN) return -ENAMETOOLONG;
    std::shared_ptr<const listing> here;
    if (const int error = directory_of(way.back(), &here, why); error != 0) return error;
    const auto found = here->numbers.find(name);
    if (found == here->numbers.end()) return -ENOENT;
    ext4_node node;
    if (const int error = read_node(found->second, &node, why); error != 0) return error;
    const bool is_last = names.empty();
    if (S_ISLNK(node.status.mode) && (!is_last || follows || wants_directory)) {
      if (++nlinks > most_links) return -ELOOP;
      std::string target;
      if (const int error = target_of(node, &target, why); error != 0) return error;
      if (target.find('\0') != target.npos) return -ENOENT;
      if (target.front() == '/') return -EXDEV;
      const bool to_directory = push_names(target, &names);
      wants_directory = wants_directory || (is_last && to_directory);
    } else if (S_ISDIR(node.status.mode)) {
      way.push_back(node);
    } else if (!is_last || wants_directory) {
      return -ENOTDIR;
    } else {
      *out = node;
      return 0;
    }
  }
  *out = way.back();
  return 0;
}

// A position: how many entries were given.
std::int64_t ext4_files::list(const ext4_node& directory, std::int64_t* position, std::span<std::byte> out) {
  if (!S_ISDIR(directory.status.mode)) return -ENOTDIR;
  if (*position < 0) return -EINVAL;
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const listing> here;
  std::string why;
  if (const int error = directory_of(directory, &here, &why); error != 0) return error;
  std::size_t done = 0;
  for (; static_cast<std::size_t>(*position) < here->entries.size(); ++*position) {
    const entry& from = here->entries[static_cast<std::size_t>(*position)];
    const std::size_t nbytes = entry_nbytes_of(from.name);
    if (nbytes > out.size() - done) return done != 0 ? static_cast<std::int64_t>(done) : -EINVAL;
    directory_entry packed{};
    packed.inode = from.number;
    ext4_node node;
    if (read_node(from.number, &node, &why) == 0) {
      packed.file_nbytes = node.status.nbytes;
      packed.mtime_ns = node.status.mtime_ns;
      packed.mode = node.status.mode;
    }
    pack_entry(out.data() + done, packed, from.name);
    done += nbytes;
  }
  return static_cast<std::int64_t>(done);
}

int ext4_files::contents_of(const ext4_node& file, ext4_contents* out, std::string* why) {
  const std::lock_guard lock(mutex_);
  return contents_locked(file, out, why);
}

}  // namespace gpufs::store
