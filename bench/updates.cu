// SPDX-License-Identifier: Apache-2.0
// Updates without a link: every thread adds to random 4-byte elements of a cached file, or stores to random elements of it.
//
// ap_add_spread: anywhere in 1 GiB. ap_add_six_pages: in six pages, where lanes meet on pages and sometimes on elements. Beside
// each the same adds to device memory by the hardware's atomic instruction, which no file system can pass. The file begins as
// zeros; what it has after close is summed up, and must be the number of adds. A first run, which is not measured, makes the
// pages dirty, and they go back to the file after the last one: neither is in the figures.
//
// store_spread_4, store_spread_16: stores of 4 and 16 bytes anywhere in 1 GiB by store_at, which asks for nothing that was there.
// Beside each the same stores to device memory. What is stored tells the element and the run. After the last run that memory must
// have what the host finds by going through the run's stores again, and the file after close the same bytes as the memory.
#include <cstring>
#include <fstream>

#include "access.hpp"
#include "written.hpp"

namespace {

using namespace bench;

struct add_to_file {
  gpufs::mount_ref fs;
  gpufs::file_number number;
  std::uint64_t nelements, seed;
  std::uint32_t per_thread;
  std::uint64_t* failed;

  GPUFS_DEVICE void operator()() const {
    const gpufs::file file(fs, number);
    const auto counts = gpufs::map<std::uint32_t>(gpufs::this_warp(), file);
    const std::uint64_t me = std::uint64_t{gpufs::simt::block_rank()} * gpufs::simt::block_size() + gpufs::simt::thread_rank();
    for (std::uint32_t i = 0; i < per_thread; ++i) {
      gpufs::fetch_add_at(counts, static_cast<std::ptrdiff_t>(element_of(me * per_thread + i, seed, nelements)), 1u);
    }
    if (counts.error() != 0) atomic_ref<std::uint64_t>(*failed).add_relaxed(1);
  }
};

struct add_to_memory {
  std::uint32_t* counts;
  std::uint64_t nelements, seed;
  std::uint32_t per_thread;

  GPUFS_DEVICE void operator()() const {
    const std::uint64_t me = std::uint64_t{gpufs::simt::block_rank()} * gpufs::simt::block_size() + gpufs::simt::thread_rank();
    for (std::uint32_t i = 0; i < per_thread; ++i) {
      atomic_ref<std::uint32_t>(counts[element_of(me * per_thread + i, seed, nelements)]).add_relaxed(1);
    }
  }
};

// What is stored to an element of 4 or 16 bytes: no matter which of the threads that meet on it is the last.
template <class T>
GPUFS_HOST_DEVICE T stored_value(std::uint64_t element, std::uint64_t seed) {
  const std::uint64_t x = word_of(element ^ ~seed);
  const auto low = static_cast<std::uint32_t>(x), high = static_cast<std::uint32_t>(x >> 32);
  if constexpr (sizeof(T) == 4) {
    return low;
  } else {
    return {{low, high, ~low, ~high}};
  }
}

// Which elements a run stores to.
struct spread_stores {
  std::uint64_t nelements, seed;
  std::uint32_t per_thread;

  GPUFS_HOST_DEVICE std::uint64_t element(std::uint64_t thread, std::uint32_t i) const {
    return element_of(thread * per_thread + i, seed, nelements);
  }
};

template <class T>
struct store_to_file {
  gpufs::mount_ref fs;
  gpufs::file_number number;
  spread_stores stores;
  std::uint64_t* failed;

  GPUFS_DEVICE void operator()() const {
    const auto elements = gpufs::map<T>(gpufs::this_warp(), gpufs::file(fs, number));
    const std::uint64_t me = std::uint64_t{gpufs::simt::block_rank()} * gpufs::simt::block_size() + gpufs::simt::thread_rank();
    for (std::uint32_t i = 0; i < stores.per_thread; ++i) {
      const std::uint64_t e = stores.element(me, i);
      gpufs::store_at(elements, static_cast<std::ptrdiff_t>(e), stored_value<T>(e, stores.seed));
    }
    if (elements.error() != 0) atomic_ref<std::uint64_t>(*failed).add_relaxed(1);
  }
};

template <class T>
struct store_to_memory {
  T* elements;
  spread_stores stores;

