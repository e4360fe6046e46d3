// SPDX-License-Identifier: Apache-2.0
// AES-CTR as a fault handler: NIST's vectors, OpenSSL's answers for any length, place and group of lanes, and what becomes of keys.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../aes_ctr.hpp"
#include "file/harness.hpp"
#include "forwarding_platform.hpp"
#include "gpufs/gpufs.hpp"
#include "gpufs/store/mem_store.hpp"
#if GPUFS_HAVE_LIBCRYPTO
#include <openssl/evp.h>
#endif

namespace gpufs::test {
namespace {

namespace aes = example::aes;
using example::aes_ctr;
using example::aes_ctr_keys;
using example::aes_ctr_ref;
using example::host_aes_ctr;
using bytes = std::vector<std::byte>;
using counter_block = std::array<std::byte, 16>;

bytes from_hex(const std::string& hex) {
  bytes out;
  for (std::size_t i = 0; i < hex.size(); i += 2) out.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return out;
}

std::string to_hex(std::span<const std::byte> data) {
  std::string out;
  for (const std::byte b : data) {
    constexpr char digits[] = "0123456789abcdef";
    out += digits[std::to_integer<unsigned>(b) >> 4];
    out += digits[std::to_integer<unsigned>(b) & 15];
  }
  return out;
}

counter_block to_counter(const bytes& from) {
  counter_block out;
  std::copy_n(from.begin(), out.size(), out.begin());
  return out;
}

counter_block plus(counter_block counter, std::uint64_t n) {
  for (unsigned i = 16; i-- > 0 && n != 0; n >>= 8) {
    n += std::to_integer<unsigned>(counter[i]);  // no overflow: n is below 2^60
    counter[i] = static_cast<std::byte>(n);
  }
  return counter;
}

mount_options small_mount() {
  mount_options options;
  options.cache_nbytes = 64 << 10;
  options.max_open_files = 16;
  options.nworkers = 1;
  options.custom_store = std::make_shared<store::mem_store>(simt::this_platform());
  return options;
}

// One call of the handler: a page, or the part of one that the file has.
struct job {
  std::uint64_t place;   // in the buffer
  std::uint64_t offset;  // in the file
  std::uint32_t nbytes;
};

struct work {
  aes_ctr_ref handler;
  const job* jobs;
  unsigned njobs;
  std::byte* buffer;
  unsigned* next;
  unsigned* errors;

  template <class Group>
  GPUFS_DEVICE void run(Group group, unsigned i) const {
    const int error = handler.filled(group, buffer + jobs[i].place, jobs[i].offset, jobs[i].nbytes);
    if (error != 0) simt::atomic_ref<unsigned>(*errors).add_relaxed(1);
    group.sync();
  }
};

GPUFS_DEVICE unsigned index_of(simt::block) { return 0; }
template <unsigned N>
GPUFS_DEVICE unsigned index_of(simt::tile<N>) {
  return simt::thread_rank() / N;
}

template <class Group>
struct by_groups {
  work w;
  GPUFS_DEVICE void operator()() const {
    const Group group{};
    const unsigned per_block = simt::block_size() / group.size();
    for (unsigned i = simt::block_rank() * per_block + index_of(group); i < w.njobs; i += simt::grid_size() * per_block) {
      w.run(group, i);
    }
  }
};

// Lanes take one of three ways, so that whatever lanes meet on each work together.
struct by_some_lanes {
  work w;
  template <unsigned Way>
  struct place {};

