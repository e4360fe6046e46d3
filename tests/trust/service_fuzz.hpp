// SPDX-License-Identifier: Apache-2.0
// A device that has gone mad: what an input's bytes say, it does to a service's rings. service_fuzz.cpp gives it libFuzzer's
// inputs, service_fuzz_test.cpp the corpus and pseudo-random ones.
//
// Whatever the input: each request gets its answer once its sequence is right, others' requests on another ring are answered
// meanwhile, nothing outside of the root is touched or read, only what is open for writing is written, and a service that may not
// write asks its store for nothing that does. Anything else ends the process.
#pragma once
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "../../src/service/for_tests.hpp"
#include "../../src/store/beneath.hpp"
#include "file/harness.hpp"
#include "gpufs/service/detail/service.hpp"
#include "gpufs/store/posix_store.hpp"
#include "service/ring_client.hpp"
#include "set_meanwhile.hpp"

namespace gpufs::test {

inline std::string fuzz_context;                   // printed with a failure
inline std::uint64_t fuzz_successes = 0;           // requests that were not refused
inline std::atomic<std::uint64_t> fuzz_notes = 0;  // of stores in place

[[noreturn]] inline void broken(const std::string& what) {
  std::fprintf(stderr, "service_fuzz: %s%s\n", what.c_str(), fuzz_context.empty() ? "" : (" in " + fuzz_context).c_str());
  std::abort();
}

// An input's bytes; zeros behind its end.
class fuzz_input {
 public:
  explicit fuzz_input(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  bool empty() const { return at_ >= bytes_.size(); }
  std::uint8_t byte() { return empty() ? 0 : bytes_[at_++]; }
  template <class T>
  T value() {
    T v = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) v = static_cast<T>(v << 8 | byte());
    return v;
  }
  std::string text(std::size_t n) {
    std::string s;
    for (; n > 0 && !empty(); --n) s.push_back(static_cast<char>(byte()));
    return s;
  }
  // Values at which something changes, small ones, or any.
  std::uint32_t any32() {
    constexpr std::uint32_t edges[] = {0,   1,    2,    3,    31,         32,         511,        512,
                                       513, 4095, 4096, 4097, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};
    const std::uint8_t how = byte();
    return how < 16 ? edges[how] : how < 224 ? how - 16u : value<std::uint32_t>();
  }
  std::int64_t any64() {
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    constexpr std::int64_t edges[] = {0,    1,         -1,       4095,        4096,        4097,      4999,  5000,
                                      most, -most - 1, most - 1, most - 4095, most - 4096, 1LL << 32, -4096, 1LL << 40};
    const std::uint8_t how = byte();
    return how < 16 ? edges[how] : how < 224 ? (how - 16) * 37 : value<std::int64_t>();
  }

 private:
  std::span<const std::uint8_t> bytes_;
  std::size_t at_ = 0;
};

// What the service may do with a store, and whether it did something that changes it.
struct fuzz_watch {
  bool writable = false, hides_descriptors = false;
  const std::byte* payload = nullptr;
  std::size_t payload_nbytes = 0;
  std::atomic<bool> changed{false};

  void change(bool permitted, const char* what) {
    if (!permitted) broken(std::string(what) + ", which may not be");
    changed.store(true, std::memory_order_relaxed);
  }
  void check_span(const std::byte* data, std::size_t nbytes, std::int64_t offset, std::size_t most) const {
    if (nbytes > most || data < payload || data + nbytes > payload + payload_nbytes) broken("bytes outside of the payload");
    if (offset < 0 || offset > std::numeric_limits<std::int64_t>::max() - static_cast<std::int64_t>(nbytes)) broken("an offset");
  }
};

class watched_file final : public store::open_file {
 public:
  watched_file(std::unique_ptr<store::open_file> real, fuzz_watch& watch) : real_(std::move(real)), watch_(watch) {}
  const store::file_info& info() const override { return real_->info(); }
  int descriptor() const override { return watch_.hides_descriptors ? -1 : real_->descriptor(); }
  std::uint32_t alignment() const override { return real_->alignment(); }
  int check_version() const override { return real_->check_version(); }
  std::int64_t pread(std::span<std::byte> dst, std::int64_t offset) override {
    watch_.check_span(dst.data(), dst.size(), offset, 4096);
    return real_->pread(dst, offset);
  }
  int pwrite(std::span<const std::byte> src, std::int64_t offset) override {
    watch_.check_span(src.data(), src.size(), offset, 4096);
    watch_.change(watch_.writable && info().live, "a write");
    return real_->pwrite(src, offset);
  }
  int sync(bool data_only) override {
    watch_.change(watch_.writable && info().live, "a sync");
    return real_->sync(data_only);
  }
  int truncate(std::int64_t nbytes) override {
    watch_.change(watch_.writable && info().live && nbytes >= 0, "a truncation");
    return real_->truncate(nbytes);
  }
  int note_written_in_place(std::int64_t nbytes, bool last) override {  // the service asks any file
    if (info().live) watch_.change(watch_.writable, "stores noted");
    const int error = real_->note_written_in_place(nbytes, last);
    fuzz_notes += error == 0;
    return error;
  }