  GPUFS_DEVICE void operator()() const {
    const std::uint64_t me = std::uint64_t{gpufs::simt::block_rank()} * gpufs::simt::block_size() + gpufs::simt::thread_rank();
    for (std::uint32_t i = 0; i < stores.per_thread; ++i) {
      const std::uint64_t e = stores.element(me, i);
      if constexpr (sizeof(T) == 4) {
        atomic_ref<T>(elements[e]).store(stored_value<T>(e, stores.seed), std::memory_order_relaxed);
      } else {
        gpufs::simt::store_relaxed_16(elements + e, stored_value<T>(e, stores.seed));
      }
    }
  }
};

constexpr std::uint32_t page_nbytes = 4096;

// A file of zeros, and a mount whose cache has room for all of it, which may be dirty.
std::string make_zeros(const std::string& folder, std::uint64_t nbytes) {
  const std::string path = folder + "/counts";
  std::ofstream file(path, std::ios::binary);
  const std::vector<char> zeros(1 << 20);
  for (std::uint64_t done = 0; done < nbytes; done += zeros.size())
    file.write(zeros.data(), static_cast<std::streamsize>(std::min<std::uint64_t>(zeros.size(), nbytes - done)));
  if (!file.flush()) throw gpufs::error("cannot write " + path);
  return path;
}
gpufs::mount mount_to_update(const std::string& folder, std::uint64_t nbytes) {
  gpufs::mount_options options = short_waits();
  options.cache_nbytes = 2 * nbytes + nbytes / 4 + 64 * page_nbytes;
  options.page_nbytes = page_nbytes;
  options.pin_nbytes = nbytes + (1u << 30);
  options.dirty_nbytes = options.cache_nbytes / 2;
  options.writable = true;
  return gpufs::mount(folder, options);
}

std::uint64_t seed_of(int r) { return word_of(static_cast<std::uint64_t>(r) + 3000); }

std::uint64_t sum_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::uint32_t> words(1 << 20);
  std::uint64_t sum = 0;
  while (file) {
    file.read(reinterpret_cast<char*>(words.data()), static_cast<std::streamsize>(words.size() * 4));
    for (std::size_t i = 0; i < static_cast<std::size_t>(file.gcount()) / 4; ++i) sum += words[i];
  }
  return sum;
}

// Runs a kernel for each r on the file of make_zeros, cached, and closes it; `total`: how many updates a run makes. kernel(mount,
// file, r, failed); memory: what the same updates reach in the device's memory.
template <class Kernel>
void update_file(measurement& m, const measurement& memory, const std::string& folder, std::uint64_t nbytes, const shape& how,
                 double total, int repeats, Kernel kernel) {
  const gpufs::mount fs = mount_to_update(folder, nbytes);
  host_file file(fs, "counts", O_RDWR);
  fill_cache(fs, file.ref().number(), how, nbytes, 0);
  const gpufs::mount_counters before = fs.counters();
  const device_array<std::uint64_t> failed(1);
  for (int r = 0; r <= repeats; ++r) {
    const double seconds = run(how, kernel(fs.ref(), file.ref().number(), r, failed.get()));
    if (r > 0) m.samples.push_back(total / seconds * 1e-9);
  }
  m.verified = failed.read_one() == 0;
  add_hits(m, before, fs.counters());
  m.details.emplace_back("share of memory's", spread_of(m.samples).median / spread_of(memory.samples).median);
  file.close();
}

void measure(const char* name, const char* label, std::uint64_t nelements, std::uint64_t nbytes, const std::string& folder,
             const shape& how, double nadds, int repeats, results& out) {
  const auto per_thread = static_cast<std::uint32_t>(std::ceil(nadds / static_cast<double>(how.threads())));
  const auto total = static_cast<double>(how.threads() * per_thread);
  measurement memory{std::string(name) + "_memory", "the same adds to device memory", {}, "G adds/s"};
  memory.figure = measurement::kind::itself;
  {
    const device_array<std::uint32_t> counts(nbytes / 4);
    for (int r = 0; r <= repeats; ++r) {
      const double seconds = run(how, add_to_memory{counts.get(), nelements, seed_of(r), per_thread});
      if (r > 0) memory.samples.push_back(total / seconds * 1e-9);
    }
    std::uint64_t sum = 0;
    for (const std::uint32_t n : counts.read()) sum += n;
    memory.verified = sum == how.threads() * per_thread * static_cast<std::uint64_t>(repeats + 1);
  }
  out.add(memory);

  const std::string path = make_zeros(folder, nbytes);
  measurement m{name, label, {}, "G adds/s"};
  m.figure = measurement::kind::itself;
  update_file(m, memory, folder, nbytes, how, total, repeats,
              [&](gpufs::mount_ref fs, gpufs::file_number number, int r, std::uint64_t* failed) {
                return add_to_file{fs, number, nelements, seed_of(r), per_thread, failed};
              });
  m.verified = m.verified && sum_of_file(path) == how.threads() * per_thread * static_cast<std::uint64_t>(repeats + 1);
  out.add(m);
}