  GPUFS_DEVICE void operator()() const {
    switch (content_word(w.njobs, simt::thread_rank()) % 3) {
      case 0:
        return go<0>();
      case 1:
        return go<1>();
      default:
        return go<2>();
    }
  }
  template <unsigned Way>
  GPUFS_DEVICE void go() const {
    for (;;) {
      const simt::some_lanes lanes = simt::lanes_together<place<Way>>();
      unsigned i = 0;
      if (lanes.leader()) i = simt::atomic_ref<unsigned>(*w.next).fetch_add(1, std::memory_order_relaxed);
      i = lanes.broadcast(i);
      if (i >= w.njobs) return;
      w.run(lanes, i);
    }
  }
};

// What the buffer holds when the kernel has worked through all jobs.
template <class Kernel>
bytes decrypt(const aes_ctr& owner, const std::vector<job>& jobs, const bytes& buffer) {
  const device_buffer<job> on_device(jobs);
  const device_buffer<std::byte> memory(buffer);
  const device_buffer<unsigned> words(2);
  simt::launch({.grid = 2, .block = 64}, Kernel{{owner.ref(), on_device.get(), static_cast<unsigned>(jobs.size()), memory.get(),
                                                 words.get(), words.get() + 1}});
  EXPECT_EQ(words.read_one(1), 0u);
  return memory.read();
}

void expect_same(const bytes& got, const bytes& wanted, const std::string& what) {
  ASSERT_EQ(got.size(), wanted.size());
  const auto [at, other] = std::mismatch(got.begin(), got.end(), wanted.begin());
  if (at != got.end()) FAIL() << what << ": byte " << at - got.begin() << " of " << got.size() << " is wrong";
}

// All kinds of groups give the same.
void expect_decrypts(const aes_ctr& owner, const std::vector<job>& jobs, const bytes& buffer, const bytes& wanted) {
  expect_same(decrypt<by_groups<simt::thread>>(owner, jobs, buffer), wanted, "thread");
  expect_same(decrypt<by_groups<simt::tile<8>>>(owner, jobs, buffer), wanted, "tile<8>");
  expect_same(decrypt<by_groups<simt::warp>>(owner, jobs, buffer), wanted, "warp");
  expect_same(decrypt<by_groups<simt::block>>(owner, jobs, buffer), wanted, "block");
  expect_same(decrypt<by_some_lanes>(owner, jobs, buffer), wanted, "some_lanes");
}

struct without_key {
  std::byte* page;
  int* error;
  GPUFS_DEVICE void operator()() const {
    const int got = aes_ctr_ref().filled(this_warp(), page, 0, 512);
    if (this_warp().leader()) *error = got;
  }
};

TEST(aes_ctr, nothing_is_decrypted_without_a_key) {
  const device_buffer<std::byte> page(512);
  const device_buffer<int> error(1);
  simt::launch({.grid = 1, .block = 32}, without_key{page.get(), error.get()});
  EXPECT_EQ(error.read_one(), -EINVAL);
  EXPECT_EQ(page.read(), bytes(512));
}

// SP 800-38A, F.5: CTR-AES128, 192, 256.
struct vector {
  const char *key, *encrypted;
};
constexpr vector nist[] = {
    {"2b7e151628aed2a6abf7158809cf4f3c",
     "874d6191b620e3261bef6864990db6ce9806f66b7970fdff8617187bb9fffdff5ae4df3edbd5d35e5b4f09020db03eab1e031dda2fbe03d1792170a0f3009"
     "cee"},
    {"8e73b0f7da0e6452c810f32b809079e562f8ead2522c6b7b",
     "1abc932417521ca24f2b0459fe7e6e0b090339ec0aa6faefd5ccc2c6f4ce8e941e36b26bd1ebc670d1bd1d665620abf74f78a7f6d29809585a97daec58c6b"
     "050"},
    {"603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4",
     "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c52b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd0845794"
     "1a6"},
};
constexpr char nist_counter[] = "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff";
constexpr char nist_plain[] =
    "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e5130c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3"
    "710";

TEST(aes_ctr, nist_vectors) {
  mount fs("", small_mount());
  const counter_block counter = to_counter(from_hex(nist_counter));
  for (const vector& v : nist) {
    SCOPED_TRACE(v.key);
    const aes_ctr owner(fs, from_hex(v.key), counter);
    const bytes encrypted = from_hex(v.encrypted), plain = from_hex(nist_plain);
    ASSERT_EQ(encrypted.size(), 64u);
    ASSERT_EQ(plain.size(), 64u);
    // Whole, then cut off after each number of bytes; then each block as a page of its own.
    std::vector<job> jobs;
    bytes buffer, wanted;
    for (std::uint32_t nbytes = 0; nbytes <= 64; ++nbytes) {
      jobs.push_back({buffer.size(), 0, nbytes});
      buffer.insert(buffer.end(), encrypted.begin(), encrypted.begin() + nbytes);
      wanted.insert(wanted.end(), plain.begin(), plain.begin() + nbytes);
      buffer.resize(jobs.back().place + 64);
      wanted.resize(buffer.size());
    }
    for (std::uint32_t block = 0; block < 4; ++block) {
      jobs.push_back({buffer.size(), 16 * block, 16});
      buffer.insert(buffer.end(), encrypted.begin() + 16 * block, encrypted.begin() + 16 * block + 16);
      wanted.insert(wanted.end(), plain.begin() + 16 * block, plain.begin() + 16 * block + 16);
    }
    expect_decrypts(owner, jobs, buffer, wanted);
  }
}

// A counter that carries goes on like one that starts after the carry.
TEST(aes_ctr, counters_carry) {
  const bytes key = from_hex(nist[0].key);
  const std::pair<const char*, std::uint64_t> cases[] = {
      {"ffffffffffffffffffffffffffffffff", 1},          {"0000000000000000ffffffffffffffff", 1},
      {"00000000fffffffffffffffffffffffe", 2},          {"000000000000000000000000fffffffd", 3},
      {"0123456789abcdefffffffff00000000", 1ull << 32}, {"fffffffffffffffffffffffffffffff0", (1ull << 52) + 16},
  };
  for (const auto& [start, blocks] : cases) {
    SCOPED_TRACE(start);
    mount fs("", small_mount());
    const counter_block counter = to_counter(from_hex(start));
    const aes_ctr before(fs, key, counter), after(fs, key, plus(counter, blocks));
    const bytes zeros(512);
    const bytes wanted = decrypt<by_groups<simt::warp>>(after, {{0, 0, 512}}, zeros);
    expect_decrypts(before, {{0, 16 * blocks, 512}}, zeros, wanted);
    if (blocks > 16) continue;
    const bytes across = decrypt<by_groups<simt::warp>>(before, {{0, 0, 512}}, zeros);
    const auto n = static_cast<std::ptrdiff_t>(16 * blocks);
    EXPECT_TRUE(std::equal(across.begin() + n, across.end(), wanted.begin()));
  }
}

#if GPUFS_HAVE_LIBCRYPTO

bytes random_bytes(random_source& draw, std::size_t n) {
  bytes out(n);
  for (std::byte& b : out) b = static_cast<std::byte>(draw.below(256));
  return out;
}

bytes openssl(const bytes& key, const counter_block& counter, const bytes& plain) {
  const std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)> context(EVP_CIPHER_CTX_new(), &EVP_CIPHER_CTX_free);
  const EVP_CIPHER* cipher = key.size() == 16 ? EVP_aes_128_ctr() : key.size() == 24 ? EVP_aes_192_ctr() : EVP_aes_256_ctr();
  const auto raw = [](const auto& from) { return reinterpret_cast<const unsigned char*>(from.data()); };
  bytes out(plain.size());
  int n = 0;
  if (EVP_EncryptInit_ex(context.get(), cipher, nullptr, raw(key), raw(counter)) != 1 ||
      EVP_EncryptUpdate(context.get(), reinterpret_cast<unsigned char*>(out.data()), &n, raw(plain),
                        static_cast<int>(plain.size())) != 1 ||
      static_cast<std::size_t>(n) != plain.size()) {
    throw std::runtime_error("OpenSSL refuses to encrypt");
  }
  return out;
}

// Pages of random sizes, full ones and last ones, anywhere in files of up to 2^53 bytes, in no order.
TEST(aes_ctr, pages_as_openssl_encrypts_them) {
  const auto [first, end] = seeds_to_run(under_tsan ? 2 : 40);
  for (std::uint64_t seed = first; seed < end; ++seed) {
    SCOPED_TRACE(numbered("GPUFS_TEST_SEED=", seed));
    random_source draw(seed);
    const bytes key = random_bytes(draw, 16 + 8 * draw.below(3));
    counter_block counter = to_counter(random_bytes(draw, 16));
    const std::uint64_t ones = draw.below(17);  // bytes that are ff, so that counters carry
    std::fill(counter.end() - static_cast<std::ptrdiff_t>(ones), counter.end(), std::byte{0xff});
    const std::uint32_t page_nbytes = 512u << draw.below(5);
    std::vector<job> jobs;
    bytes buffer, wanted;
    for (unsigned i = 0; i < 12; ++i) {
      const std::uint64_t page = draw.below(std::uint64_t{1} << draw.below(draw.percent(50) ? 4 : 40));
      const auto nbytes = static_cast<std::uint32_t>(draw.percent(40) ? page_nbytes : draw.below(page_nbytes + 1));
      const bytes plain = random_bytes(draw, nbytes);
      const bytes encrypted = openssl(key, plus(counter, page * page_nbytes / 16), plain);
      jobs.push_back({buffer.size(), page * page_nbytes, nbytes});
      buffer.insert(buffer.end(), encrypted.begin(), encrypted.end());
      wanted.insert(wanted.end(), plain.begin(), plain.end());
      buffer.resize(jobs.back().place + page_nbytes);  // what the file does not have is zero, and stays so
      wanted.resize(buffer.size());
    }
    mount fs("", small_mount());
    expect_decrypts(aes_ctr(fs, key, counter), jobs, buffer, wanted);
  }
}

// A file that OpenSSL encrypts in one go, with the counter carrying through all its bytes on the way.
TEST(aes_ctr, a_file_as_openssl_encrypts_it) {
  random_source draw(1);
  constexpr std::uint32_t page_nbytes = 4096, file_nbytes = under_tsan ? 20'005 : 100'005;
  for (const std::size_t key_nbytes : {16, 24, 32}) {
    const bytes key = random_bytes(draw, key_nbytes), plain = random_bytes(draw, file_nbytes);
    const counter_block counter = to_counter(from_hex("ffffffffffffffffffffffffffffff70"));
    bytes buffer = openssl(key, counter, plain), wanted = plain;
    std::vector<job> jobs;
    for (std::uint32_t at = 0; at < file_nbytes; at += page_nbytes)
      jobs.push_back({at, at, std::min(page_nbytes, file_nbytes - at)});
    buffer.resize(jobs.size() * page_nbytes);
    wanted.resize(buffer.size());
    mount fs("", small_mount());
    expect_decrypts(aes_ctr(fs, key, counter), jobs, buffer, wanted);
  }
}

#else

TEST(aes_ctr, pages_as_openssl_encrypts_them) { GTEST_SKIP() << "no libcrypto"; }
TEST(aes_ctr, a_file_as_openssl_encrypts_it) { GTEST_SKIP() << "no libcrypto"; }

#endif

// FIPS 197, section 5.1.1: the inverse in GF(2^8), then an affine map.
TEST(aes_ctr, s_box_is_what_it_is_defined_as) {
  const auto times = [](unsigned a, unsigned b) {
    unsigned product = 0;
    for (; b != 0; b >>= 1, a = a << 1 ^ (a >> 7) * 0x11b) product ^= (b & 1) * a;
    return product;
  };
  for (unsigned x = 0; x < 256; ++x) {
    unsigned inverse = 0;
    while (x != 0 && times(x, inverse) != 1) ++inverse;
    unsigned wanted = 0x63 ^ inverse;
    for (unsigned turn = 1; turn <= 4; ++turn) wanted ^= (inverse << turn | inverse >> (8 - turn)) & 255;
    aes::two_blocks slices{};
    const unsigned where = x % 32;
    for (unsigned b = 0; b < 8; ++b) slices.word[b] = (x >> b & 1) << where;
    aes::sub_bytes(slices);
    unsigned got = 0;
    for (unsigned b = 0; b < 8; ++b) got |= (slices.word[b] >> where & 1) << b;
    EXPECT_EQ(got, wanted) << "of " << x;
  }
}

// Memory as the real platform gives it, looked at when it is given back.
class watched_platform final : public forwarding_platform {
 public:
  watched_platform() : forwarding_platform(simt::this_platform()) {}
  bool refuse_copies = false, refuse_zeroing = false;
  unsigned given_back = 0, not_zeroed = 0;

