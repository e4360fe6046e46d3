// SPDX-License-Identifier: Apache-2.0
// What must not compile, a CASE each. Case 0 must: what the others are made of.
#include "gpufs/gpufs.hpp"

using gpufs::ptr;

struct has_destructor {
  int value;
  ~has_destructor() {}
};
struct packed_pair {
  int a, b;
};
struct own_pages {
  GPUFS_DEVICE static std::uint32_t form() { return 1; }
  template <class Group>
  GPUFS_DEVICE static int filled(Group, std::byte*, std::uint64_t, std::uint32_t) {
    return 0;
  }
};
struct needs_a_key : own_pages {
  explicit needs_a_key(int);
};
constexpr auto order = std::memory_order_relaxed;

GPUFS_DEVICE void use(ptr<const int> r, ptr<int> w, ptr<float> f, ptr<packed_pair> pair, const gpufs::file& opened) {
#if CASE == 0
  w[3] = *r;
  *w += 1;
  r = w;
  w.fetch_add(1, order);
  f.exchange(1.0f, order);
  (void)r.load<gpufs::simt::vec16>();
  (void)(r == w);
  pair[1] = packed_pair{1, 2};
  (void)gpufs::map<const float>(gpufs::this_warp(), opened);
  (void)gpufs::map<const int>(gpufs::this_warp(), opened, 0, 1, gpufs::map_flags::none, own_pages{});
  gpufs::mapped_page page = gpufs::map_page(gpufs::this_warp(), opened, 0);
  gpufs::mapped_page<> held = std::move(page);
  (void)gpufs::unmap_page(gpufs::this_warp(), std::move(held));
  gpufs::mapped_page written = gpufs::map_page<std::byte>(gpufs::this_warp(), opened, 0);
  written.data()[0] = std::byte{1};
  (void)gpufs::msync(gpufs::this_warp(), written);
  (void)gpufs::unmap_page(gpufs::this_warp(), std::move(written));
  const gpufs::array<int> a;
  a[0] = a[a[1u]];
  a[0] += 1;
  const gpufs::array<const int> constant = a;
  (void)constant[std::size_t{0}];
#elif CASE == 1
  *r = 1;
#elif CASE == 2
  r[2] = 1;
#elif CASE == 3
  w = r;
#elif CASE == 4
  (void)gpufs::map<const has_destructor>(gpufs::this_warp(), opened);
#elif CASE == 5
  (void)gpufs::map<volatile int>(gpufs::this_warp(), opened);
#elif CASE == 6
  (void)gpufs::map<int>(gpufs::this_warp(), opened, 0, 1, gpufs::map_flags::private_changes, own_pages{});
#elif CASE == 7
  (void)gpufs::map<const int>(opened);
#elif CASE == 8
  r.fetch_add(1, order);
#elif CASE == 9
  (void)(w == f);
#elif CASE == 10
  (void)(w - f);
#elif CASE == 11
  struct three_bytes {
    char byte[3];
  };
  (void)r.load<three_bytes>();
#elif CASE == 12
  f.fetch_add(1.0f, order);
#elif CASE == 13
  (void)pair.exchange(packed_pair{1, 2}, order);
#elif CASE == 14
  r.exchange(1, order);
#elif CASE == 15
  int expected = 0;
  r.compare_exchange(expected, 1, order);
#elif CASE == 16
  ptr<const float> other = w;
#elif CASE == 17
  int* plain = w;
#elif CASE == 18
  w->a = 1;
#elif CASE == 19
  pair->a = 1;
#elif CASE == 20
  int& element = *w;
#elif CASE == 21
  ptr<int&> reference;
#elif CASE == 22
  (void)gpufs::map<const int>(gpufs::this_warp(), opened, 0, 1, gpufs::map_flags::none, needs_a_key{1});
#elif CASE == 23
  (void)gpufs::open(gpufs::simt::lane_id(), gpufs::mount_ref(), "f");
#elif CASE == 24
  (void)gpufs::pread(gpufs::simt::some_lanes(1), opened, nullptr, 0, 0);
#elif CASE == 25
  gpufs::mapped_page page = gpufs::map_page(gpufs::this_warp(), opened, 0);
  gpufs::mapped_page copy = page;
#elif CASE == 26
  gpufs::mapped_page page = gpufs::map_page(gpufs::this_warp(), opened, 0);
  (void)gpufs::unmap_page(gpufs::this_warp(), page);
#elif CASE == 27
  gpufs::mapped_page page = gpufs::map_page<std::byte>(gpufs::this_warp(), opened, 0);
  gpufs::mapped_page<std::byte> copy;
  copy = page;
#elif CASE == 28
  (void)gpufs::map_page<int>(gpufs::this_warp(), opened, 0);
#elif CASE == 29
  gpufs::map_page(gpufs::this_warp(), opened, 0).data()[0] = std::byte{1};
#elif CASE == 30
  (void)gpufs::msync(gpufs::this_warp(), gpufs::map_page(gpufs::this_warp(), opened, 0));
#elif CASE == 31
  gpufs::store_at(pair, 0, packed_pair{1, 2});
#elif CASE == 32
  gpufs::array<const int>()[0] = 1;
#elif CASE == 33
  (void)gpufs::array<const int>().set(0, 1);
#elif CASE == 34
  gpufs::array<int> other = gpufs::array<const int>();
#elif CASE == 35
  (void)static_cast<int>(gpufs::array<int>()[1.5]);
#elif CASE == 36
  gpufs::array<std::string> texts;
#endif
}
