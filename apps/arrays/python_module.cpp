// SPDX-License-Identifier: Apache-2.0
// gpufs._rows: what gpufs.open() reads and writes by. The interpreter's lock is not held while anything waits. Memory is named by
// its address, and Python keeps it alive: so it may be any library's.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <system_error>

#include "apps/arrays/background.hpp"
#include "apps/arrays/rows.hpp"
#include "apps/python_support.hpp"
#include "gpufs/simt/stream.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace gpufs::apps;
using namespace gpufs::apps::arrays;

namespace {

std::unique_ptr<row_mount> make_mount(const std::string& engine, const std::string& root, const gpufs::mount_options& options) {
  if (const std::string why = why_not(engine); !why.empty()) throw gpufs::error("engine " + engine + ": " + why);
  if (engine == "cpu") return make_mount_cpu(root);
#if GPUFS_WITH_CUDA
  if (engine == "gpu") return make_mount_cuda(root, options);
#endif
  return make_mount_simt(root, options);
}

int current_device(const std::string& engine) {
#if GPUFS_WITH_CUDA
  if (engine == "gpu") {
    const gpufs::simt::platform* const device = gpufs::simt::cuda_platform();
    return device != nullptr ? device->index() : 0;
  }
#endif
  return engine == "simt" ? gpufs::simt::runtime::cpu_current_device().index() : 0;
}

// Of the process that made a thing: of fork()'s child, the library's threads and CUDA's context are not.
class owner {
 public:
  bool is_here() const { return process_ == ::getpid(); }

 private:
  pid_t process_ = ::getpid();
};

// A mutex that a child of fork() has anew: in the parent, another thread may have held it.
class child_safe_mutex {
 public:
  std::shared_mutex& get() {
    state* now = state_.load(std::memory_order_acquire);  // meets the exchange's release
    while (!now->here.is_here()) {
      auto* fresh = new state;
      if (state_.compare_exchange_strong(now, fresh, std::memory_order_acq_rel)) return fresh->mutex;  // the old one stays, held
      delete fresh;
    }
    return now->mutex;
  }
  child_safe_mutex() = default;
  ~child_safe_mutex() { delete state_.load(); }
  child_safe_mutex(const child_safe_mutex&) = delete;
  child_safe_mutex& operator=(const child_safe_mutex&) = delete;

 private:
  struct state {
    owner here;
    std::shared_mutex mutex;
  };
  std::atomic<state*> state_{new state};
};

// Reading what a large cache counts from a GPU takes some milliseconds, and longer behind others' copies.
template <class Work>
auto without_lock(const Work& work) {
  const unlocked others;
  return work();
}

nb::dict dict_of(const gpufs::file_report& file) {
  nb::dict d;
  d["path"] = nb::steal(PyUnicode_DecodeFSDefault(file.path.c_str()));
  d["nbytes"] = file.nbytes;
  d["way"] = file.reason;
  d["hits"] = file.counters.hits;
  d["faults"] = file.counters.faults;
  d["bytes_filled"] = file.counters.bytes_filled;
  d["bytes_read"] = file.counters.bytes_read;
  d["bytes_written"] = file.counters.bytes_written;
  return d;
}

// A folder with its page cache. Its files keep it.
class mount_of_rows {
 public:
  mount_of_rows(const std::string& engine, const std::string& root, const gpufs::mount_options& options)
      : survives_fork_(engine == "cpu") {
    const unlocked others;
    mount_ = make_mount(engine, root, options);
  }
  ~mount_of_rows() {
    const unlocked others;
    if (!survives_fork_ && !here_.is_here()) (void)mount_.release();  // the parent's, as the threads of its streams
    mount_.reset();
  }
  mount_of_rows(const mount_of_rows&) = delete;
  mount_of_rows& operator=(const mount_of_rows&) = delete;