  std::size_t in_use() const { return sizes_.size(); }

  void* allocate_device(std::size_t nbytes) override { return note(real_.allocate_device(nbytes), nbytes); }
  void deallocate_device(void* ptr) noexcept override {
    bytes found(sizes_.at(ptr));
    real_.copy_from_device(found.data(), ptr, found.size());
    look_at(ptr, found);
    real_.deallocate_device(ptr);
  }
  void* allocate_pinned(std::size_t nbytes) override { return note(real_.allocate_pinned(nbytes), nbytes); }
  void deallocate_pinned(void* ptr) noexcept override {
    const auto* first = static_cast<const std::byte*>(ptr);
    look_at(ptr, bytes(first, first + sizes_.at(ptr)));
    real_.deallocate_pinned(ptr);
  }
  void copy_to_device(void* device_dst, const void* src, std::size_t nbytes) override {
    if (refuse_copies) throw std::runtime_error("copies are refused");
    real_.copy_to_device(device_dst, src, nbytes);
  }
  void zero_device(void* device_dst, std::size_t nbytes) override {
    if (refuse_zeroing) throw std::runtime_error("zeroing is refused");
    real_.zero_device(device_dst, nbytes);
  }

 private:
  void* note(void* ptr, std::size_t nbytes) {
    sizes_[ptr] = nbytes;
    return ptr;
  }
  void look_at(void* ptr, const bytes& found) {
    ++given_back;
    not_zeroed += std::any_of(found.begin(), found.end(), [](std::byte b) { return b != std::byte{}; });
    sizes_.erase(ptr);
  }