 private:
  std::unique_ptr<store::open_file> real_;
  fuzz_watch& watch_;
};

class watched_store final : public store::store {
 public:
  watched_store(std::shared_ptr<gpufs::store::store> real, fuzz_watch& watch) : real_(std::move(real)), watch_(watch) {}
  std::string_view name() const override { return "watched"; }
  std::unique_ptr<gpufs::store::open_file> open(std::string_view path, int flags, int* error) override {
    check(path);
    const bool writes = (flags & (O_ACCMODE | O_CREAT | O_TRUNC)) != 0;
    if (writes) watch_.change(watch_.writable, "an open that writes");
    auto file = real_->open(path, flags, error);
    if (file == nullptr) return nullptr;
    if (file->info().live && !writes) broken("an open for reading gave a file for writing");
    return std::make_unique<watched_file>(std::move(file), watch_);
  }
  int unlink(std::string_view path, bool directory) override {
    check(path);
    watch_.change(watch_.writable, "an unlink");
    return real_->unlink(path, directory);
  }
  int rename(std::string_view from, std::string_view to, std::uint32_t* mode) override {
    check(from);
    check(to);
    watch_.change(watch_.writable, "a rename");
    return real_->rename(from, to, mode);
  }
  int make_directory(std::string_view path, std::uint32_t mode) override {
    check(path);
    watch_.change(watch_.writable, "a mkdir");
    return real_->make_directory(path, mode | 0700);  // so that we can remove it
  }
  int status(std::string_view path, bool link, gpufs::store::path_status* out) override {
    check(path);
    return real_->status(path, link, out);
  }
  std::int64_t read_directory(std::string_view path, std::int64_t* position, std::span<std::byte> out) override {
    check(path);
    watch_.check_span(out.data(), out.size(), 0, 4096);
    return real_->read_directory(path, position, out);
  }

 private:
  static void check(std::string_view path) {
    if (path.size() > names::max_path_nbytes) broken("a path of " + std::to_string(path.size()) + " bytes");
  }
  std::shared_ptr<gpufs::store::store> real_;
  fuzz_watch& watch_;
};

// The directory: a root with known files and ways out of it, and what lies outside.
class fuzz_directory {
 public:
  fuzz_directory() {
    std::string secret(8, ' ');  // eight bytes, again and again
    for (char& c : secret) c = static_cast<char>('A' + random_source(std::random_device{}()).below(26));
    std::filesystem::create_directories(all_ / "outside");
    std::filesystem::create_directories(root());
    for (const char* name : {"sentinel", "outside/x"}) {
      std::ofstream out(all_ / name);
      for (int i = 0; i < 512; ++i) out << secret;
    }
    for (std::uint64_t& hash : hashes_) {
      std::uint64_t word = 0;
      std::memcpy(&word, secret.data(), sizeof word);
      hash = content_word(word, 0);
      std::rotate(secret.begin(), secret.begin() + 1, secret.end());
    }
    fill();
    let_file_times_pass();  // else a change at once would have the same stamps
    for (std::size_t i = 0; i < std::size(watched); ++i) before_[i] = look(watched[i]);
  }
  std::string root() const { return all_ / "root"; }

  // Whether these bytes are from a file outside, at any offset. Compared by hashes: libFuzzer learns what it sees compared.
  bool is_outside(const std::byte* bytes) const {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes, sizeof word);
    const std::uint64_t hash = content_word(word, 0);
    return std::find(hashes_.begin(), hashes_.end(), hash) != hashes_.end();
  }