  row_mount& get() const {
    if (!survives_fork_ && !here_.is_here())
      throw gpufs::error(
          "this process was forked after gpufs was first used in its parent, whose GPU, page cache and threads it has not: open "
          "the file anew here, or start processes by 'spawn' (multiprocessing, DataLoader)");
    return *mount_;
  }
  bool survives_fork() const { return survives_fork_; }

  void read_files(const std::vector<nb::bytes>& paths, const std::vector<std::uint64_t>& sizes,
                  const std::vector<std::uint64_t>& at, std::uintptr_t out, bool on_device) const {
    if (paths.size() != sizes.size() || paths.size() != at.size()) throw nb::value_error("not as many sizes as paths");
    std::vector<whole_file> files;
    files.reserve(paths.size());
    for (std::size_t i = 0; i < paths.size(); ++i) files.push_back({{paths[i].c_str(), paths[i].size()}, sizes[i], at[i]});
    const unlocked others;
    get().read_files(files, reinterpret_cast<std::byte*>(out), on_device);
  }
  nb::dict counters() const {
    const gpufs::mount_counters now = without_lock([&] { return get().counters(); });
    nb::dict d = counters_of(now);
    d["bytes_written"] = now.bytes_written;
    d["bytes_written_back"] = now.bytes_written_back;
    d["unwritten_pages"] = now.unwritten_pages;
    d["write_errors"] = now.write_errors;
    return d;
  }
  nb::list files() const {
    nb::list all;
    const std::vector<gpufs::file_report> files = without_lock([&] { return get().files(); });
    for (const gpufs::file_report& file : files) all.append(dict_of(file));
    return all;
  }

 private:
  owner here_;
  bool survives_fork_;
  std::unique_ptr<row_mount> mount_;
};

// An open file.
class rows_of_file {
 public:
  rows_of_file(std::shared_ptr<mount_of_rows> mount, const std::string& path, const row_place& place, bool writable)
      : mount_(std::move(mount)) {
    const unlocked others;
    file_ = mount_->get().open(path, place, writable);
  }
  ~rows_of_file() {
    const unlocked others;
    end_prefetches();
    if (!mount_->survives_fork() && !here_.is_here()) (void)file_.release();  // the parent's
    file_.reset();
  }
  rows_of_file(const rows_of_file&) = delete;
  rows_of_file& operator=(const rows_of_file&) = delete;

  void read(std::uintptr_t ids, std::uint64_t first, std::uint64_t n, std::uintptr_t out) {
    use([&] { file_->read(list(ids, first, n), reinterpret_cast<std::byte*>(out)); });
  }
  void write(std::uintptr_t ids, std::uint64_t first, std::uint64_t n, std::uintptr_t src) {
    use([&] { file_->write(list(ids, first, n), reinterpret_cast<const std::byte*>(src)); });
  }
  void prefetch(std::uintptr_t ids, std::uint64_t first, std::uint64_t n) {
    const auto* begin = reinterpret_cast<const std::int64_t*>(ids);
    std::vector<std::int64_t> mine(begin, begin + (begin != nullptr ? n : 0));
    use([&] {
      const std::lock_guard lock(prefetcher_mutex_.get());
      if (!prefetcher_here_.is_here()) {
        end_prefetches();
        prefetcher_here_ = owner();
      }
      if (!prefetcher_) prefetcher_ = std::make_unique<prefetcher>(*file_);
      prefetcher_->add(std::move(mine), first, n);
    });
  }
  bool prefetched() {
    bool idle = true;
    use([&] {
      const std::lock_guard lock(prefetcher_mutex_.get());
      idle = !prefetcher_ || !prefetcher_here_.is_here() || prefetcher_->idle();
    });
    return idle;
  }
  void read_on(stream_handle stream, std::uintptr_t ids, std::uint64_t n, std::uintptr_t out) {
    use([&] { file_->read_on(stream, list(ids, 0, n), reinterpret_cast<std::byte*>(out)); });
  }
  void write_on(stream_handle stream, std::uintptr_t ids, std::uint64_t n, std::uintptr_t src) {
    use([&] { file_->write_on(stream, list(ids, 0, n), reinterpret_cast<const std::byte*>(src)); });
  }
  void prefetch_on(stream_handle stream, std::uintptr_t ids, std::uint64_t n) {
    use([&] { file_->prefetch_on(stream, list(ids, 0, n)); });
  }
  bool ended() {
    bool all = true;
    use([&] { all = file_->ended(); });
    return all;
  }
  void check() {
    use([&] { file_->check(); });
  }
  void prepare() {
    use([&] { file_->prepare(); });
  }
  void flush(bool durable) {
    use([&] { file_->flush(durable); });
  }
  // Waits for the calls that are under way.
  void close() {
    const unlocked others;
    const std::unique_lock lock(mutex_.get());
    if (!file_) return;
    end_prefetches();
    if (!mount_->survives_fork() && !here_.is_here()) {
      (void)file_.release();
      return;
    }
    const std::unique_ptr<row_file> last = std::move(file_);
    last->close();
  }

