// SPDX-License-Identifier: Apache-2.0
// What the examples share: a folder with files in it, and a check.
#pragma once
#include <stdlib.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gpufs/gpufs.hpp>
#include <string>
#include <vector>

namespace example {

// A new empty folder, removed at the end.
class folder {
 public:
  folder() {
    std::string name = (std::filesystem::temp_directory_path() / "gpufs-example-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a folder like " + name);
    path_ = name;
  }
  ~folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  folder(const folder&) = delete;
  folder& operator=(const folder&) = delete;

  std::string path() const { return path_; }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream out(path_ + "/" + name, std::ios::binary);
    out << bytes;
    if (!out.flush()) throw std::runtime_error("cannot write " + name);
  }

 private:
  std::string path_;
};

using gpufs::simt::device_array;  // memory for kernels; host code reads and writes copies

inline void check(bool right, const std::string& what) {
  std::printf("%s %s\n", right ? "ok:   " : "WRONG:", what.c_str());
  if (!right) std::exit(1);
}

}  // namespace example