template <class T>
void measure_stores(const char* name, const std::string& folder, std::uint64_t nbytes, const shape& how, double nstores,
                    int repeats, results& out) {
  const auto per_thread = static_cast<std::uint32_t>(std::ceil(nstores / static_cast<double>(how.threads())));
  const std::uint64_t total = how.threads() * per_thread, nelements = nbytes / sizeof(T);
  const auto stores_of = [&](int r) { return spread_stores{nelements, seed_of(r), per_thread}; };
  measurement memory{std::string(name) + "_memory", "the same stores to device memory", {}, "G stores/s"};
  memory.figure = measurement::kind::itself;
  std::vector<std::uint64_t> words;  // what the file must have in the end
  {
    const device_array<std::uint64_t> elements(nbytes / 8);
    for (int r = 0; r <= repeats; ++r) {
      const double seconds = run(how, store_to_memory<T>{reinterpret_cast<T*>(elements.get()), stores_of(r)});
      if (r > 0) memory.samples.push_back(static_cast<double>(total) / seconds * 1e-9);
    }
    words = elements.read();
  }
  const spread_stores last = stores_of(repeats);
  const std::uint64_t wrong = sum_in_parallel(total, [&](std::uint64_t begin, std::uint64_t end) {
    std::uint64_t n = 0;
    for (std::uint64_t i = begin; i < end; ++i) {
      const std::uint64_t e = element_of(i, last.seed, nelements);
      const T value = stored_value<T>(e, last.seed);
      n += std::memcmp(reinterpret_cast<const std::byte*>(words.data()) + e * sizeof(T), &value, sizeof value) != 0;
    }
    return n;
  });
  if (wrong != 0) std::printf("WRONG: %llu stores to device memory\n", static_cast<unsigned long long>(wrong));
  memory.verified = wrong == 0;
  out.add(memory);

  const std::string path = make_zeros(folder, nbytes);
  measurement m{name, "a random element a thread", {}, "G stores/s"};
  m.figure = measurement::kind::itself;
  update_file(m, memory, folder, nbytes, how, static_cast<double>(total), repeats,
              [&](gpufs::mount_ref fs, gpufs::file_number number, int r, std::uint64_t* failed) {
                return store_to_file<T>{fs, number, stores_of(r), failed};
              });
  const std::uint64_t differ = wrong_words(path, nbytes, [&](std::uint64_t i) { return words[i]; });
  if (differ != 0) std::printf("WRONG: %llu words of the file\n", static_cast<unsigned long long>(differ));
  m.verified = m.verified && wrong == 0 && differ == 0;
  out.add(m);
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("updates", [&] {
    arguments args(argc, argv, "updates  --dir DIR  --file-gib N  --blocks-per-sm N  --warps N  --adds N  --stores N  --repeats N",
                   on_gpu);
    const machine_facts machine = this_machine();
    const work_folder folder(args.path("dir", "/dev/shm"));
    const std::uint64_t nbytes = args.nbytes("file-gib", {1, 0.25, 1. / 1024}) / page_nbytes * page_nbytes;
    const shape how = grid_of(machine, args);
    const double nadds = args.number("adds", {2e9, 1e8, 2048});
    const double nstores = args.number("stores", {2e9, 1e8, 2048});
    const int repeats = repeats_of(args);
    results out("updates", args, machine);
    if (args.wants("ap_add_spread"))
      measure("ap_add_spread", "a random element a thread", nbytes / 4, nbytes, folder.path(), how, nadds, repeats, out);
    if (args.wants("ap_add_six_pages"))
      measure("ap_add_six_pages", "a random element of six pages", 6 * page_nbytes / 4, nbytes, folder.path(), how, nadds / 8,
              repeats, out);
    if (args.wants("store_spread_4"))
      measure_stores<std::uint32_t>("store_spread_4", folder.path(), nbytes, how, nstores, repeats, out);
    if (args.wants("store_spread_16"))
      measure_stores<gpufs::simt::vec16>("store_spread_16", folder.path(), nbytes, how, nstores, repeats, out);
    args.done();
    return out.finish();
  });
}
