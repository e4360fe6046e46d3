// SPDX-License-Identifier: Apache-2.0
// An encrypted file: what OpenSSL has encrypted (AES-256-CTR), a kernel reads as plain values. Pages are decrypted on the GPU, as
// they come into its page cache; the file, the host's memory and the bus only see them encrypted, and so does pread.
#include <openssl/evp.h>

#include <array>
#include <span>

#include "aes_ctr.hpp"
#include "example.hpp"

struct sum_salaries {
  gpufs::mount_ref fs;
  example::aes_ctr_ref secret;  // names the key, which is in device memory
  unsigned long long* sum;      // by thread
  char* as_in_file;             // what pread gives: the first 16 bytes
  int* error;

  GPUFS_DEVICE void operator()() const {
    const auto warp = gpufs::this_warp();
    const std::uint32_t me = gpufs::simt::block_rank() * gpufs::simt::block_size() + gpufs::simt::thread_rank();
    const std::uint32_t nthreads = gpufs::simt::grid_size() * gpufs::simt::block_size();
    const gpufs::file f = gpufs::open(warp, fs, "salaries");
    {
      auto p = gpufs::map<const std::uint32_t>(warp, f, 0, gpufs::to_the_end, gpufs::map_flags::none, secret);
      if (p.error() != 0) *error = p.error();
      const std::ptrdiff_t n = p.left();
      p += me;
      for (std::ptrdiff_t i = me; i < n; i += nthreads, p += nthreads) sum[me] += *p;
    }
    if (me < warp.size() && gpufs::pread(warp, f, as_in_file, 16, 0) != 16) *error = -EIO;
    warp.sync();
    gpufs::close(warp, f);
  }
};

// What any program would do that has OpenSSL: nothing here knows of gpufs.
std::string encrypt(const std::string& plain, std::span<const std::byte, 32> key, std::span<const std::byte, 16> counter) {
  std::string bytes(plain.size(), '\0');
  int nbytes = 0;
  EVP_CIPHER_CTX* const cipher = EVP_CIPHER_CTX_new();
  const bool done = cipher != nullptr &&
                    EVP_EncryptInit_ex(cipher, EVP_aes_256_ctr(), nullptr, reinterpret_cast<const unsigned char*>(key.data()),
                                       reinterpret_cast<const unsigned char*>(counter.data())) == 1 &&
                    EVP_EncryptUpdate(cipher, reinterpret_cast<unsigned char*>(bytes.data()), &nbytes,
                                      reinterpret_cast<const unsigned char*>(plain.data()), static_cast<int>(plain.size())) == 1;
  EVP_CIPHER_CTX_free(cipher);
  example::check(done && static_cast<std::size_t>(nbytes) == plain.size(), "OpenSSL encrypted the file");
  return bytes;
}

int main() {
  constexpr std::uint32_t nsalaries = 50000;
  std::string plain;
  std::uint64_t expected = 0;
  for (std::uint32_t i = 0; i < nsalaries; ++i) {
    const std::uint32_t salary = 2000 + i * 2654435761u % 5000;
    plain.append(reinterpret_cast<const char*>(&salary), sizeof salary);
    expected += salary;
  }
  // A real key is drawn at random, and no counter is used twice with it.
  std::array<std::byte, 32> key;
  for (std::size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::byte>(i * 7 + 1);
  const std::array<std::byte, 16> counter{std::byte{1}, std::byte{2}, std::byte{3}};
  const example::folder folder;
  const std::string encrypted = encrypt(plain, key, counter);
  folder.write("salaries", encrypted);

  constexpr unsigned grid = 2, block = 64, nthreads = grid * block;
  gpufs::mount fs(folder.path(), {.cache_nbytes = nthreads * 1024, .page_nbytes = 1024});
  fs.prepare("salaries");
  const example::aes_ctr secret(fs, key, counter);
  const example::device_array<unsigned long long> sum(nthreads);
  const example::device_array<char> as_in_file(16);
  const example::device_array<int> error(1);
  gpufs::simt::launch({.grid = grid, .block = block},
                      sum_salaries{fs.ref(), secret.ref(), sum.get(), as_in_file.get(), error.get()});

  std::uint64_t total = 0;
  for (const unsigned long long part : sum.read()) total += part;
  const std::vector<char> seen = as_in_file.read();
  const gpufs::mount_counters counters = fs.counters();
  std::printf("%llu pages were brought in\n", static_cast<unsigned long long>(counters.faults));
  example::check(error.read_one() == 0 && counters.fault_errors == 0, "the file was mapped, and no access failed");
  example::check(total == expected, "through pointers the kernel read plain values");
  example::check(std::string(seen.begin(), seen.end()) == encrypted.substr(0, 16), "pread gave what the file has");
}
