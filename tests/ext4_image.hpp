// SPDX-License-Identifier: Apache-2.0
// Images of ext2, ext3 and ext4 file systems, as e2fsprogs makes them of a folder; nothing is mounted.
#pragma once
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "file/harness.hpp"
#include "gpufs/store/ext4_store.hpp"
#include "gpufs/store/nil_store.hpp"

namespace gpufs::test {

// Why no test of such a file system can run here; empty: they can.
inline std::string no_ext4() {
  try {
    store::make_ext4_store(simt::cpu_platform(), std::make_shared<store::nil_store>(1024));
  } catch (const std::system_error& error) {
    if (error.code().value() == ENOSYS) return error.what();
  }
  for (const char* const program : {"mke2fs", "debugfs", "e2fsck"}) {
    if (std::system((std::string("PATH=$PATH:/usr/sbin:/sbin command -v ") + program + " >/dev/null 2>&1").c_str()) != 0)
      return std::string(program) + " is missing (Debian: e2fsprogs)";
  }
  return {};
}

class ext4_image {
 public:
  // What is put below `tree` before make() will be in the image.
  temp_dir dir;
  std::string tree(const std::string& name) const { return dir / ("tree/" + name); }
  std::string path() const { return dir / "image"; }

  // A file of so many blocks of 1 KiB with a hole behind each, so that each is an extent. Gives all its bytes.
  std::vector<std::byte> add_combed(const std::string& name, std::uint64_t nblocks) const {
    dir.add("tree/" + name, 0, 0);
    dir.resize("tree/" + name, nblocks * 2048);
    std::vector<std::byte> all(nblocks * 2048);
    for (std::uint64_t at = 0; at < all.size(); at += 2048) {
      dir.overwrite("tree/" + name, at, 1024, 9);
      const auto block = content(9, at, 1024);
      std::copy(block.begin(), block.end(), all.begin() + static_cast<std::ptrdiff_t>(at));
    }
    return all;
  }

  ext4_image() { std::filesystem::create_directory(dir / "tree"); }

  // options: mke2fs's, with the kind of file system.
  void make(const std::string& options, std::uint64_t nkib) const { make(options, nkib, dir / "tree"); }
  void make(const std::string& options, std::uint64_t nkib, const std::string& of) const {
    run("mke2fs -q -F -U 01234567-89ab-cdef-0123-456789abcdef -d '" + of + "' " + options + " '" + path() + "' " +
        std::to_string(nkib) + "k");
  }
  // Lines of debugfs. Gives what they print.
  std::string debug(const std::vector<std::string>& lines) const {
    std::ofstream commands(dir / "commands");
    for (const std::string& line : lines) commands << line << "\n";
    commands.close();
    return run("debugfs -w -f '" + (dir / "commands") + "' '" + path() + "'");
  }
  // e2fsck, which mends and says so by its exit status.
  void check(const std::string& options) const { run("e2fsck -fy " + options + " '" + path() + "' || [ $? -eq 1 ]"); }
  // Where the inode of a file lies in the image.
  std::uint64_t inode_at(const std::string& file) const {
    unsigned long long block = 0, offset = 0, inode = 0, group = 0;
    const std::string said = debug({"imap " + file});
    const std::size_t at = said.find("Inode ");
    if (at == said.npos ||
        std::sscanf(said.c_str() + at, "Inode %llu is part of block group %llu located at block %llu, offset %llx", &inode, &group,
                    &block, &offset) != 4) {
      throw std::runtime_error("debugfs imap says: " + said);
    }
    return block * word<std::uint32_t>(1024 + 0x18, [](std::uint32_t shift) { return 1024u << shift; }) + offset;
  }

  template <class T>
  T word(std::uint64_t at) const {
    T value;
    std::ifstream in(path(), std::ios::binary);
    in.seekg(static_cast<std::streamoff>(at));
    in.read(reinterpret_cast<char*>(&value), sizeof value);
    return value;
  }
  template <class T>
  void patch(std::uint64_t at, T value) const {
    std::fstream out(path(), std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(static_cast<std::streamoff>(at));
    out.write(reinterpret_cast<const char*>(&value), sizeof value);
    if (!out.flush()) throw std::runtime_error("cannot patch " + path());
  }

 private:
  template <class T, class Make>
  std::uint64_t word(std::uint64_t at, Make make) const {
    return make(word<T>(at));
  }
  static std::string run(const std::string& command) {
    std::FILE* const pipe = ::popen(("PATH=$PATH:/usr/sbin:/sbin; " + command + " 2>&1").c_str(), "r");
    if (pipe == nullptr) fail_errno("popen");
    std::string said;
    char part[4096];
    for (std::size_t n = 0; (n = std::fread(part, 1, sizeof part, pipe)) > 0;) said.append(part, n);
    if (::pclose(pipe) != 0) throw std::runtime_error(command + " failed: " + said);
    return said;
  }
};

}  // namespace gpufs::test
