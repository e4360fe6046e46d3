// SPDX-License-Identifier: Apache-2.0
// Names, inodes and extents of an ext2, ext3 or ext4 file system that nobody writes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ext4_device.hpp"
#include "gpufs/names/words.hpp"
#include "gpufs/nvme/detail/file_layout.hpp"
#include "gpufs/store/store.hpp"

namespace gpufs::store {

// What a name leads to.
struct ext4_node {
  path_status status;
  std::uint64_t ctime_ns = 0;
  ext2_inode inode{};
};

// Where the bytes of a file are.
struct ext4_contents {
  std::vector<extent> extents;          // in order; they lie within the file system, and none meets the next
  std::vector<nvme::file_extent> runs;  // those that have bytes: what no run has is zeros
  std::vector<std::byte> bytes;         // of a file that lies in its inode, all of them
  bool is_inline = false;
};

// The bytes of a file of nbytes, as pread gives them: bytes or -errno. Any thread, if `read` takes any.
std::int64_t read_contents(const ext4_contents& of, std::int64_t nbytes, const ext4_device::read_bytes& read,
                           std::span<std::byte> dst, std::int64_t offset);

// Any thread; libext2fs takes one at a time. What is not explained by its errno has a sentence in *why.
class ext4_files {
 public:
  // Throws std::system_error, as make_ext4_store says. `read` may be called by any thread.
  ext4_files(std::uint64_t device_nbytes, ext4_device::read_bytes read);
  ext4_files(const ext4_files&) = delete;
  ext4_files& operator=(const ext4_files&) = delete;

  // Walks along a path that may be the root's. follows: also a symbolic link at its end. 0 or -errno.
  int find(std::string_view path, bool follows, ext4_node* out, std::string* why);
  // Entries of a directory, as store::read_directory gives them.
  std::int64_t list(const ext4_node& directory, std::int64_t* position, std::span<std::byte> out);
  // Of a regular file, all checked. 0 or -errno.
  int contents_of(const ext4_node& file, ext4_contents* out, std::string* why);

 private:
  struct entry {
    std::string name;
    std::uint32_t number;
  };
  struct listing {
    std::vector<entry> entries;  // without "." and ".."
    std::unordered_map<std::string_view, std::uint32_t> numbers;
  };
  struct closes {
    void operator()(ext2_filsys fs) const { ::ext2fs_close_free(&fs); }
  };

  void check_superblock();
  void check_groups();
  [[noreturn]] static void refuse(int error, const std::string& why);
  // damaged: what to say where it is the file system that has made libext2fs answer so.
  [[noreturn]] void refuse_for(errcode_t answer, const std::string& damaged) const;
  // All with the mutex held.
  // A call of libext2fs. What reads an inode puts its words into a cache, where another's were, before it looks at their checksum:
  // after an error they would be the other's.
  template <class... Parameters, class... Arguments>
  errcode_t ask(errcode_t (*call)(Parameters...), Arguments... with) {
    device_.begin_call();
    const errcode_t answer = call(with...);
    if (answer != 0) ::ext2fs_flush_icache(fs_.get());
    return answer;
  }
  int failed(errcode_t answer, const char* what, std::uint32_t number, std::string* why);
  int read_node(std::uint32_t number, ext4_node* out, std::string* why);
  bool add_entries(std::span<std::byte> from, std::vector<entry>* to, std::size_t* nseen) const;
  int directory_of(const ext4_node& node, std::shared_ptr<const listing>* out, std::string* why);
  int target_of(const ext4_node& link, std::string* out, std::string* why);
  int contents_locked(const ext4_node& node, ext4_contents* out, std::string* why);
  int bytes_in_inode(const ext4_node& file, std::vector<std::byte>* out, std::string* why);
  int extents_by_tree(const ext4_node& file, std::vector<extent>* out, std::string* why);
  int extents_by_blocks(const ext4_node& file, std::vector<extent>* out, std::string* why);
  // A run of blocks, behind those that came before. False: it cannot be.
  bool add_run(std::vector<extent>* to, std::uint64_t first, std::uint64_t place, std::uint64_t nblocks, std::uint32_t flags) const;

  const ext4_device::read_bytes read_;
  std::mutex mutex_;  // all below
  ext4_device device_;
  std::unique_ptr<struct_ext2_filsys, closes> fs_;
  // Directories that were read, and how many entries they have, with one more for each: a million at most.
  std::unordered_map<std::uint32_t, std::shared_ptr<const listing>> directories_;
  std::size_t nkept_ = 0;
};

}  // namespace gpufs::store