  void fill() const {
    // The root itself stays, as services have it open.
    for (const auto& entry : std::filesystem::directory_iterator(root())) std::filesystem::remove_all(entry.path());
    std::filesystem::create_directories(root() + "/dir/d");
    all_.add("root/a", 5000, 1);
    all_.add("root/b", 100, 2);
    all_.add("root/dir/c", 9000, 3);
    all_.add("root/empty", 0, 1);
    const std::string outside = all_ / "outside", sentinel = all_ / "sentinel";
    const std::pair<const char*, std::string> links[] = {
        {"in", "a"},          {"below", "dir"},           {"up", "../sentinel"},       {"out", "../outside"}, {"far", sentinel},
        {"far_dir", outside}, {"dangling", "../newfile"}, {"dir/up", "../../outside"}, {"loop", "loop"},      {"self", "."}};
    for (const auto& [name, target] : links) {
      if (::symlink(target.c_str(), (root() + "/" + name).c_str()) != 0) fail_errno(name);
    }
    if (::mkfifo((root() + "/fifo").c_str(), 0600) != 0) fail_errno("mkfifo");
  }

  void check_outside() const {
    for (std::size_t i = 0; i < std::size(watched); ++i) {
      if (look(watched[i]) != before_[i]) broken(std::string("outside of the root has changed: ") + watched[i]);
    }
  }

 private:
  using stamps = std::array<std::int64_t, 7>;
  static constexpr const char* watched[] = {"", "sentinel", "outside", "outside/x"};
  stamps look(const char* name) const {
    struct stat st;
    if (::lstat((all_ / name).c_str(), &st) != 0) broken(std::string("gone: ") + name);
    return {static_cast<std::int64_t>(st.st_ino),
            static_cast<std::int64_t>(st.st_nlink),
            st.st_mode,
            st.st_size,
            st.st_mtim.tv_sec * 1'000'000'000 + st.st_mtim.tv_nsec,
            st.st_ctim.tv_sec * 1'000'000'000 + st.st_ctim.tv_nsec,
            static_cast<std::int64_t>(st.st_uid)};
  }

  // Thousands of inputs each make files and sync them: in memory, where that is to be had.
  static bool use_memory() {
    return ::access("/dev/shm", W_OK) == 0 && ::setenv("TMPDIR", "/dev/shm", 0) == 0;  // if nobody has set it
  }

  bool in_memory_ = use_memory();
  temp_dir all_;
  std::array<std::uint64_t, 8> hashes_;  // of what eight bytes can be
  std::array<stamps, std::size(watched)> before_;
};

// One service and the mad device that drives its ring 0; ring 1 is somebody else's.
class fuzzed_service {
 public:
  static constexpr std::uint32_t nslots = 4, payload_nbytes = 4096;

  // Bits of `how`: the service may write, is without io_uring and openat2 (service_fuzzer), its store has no descriptors, or maps
  // files in memory.
  static constexpr unsigned nkinds = 16;
  fuzzed_service(fuzz_directory& directory, unsigned how) : directory_(directory) {
    watch_.writable = (how & 1) != 0;
    watch_.hides_descriptors = (how & 4) != 0;
    const store::posix_options may{.writable = true};
    files_ = std::make_shared<store::posix_store>(directory.root(), may);
    if ((how & 8) != 0) files_ = mapping_store(directory.root(), may);
    service_ = std::make_unique<service::service>(simt::cpu_platform(), std::make_shared<watched_store>(files_, watch_),
                                                  service::service_options{.nrings = 2,
                                                                           .nslots = nslots,
                                                                           .payload_nbytes = payload_nbytes,
                                                                           .writable = watch_.writable,
                                                                           .nworkers = 2,
                                                                           .max_open_files = 12});
    service_->on_extend([](std::uint32_t n) { return n < 3 ? 4096 * (n + std::uint64_t{1}) : 0; });
    rings_ = service_->transport().rings;
    watch_.payload = rings_.payload;
    watch_.payload_nbytes = std::size_t{2} * nslots * rings_.payload_stride;
    others_ = std::make_unique<ring_client>(rings_);
  }