 private:
  static row_list list(std::uintptr_t ids, std::uint64_t first, std::uint64_t n) {
    return {reinterpret_cast<const std::int64_t*>(ids), first, n};
  }
  void end_prefetches() {
    if (!prefetcher_here_.is_here()) (void)prefetcher_.release();  // its thread is the parent's
    prefetcher_.reset();
  }
  template <class Work>
  void use(const Work& work) {
    const unlocked others;
    const std::shared_lock lock(mutex_.get());
    if (!file_) throw nb::value_error("the array is closed");
    (void)mount_->get();
    work();
  }

  owner here_;
  std::shared_ptr<mount_of_rows> mount_;
  child_safe_mutex mutex_;
  std::unique_ptr<row_file> file_;
  child_safe_mutex prefetcher_mutex_;
  owner prefetcher_here_;
  std::unique_ptr<prefetcher> prefetcher_;
};

// A stream of the CPU machine, for tests of what else takes a GPU.
class test_stream {
 public:
  std::uintptr_t handle() const { return reinterpret_cast<std::uintptr_t>(&stream_); }
  // What comes behind it waits until go() is called.
  void hold() {
    stream_.get().enqueue([this] {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return going_; });
      going_ = false;
    });
  }
  void go() {
    const std::lock_guard lock(mutex_);
    going_ = true;
    changed_.notify_all();
  }
  void wait() const {
    const unlocked others;
    stream_.wait();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool going_ = false;
  gpufs::simt::stream stream_;
};

void translate_file_errors() {
  nb::register_exception_translator(
      [](const std::exception_ptr& p, void*) {
        try {
          std::rethrow_exception(p);
        } catch (const file_error& e) {
          const nb::object path = nb::steal(PyUnicode_DecodeFSDefault(e.path().c_str()));
          const nb::object error = nb::module_::import_("builtins").attr("OSError")(e.number(), e.what(), path);
          PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
        }
      },
      nullptr);
}

}  // namespace