  std::map<void*, std::size_t> sizes_;
};

struct open_owner : host_aes_ctr {
  using host_aes_ctr::host_aes_ctr;
  using host_aes_ctr::keys;

  bool holds_a_key(simt::platform& machine) const {
    aes_ctr_keys copy;
    machine.copy_from_device(&copy, keys(), sizeof copy);
    return copy.nrounds != 0;
  }
};

struct key_memory : testing::Test {
  watched_platform machine;
  mount fs{"", small_mount()};
  bytes key = from_hex(nist[2].key);
  counter_block counter = to_counter(from_hex(nist_counter));

  open_owner make() { return {machine, fs, key, counter}; }
  void expect_all_given_back_zeroed() {
    EXPECT_EQ(machine.in_use(), 0u);
    EXPECT_GT(machine.given_back, 0u);
    EXPECT_EQ(machine.not_zeroed, 0u);
  }
};

TEST_F(key_memory, is_zeroed_at_the_end) {
  {
    const open_owner owner = make();
    EXPECT_EQ(machine.in_use(), 1u) << "nothing is kept on the host";
    EXPECT_EQ(machine.given_back, 1u);
    EXPECT_TRUE(owner.holds_a_key(machine));
  }
  expect_all_given_back_zeroed();
}

TEST_F(key_memory, moves) {
  static_assert(!std::is_copy_constructible_v<aes_ctr> && !std::is_copy_assignable_v<aes_ctr>);
  static_assert(std::is_nothrow_move_constructible_v<aes_ctr> && std::is_nothrow_move_assignable_v<aes_ctr>);
  {
    open_owner first = make();
    const aes_ctr_keys* keys = first.keys();
    open_owner second = std::move(first);
    EXPECT_EQ(second.keys(), keys) << "what kernels were given stays valid";
    EXPECT_THROW(first.keys(), error);
    first = make();
    EXPECT_EQ(machine.in_use(), 2u);
    first = std::move(second);
    EXPECT_EQ(first.keys(), keys);
    EXPECT_EQ(machine.in_use(), 1u) << "what it had before is gone";
    EXPECT_EQ(machine.not_zeroed, 0u);
    EXPECT_TRUE(first.holds_a_key(machine));
  }
  expect_all_given_back_zeroed();

  aes_ctr owner(fs, key, counter);
  const std::uint32_t form = owner.ref().form();
  const aes_ctr other = std::move(owner);
  EXPECT_EQ(other.ref().form(), form);
  EXPECT_THROW(owner.ref(), error);
}

TEST_F(key_memory, is_zeroed_when_the_constructor_throws) {
  machine.refuse_copies = true;
  EXPECT_THROW(make(), std::runtime_error);
  EXPECT_EQ(machine.given_back, 2u);
  expect_all_given_back_zeroed();
  machine.refuse_copies = false;
  while (fs.new_form() < 14) {
  }
  EXPECT_THROW(make(), error) << "no form is left";
  EXPECT_EQ(machine.given_back, 4u);
  expect_all_given_back_zeroed();
}

TEST_F(key_memory, is_given_back_when_the_device_is_lost) {
  {
    const open_owner owner = make();
    machine.refuse_zeroing = true;
  }
  EXPECT_EQ(machine.in_use(), 0u);
  EXPECT_EQ(machine.not_zeroed, 1u) << "that this test notices";
}

struct open_missing {
  mount_ref fs;
  GPUFS_DEVICE void operator()() const { gpufs::open(gpufs::this_warp(), fs, "missing"); }
};

TEST_F(key_memory, keys_are_in_no_text) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  std::string text;
  for (const std::size_t nbytes : {0, 1, 15, 17, 20, 23, 25, 31, 33, 64}) {
    bytes wrong = key;
    wrong.resize(nbytes, key[0]);
    try {
      const open_owner owner(machine, fs, wrong, counter);
      ADD_FAILURE() << "a key of " << nbytes << " bytes";
    } catch (const error& refusal) {
      EXPECT_NE(std::string(refusal.what()).find(std::to_string(nbytes) + " bytes"), std::string::npos) << refusal.what();
      text += refusal.what();
    }
  }
  EXPECT_EQ(machine.given_back, 0u) << "refused before anything is done";
  EXPECT_EQ(fs.new_form(), 1u) << "and no form was taken";
  {
    const aes_ctr owner(fs, key, counter);
    EXPECT_EQ(owner.ref().form(), 2u);
    decrypt<by_groups<simt::warp>>(owner, {{0, 0, 512}}, bytes(512));
    simt::launch({.grid = 1, .block = 32}, open_missing{fs.ref()});
    machine.refuse_copies = true;
    try {
      make();
    } catch (const std::runtime_error& failure) {
      text += failure.what();
    }
  }
  for (const std::string& line : fs.log()) text += line;
  text += testing::internal::GetCapturedStdout() + testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("missing"), std::string::npos) << "the log says something";
  std::string lower;
  for (const char c : text) lower += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  for (std::size_t at = 0; at + 4 <= key.size(); ++at) {  // no four bytes of it, raw or in digits
    const std::span<const std::byte> part(key.data() + at, 4);
    EXPECT_EQ(text.find(std::string(reinterpret_cast<const char*>(part.data()), 4)), std::string::npos);
    EXPECT_EQ(lower.find(to_hex(part)), std::string::npos);
  }
}

}  // namespace
}  // namespace gpufs::test