  // False when this service is of no more use.
  bool run(fuzz_input in) {
    const bool stops = in.byte() % 64 == 63;
    orderly_ = true;
    for (int n = 0; n < 48 && !in.empty(); ++n) act(in);
    others_go_on();
    if (stops) service_->stop();
    settle(next_);
    if (stops) {
      if (answer_of(post({})) != -ESHUTDOWN) broken("an answer after stop()");
      return false;
    }
    for (const std::uint32_t handle : handles_) close(handle);
    handles_.clear();
    const auto none_open = [this] { return service_->counters().open_files == 0; };
    if (orderly_ && !wait_until(none_open, std::chrono::seconds(20))) broken("files stay open");
    check();
    return none_open();
  }

 private:
  using words = std::array<std::uint32_t, 16>;
  // By a sequence a request is taken that nobody has begun; its answer races with ours, which ThreadSanitizer would tell.
  static constexpr std::uint32_t nwords = under_tsan ? 15 : 16;

  void act(fuzz_input& in) {
    switch (const std::uint8_t what = in.byte(); what % 16) {
      case 10: {  // a word of a request that may be taken already, or not; or its sequence
        const std::uint32_t slot = in.byte() % nslots, word = in.byte() % nwords;
        orderly_ = false;
        set_word(slot, word, in.any32());
        return;
      }
      case 11: {  // bytes of a payload in use
        std::byte* at = payload(in.byte() % nslots) + in.value<std::uint16_t>() % rings_.payload_stride;
        orderly_ = false;
        set_bytes(at, in.text(in.byte() % 32));
        return;
      }
      case 12: {  // to and fro, while a worker looks at it
        const std::uint32_t slot = in.byte() % nslots, word = in.byte() % nwords, one = in.any32(), other = in.any32();
        orderly_ = false;
        for (int i = 0; i < 100; ++i) set_word(slot, word, i % 2 == 0 ? one : other);
        return;
      }
      case 13:
        settle(next_);
        others_go_on();
        return;
      case 14:  // with another sequence, which settle() puts right
        orderly_ = false;
        return void(post_request(in, static_cast<std::int8_t>(in.byte()), false));
      case 15:  // to a slot whose last request has no answer yet
        orderly_ = false;
        return void(post_request(in, 0, true));
      default:
        return void(post_request(in, 0, false));
    }
  }

  std::uint32_t handle(fuzz_input& in) {
    const std::uint8_t which = in.byte();
    return which < 224 && !handles_.empty() ? handles_[which % handles_.size()] : in.any32();
  }
  static std::string path(fuzz_input& in) {
    using namespace std::string_literals;
    static const std::vector<std::string> known{"a",
                                                "b",
                                                "dir/c",
                                                "empty",
                                                "new",
                                                "dir",
                                                "dir/d",
                                                "dir/new",
                                                "in",
                                                "below/c",
                                                "up",
                                                "out",
                                                "out/x",
                                                "out/new",
                                                "far",
                                                "far_dir/x",
                                                "far_dir/new",
                                                "dangling",
                                                "dir/up/x",
                                                "dir/up/new",
                                                "loop",
                                                "self/self/a",
                                                "fifo",
                                                ".",
                                                "..",
                                                "../sentinel",
                                                "dir/../../sentinel",
                                                "dir/../a",
                                                "dir/d/../../../outside/new",
                                                "/",
                                                "//a",
                                                "/a/",
                                                "a/",
                                                "dir/",
                                                "dir/.",
                                                "",
                                                "a\0b"s,
                                                "\0"s,
                                                "new/new",
                                                "self/../outside",
                                                "/proc/self/root",
                                                "dir/d/",
                                                std::string(255, 'n'),
                                                std::string(256, 'n'),
                                                std::string(4095, '/'),
                                                std::string(2047, '.') + "/x",
                                                [] {
                                                  std::string deep;
                                                  while (deep.size() < 4090) deep += "self/";
                                                  return deep + "a";
                                                }()};
    const std::uint8_t which = in.byte();
    return which < 240 ? known[which % known.size()] : in.text(in.byte());
  }