NB_MODULE(_rows, m) {
  m.doc() = "Rows of arrays in files, for gpufs.open(). Memory is named by its address.";
  translate_errors();
  translate_file_errors();
  m.def("engine_missing", &why_not, "engine"_a, "Why the engine (cpu, simt, gpu) cannot run here; empty when it can.");
  m.def("current_device", &current_device, "engine"_a, "The number of the calling thread's device.");
  m.def(
      "sizes",
      [](const std::vector<nb::bytes>& paths) {
        std::vector<std::string> names;
        names.reserve(paths.size());
        for (const nb::bytes& path : paths) names.emplace_back(path.c_str(), path.size());
        const unlocked others;
        return sizes_of(names);
      },
      "paths"_a, "The sizes of these regular files.");
  nb::class_<mount_of_rows>(m, "Mount", "A folder with the page cache of the files in it.")
      .def(
          "__init__",
          [](mount_of_rows* self, const std::string& engine, const nb::object& root, int device, std::uint64_t cache_nbytes,
             std::uint32_t page_nbytes, bool writable, std::uint64_t pin_nbytes) {
            gpufs::mount_options options;
            options.device = device;
            options.cache_nbytes = cache_nbytes;
            options.page_nbytes = page_nbytes;
            options.writable = writable;
            options.pin_nbytes = pin_nbytes;
            new (self) mount_of_rows(engine, to_path(root), options);
          },
          "engine"_a, "root"_a, "device"_a, "cache_nbytes"_a, "page_nbytes"_a, "writable"_a, "pin_nbytes"_a,
          "pin_nbytes: of the host's memory; 0: half of what is available.")
      .def("read_files", &mount_of_rows::read_files, "paths"_a, "sizes"_a, "at"_a, "out"_a, "on_device"_a,
           "All bytes of files below the root, each to its place at[i] of the host's memory, or the device's, at `out`.")
      .def("way", [](const mount_of_rows& mount) { return mount.get().way(); })
      .def("device", [](const mount_of_rows& mount) { return mount.get().device(); })
      .def("cache_nbytes", [](const mount_of_rows& mount) { return mount.get().cache_nbytes(); })
      .def("counters", &mount_of_rows::counters, "Zeros where the engine has no page cache.")
      .def("files", &mount_of_rows::files, "The open files.");
  nb::class_<rows_of_file>(m, "Rows", "An open file with rows of equal size.")
      .def(
          "__init__",
          [](rows_of_file* self, std::shared_ptr<mount_of_rows> mount, const nb::object& path, std::uintptr_t pieces,
             std::uint64_t npieces, std::uint64_t row_nbytes, std::uint64_t nrows, bool writable) {
            const auto* const first = reinterpret_cast<const row_piece*>(pieces);
            new (self) rows_of_file(std::move(mount), to_path(path), {row_nbytes, nrows, {first, first + npieces}}, writable);
          },
          "mount"_a, "path"_a, "pieces"_a, "npieces"_a, "row_nbytes"_a, "nrows"_a, "writable"_a,
          "pieces: of each piece of the file the number of its first row, and where it begins, as int64.")
      .def("read", &rows_of_file::read, "ids"_a, "first"_a, "n"_a, "out"_a,
           "Copies the rows with the n numbers (int64) at `ids`, or where that is 0 those from `first` on, to `out`. All is in the "
           "host's memory. Waits for them.")
      .def("write", &rows_of_file::write, "ids"_a, "first"_a, "n"_a, "src"_a, "The other way; the numbers are all different.")
      .def("prefetch", &rows_of_file::prefetch, "ids"_a, "first"_a, "n"_a, "Begins to bring the rows in, and returns at once.")
      .def("prefetched", &rows_of_file::prefetched, "Whether all that prefetch was asked for has been begun.")
      .def("read_on", &rows_of_file::read_on, "stream"_a, "ids"_a, "n"_a, "out"_a,
           "As read, in a stream, without waiting. All is in the device's memory.")
      .def("write_on", &rows_of_file::write_on, "stream"_a, "ids"_a, "n"_a, "src"_a)
      .def("prefetch_on", &rows_of_file::prefetch_on, "stream"_a, "ids"_a, "n"_a)
      .def("ended", &rows_of_file::ended, "Whether all that was put into streams has ended.")
      .def("check", &rows_of_file::check, "Raises what went wrong there, once.")
      .def("prepare", &rows_of_file::prepare, "Registers all of the file with the device, and waits.")
      .def("flush", &rows_of_file::flush, "durable"_a, "Brings what was written to the file.")
      .def("close", &rows_of_file::close, "Flushes, and ends the use of the file. Twice does nothing.");
  nb::class_<test_stream>(m, "TestStream", "A stream of the CPU machine, in which a test can hold what comes behind.")
      .def(nb::init<>())
      .def("handle", &test_stream::handle)
      .def("hold", &test_stream::hold)
      .def("go", &test_stream::go)
      .def("wait", &test_stream::wait);
}
