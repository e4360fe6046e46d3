// SPDX-License-Identifier: Apache-2.0
// What the examples share: a folder with files in it, memory for a kernel's results, and a check.
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

// n zeroed elements in the device's memory, or a copy of the host's; the host reads copies.
template <class T>
class device_array {
 public:
  explicit device_array(std::size_t n) : n_(n), data_(static_cast<T*>(machine().allocate_device(n * sizeof(T)))) {
    machine().zero_device(data_, n * sizeof(T));
  }
  explicit device_array(const std::vector<T>& host) : device_array(host.size()) {
    machine().copy_to_device(data_, host.data(), n_ * sizeof(T));
  }
  ~device_array() { machine().deallocate_device(data_); }
  device_array(const device_array&) = delete;
  device_array& operator=(const device_array&) = delete;

  T* data() const { return data_; }  // for kernels
  std::vector<T> copy() const {
    std::vector<T> host(n_);
    machine().copy_from_device(host.data(), data_, n_ * sizeof(T));
    return host;
  }
  T operator[](std::size_t i) const {
    T one;
    machine().copy_from_device(&one, data_ + i, sizeof one);
    return one;
  }

 private:
  static gpufs::simt::platform& machine() { return gpufs::simt::this_platform(); }

  std::size_t n_;
  T* data_;
};

inline void check(bool right, const std::string& what) {
  std::printf("%s %s\n", right ? "ok:   " : "WRONG:", what.c_str());
  if (!right) std::exit(1);
}

}  // namespace example