  std::uint32_t post_request(fuzz_input& in, std::int8_t off, bool rude) {
    constexpr int opens[] = {O_RDONLY,
                             O_RDWR,
                             O_RDWR | O_CREAT,
                             O_WRONLY | O_TRUNC,
                             O_RDWR | O_CREAT | O_EXCL,
                             O_RDONLY | O_DIRECT,
                             O_WRONLY | O_APPEND,
                             O_RDWR | O_NOFOLLOW,
                             O_RDONLY | O_NOFOLLOW,
                             O_WRONLY | static_cast<int>(names::open_write_once),
                             O_RDONLY | O_CREAT,
                             O_ACCMODE,
                             O_RDWR | O_CREAT | O_TRUNC,
                             O_RDWR | O_DIRECT,
                             O_RDONLY | O_PATH,
                             O_RDWR | O_TMPFILE};
    if (!rude && next_ - first_ >= nslots) settle(next_ - nslots + 1);
    const std::uint32_t number = next_++;
    const std::uint32_t slot = number % nslots;
    transport::request ask{};
    const std::uint8_t op = in.byte();
    ask.op = op < 228   ? static_cast<transport::opcode>(op % 12)
             : op < 232 ? transport::opcode::extents
             : op < 240 ? transport::opcode::extend
                        : static_cast<transport::opcode>(in.any32());
    const bool has_path =
        ask.op == transport::opcode::open || (ask.op >= transport::opcode::unlink && ask.op < transport::opcode::extend);
    if (has_path) {
      const std::string first = path(in), second = ask.op == transport::opcode::rename ? path(in) : "";
      set_bytes(payload(slot), first);
      set_bytes(payload(slot) + payload_nbytes, std::string_view(second).substr(0, rings_.payload_stride - payload_nbytes));
      const std::uint8_t how = in.byte();
      ask.nbytes = how < 224 ? static_cast<std::uint32_t>(first.size()) : in.any32();
      ask.handle = ask.op == transport::opcode::rename && how < 240 ? static_cast<std::uint32_t>(second.size()) : in.any32();
    } else {
      ask.handle = handle(in);
      ask.nbytes = in.any32();
      set_bytes(payload(slot), in.text(in.byte() % 16));
    }
    ask.offset = in.any64();
    const std::uint8_t flags = in.byte();
    ask.flags = flags >= 224                        ? in.any32()
                : ask.op == transport::opcode::open ? static_cast<std::uint32_t>(opens[flags % std::size(opens)])
                                                    : flags % 4;
    if (ask.op == transport::opcode::write) {
      ask.skip = in.any32();
      const auto pattern = in.value<std::uint32_t>();
      for (std::uint32_t i = 0; i < payload_nbytes / 32; ++i) {
        store_word(reinterpret_cast<std::uint32_t*>(payload(slot) + payload_nbytes) + i, pattern * (i % 3));
      }
    }
    ask.mode = in.byte() * 37u;
    write(number, ask, off);
    return number;
  }
  std::uint32_t post(const transport::request& ask) {
    if (next_ - first_ >= nslots) settle(next_ - nslots + 1);
    write(next_, ask, 0);
    return next_++;
  }
  void close(std::uint32_t handle) {
    transport::request ask{};
    ask.op = transport::opcode::close;
    ask.handle = handle;
    const std::int64_t result = answer_of(post(ask));
    if (result != 0 && result != -EBADF) broken("close gave " + std::to_string(result));
  }
  std::int64_t answer_of(std::uint32_t number) {
    settle(number + 1);
    return rings_.replies[number % nslots].result;
  }

  // Waits for the answers of all requests before `end`, whose sequences it puts right; one after another, as later ones may have
  // been written over them.
  void settle(std::uint32_t end) {
    for (; first_ != end; ++first_) {
      const std::uint32_t slot = first_ % nslots;
      const auto answered = [&] {
        return static_cast<std::int32_t>(std::atomic_ref(rings_.replies[slot].sequence).load(std::memory_order_acquire) -
                                         (first_ + 1)) >= 0;
      };
      if (!answered()) {
        std::atomic_ref(rings_.requests[slot].sequence).store(first_ + 1, std::memory_order_release);
        const auto until = std::chrono::steady_clock::now() + limit;
        for (int spins = 0; !answered(); ++spins) {
          if (spins % 1024 == 1023 && std::chrono::steady_clock::now() > until) broken("no answer");
          if (spins > 100) std::this_thread::yield();
        }
      }
      if (next_ - first_ > nslots) continue;  // a later one's answer may come any moment
      const transport::reply& got = rings_.replies[slot];
      if (got.result < -4095 || got.result > payload_nbytes) broken("a result of " + std::to_string(got.result));
      if (got.result >= 8 && directory_.is_outside(payload(slot))) broken("bytes from outside of the root");
      fuzz_successes += got.result >= 0;
      if (got.result >= 0 && got.handle != 0) handles_.push_back(got.handle);
    }
  }

  // Somebody else's request, on the other ring.
  void others_go_on() {
    transport::request ask{};
    ask.op = transport::opcode::stat;
    const auto t = others_->take(1);
    others_->post(t, ask);
    const auto until = std::chrono::steady_clock::now() + limit;
    while (!others_->answered(t)) {
      if (std::chrono::steady_clock::now() > until) broken("others wait");
      std::this_thread::yield();
    }
    const transport::reply& got = rings_.replies[t.index];
    if (got.result != 0 || !S_ISDIR(got.mode)) broken("others got " + std::to_string(got.result));
    others_->give_back(t);
  }

  void check() {
    directory_.check_outside();
    files_->trim();  // mappings of files that are gone
    if (watch_.changed.exchange(false)) directory_.fill();
  }

  std::byte* payload(std::uint32_t slot) const { return rings_.payload + std::size_t{slot} * rings_.payload_stride; }
  void write(std::uint32_t number, const transport::request& ask, std::int8_t off) {
    words w;
    std::memcpy(w.data(), &ask, sizeof ask);
    for (std::uint32_t i = 0; i < 15; ++i) set_word(number % nslots, i, w[i]);
    std::atomic_ref(rings_.requests[number % nslots].sequence)
        .store(number + 1 + static_cast<std::uint32_t>(off), std::memory_order_release);  // meets the host's acquire
  }
  void set_word(std::uint32_t slot, std::uint32_t word, std::uint32_t value) const {
    std::atomic_ref(reinterpret_cast<std::uint32_t*>(&rings_.requests[slot])[word]).store(value, std::memory_order_relaxed);
  }
  // A device's stores race with the host's loads on purpose: ThreadSanitizer need not know of them.
  __attribute__((no_sanitize("thread"))) static void store_word(volatile std::uint32_t* to, std::uint32_t value) { *to = value; }
  __attribute__((no_sanitize("thread"))) void set_bytes(std::byte* to, std::string_view bytes) const {
    const std::byte* end = rings_.payload + watch_.payload_nbytes;
    for (std::size_t i = 0; i < bytes.size() && to + i < end; ++i) {
      reinterpret_cast<volatile char*>(to)[i] = bytes[i];
    }
  }

  static constexpr auto limit = std::chrono::seconds(20);
  fuzz_directory& directory_;
  fuzz_watch watch_;
  std::shared_ptr<store::store> files_;
  std::unique_ptr<service::service> service_;
  transport::ring_layout rings_;
  std::unique_ptr<ring_client> others_;
  std::uint32_t first_ = 0, next_ = 0;  // tickets of ring 0: the first that has no answer, the next
  std::vector<std::uint32_t> handles_;
  bool orderly_ = true;  // all that was opened is known
};

// Runs inputs one after another. A service lives on from input to input, as long as it can.
class service_fuzzer {
 public:
  bool in_memory() const { return is_tmpfs(directory_.root()); }
  void run(std::span<const std::uint8_t> bytes) {
    fuzz_input in(bytes);
    const unsigned how = in.byte() % fuzzed_service::nkinds;
    const bool plain = (how & 2) != 0;
    const set_meanwhile<bool> io_uring(service::for_tests::io_uring, !plain);
    const set_meanwhile<bool> openat2_missing(store::openat2_missing, plain);
    const set_meanwhile<bool> eager_loads(service::for_tests::eager_loads, !plain);
    auto& one = services_[how];
    if (one == nullptr) one = std::make_unique<fuzzed_service>(directory_, how);
    if (!one->run(in)) one.reset();
  }

 private:
  fuzz_directory directory_;
  std::array<std::unique_ptr<fuzzed_service>, fuzzed_service::nkinds> services_;
};

}  // namespace gpufs::test
