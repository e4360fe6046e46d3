// SPDX-License-Identifier: Apache-2.0
// The original page table: a radix tree for each file, read without locks and changed under one lock. README.md says which paper
// each part follows.
#pragma once
#include "research/baselines/times.hpp"

namespace gpufs::baselines {
inline namespace GPUFS_MACHINE {

// A page_cache's Table. An object belongs to one lane: it remembers whether that lane holds the lock.
template <class Times = untimed>
class radix_tree {
 public:
  GPUFS_DEVICE explicit radix_tree(const cache::cache_layout& cache) : all_(original_of(cache)) {}

  // Calls visit(frame) for the entry of `key`, if there is one. Without the lock: a walk that met a change is made once more, and
  // then given up; a miss is certain only under the lock.
  static constexpr std::uint32_t unlocked = 0;
  template <class Visit>
  GPUFS_DEVICE bool find(cache::page_key key, Visit visit, std::uint32_t = unlocked) const {
    for (int walk = 0; walk < 2; ++walk) {
      const simt::atomic_ref<std::uint32_t> version(words().version);
      const std::uint32_t before = version.load(std::memory_order_acquire);  // meets end_change's release
      const std::uint32_t frame = look_up(key);
      if (frame < all().frames.nframes && visit(cache::frame_index{frame})) return true;
      if (locked_) return false;
      simt::fence(std::memory_order_acquire, simt::scope::device);  // meets begin_change's
      if ((before & 1) == 0 && version.load(std::memory_order_relaxed) == before) return false;
    }
    return false;
  }

  // The one lock of all trees. False when `until` expired first. Its holder waits only for the free list's, whose holder waits for
  // nobody. The acquire meets unlock's release.
  GPUFS_DEVICE bool lock(cache::page_key, const simt::deadline& until) const {
    const std::uint64_t begin = Times::now();
    const simt::atomic_ref<std::uint32_t> word(words().lock);
    simt::backoff pause(spin_cap_ns);
    while (word.exchange(1, std::memory_order_acquire) != 0) {
      if (until.expired()) return false;
      pause();
    }
    locked_ = true;
    Times::add(all(), &time_shard::lock_ns, Times::now() - begin);
    return true;
  }

  GPUFS_DEVICE bool try_lock(cache::page_key key, std::uint32_t&) const { return lock(key, simt::deadline(0)); }

  GPUFS_DEVICE void unlock(cache::page_key) const {
    locked_ = false;
    simt::atomic_ref<std::uint32_t>(words().lock).store(0, std::memory_order_release);
  }
  GPUFS_DEVICE void unlock_after_fence(cache::page_key key) const { unlock(key); }

  // Enters key -> frame; the caller holds the lock. There are max_height nodes for every frame, and each node that is in use lies
  // on the way to a page, so that there is always one left.
  GPUFS_DEVICE void insert(cache::page_key key, cache::frame_index f) const {
    begin_change();
    const std::uint64_t page = page_of(key);
    file_tree& tree = tree_for(id_of(key));
    std::uint32_t root = get(tree.root);
    if (root == 0) {
      root = levels_for(page) << root_bits | (take_node() + 1);
    }
    while (root >> root_bits < levels_for(page)) {  // a level more, with the old root as its first child
      const std::uint32_t above = take_node();
      set_child(above, 0, root & node_mask);
      root = ((root >> root_bits) + 1) << root_bits | (above + 1);
    }
    put(tree.root, root);
    std::uint32_t node = (root & node_mask) - 1;
    for (std::uint32_t level = (root >> root_bits) - 1; level > 0; --level) {
      std::uint32_t child = get(nodes()[node].children[digit(page, level)]);
      if (child == 0) {
        child = take_node() + 1;
        set_child(node, digit(page, level), child);
      }
      node = child - 1;
    }
    set_child(node, digit(page, 0), static_cast<std::uint32_t>(f) + 1);
    end_change();
  }

  // Removes key -> frame, and the nodes that then hold nothing. Takes the lock unless this object's lane has it.
  GPUFS_DEVICE void erase(cache::page_key key, cache::frame_index f) const {
    if (locked_) {
      erase_locked(key, f);
      return;
    }
    // Without the lock the entry stays, and names a frame with another key: look-ups compare keys.
    if (!lock(key, simt::deadline(erase_timeout_ns))) return;
    erase_locked(key, f);
    unlock(key);
  }

 private:
  static constexpr std::uint32_t root_bits = 28;
  static constexpr std::uint32_t node_mask = (1u << root_bits) - 1;
  static constexpr std::uint32_t none = ~0u;
  static constexpr std::uint32_t spin_cap_ns = 256;
  static constexpr std::uint32_t unlocked_steps = 64;  // along a chain that may change under us
  static constexpr std::uint64_t erase_timeout_ns = 10'000'000'000;

  GPUFS_DEVICE static std::uint32_t id_of(cache::page_key key) {
    return static_cast<std::uint32_t>(static_cast<std::uint64_t>(key) >> cache::page_number_bits);
  }
  GPUFS_DEVICE static std::uint64_t page_of(cache::page_key key) {
    return static_cast<std::uint64_t>(key) & ((std::uint64_t{1} << cache::page_number_bits) - 1);
  }
  GPUFS_DEVICE static std::uint32_t digit(std::uint64_t page, std::uint32_t level) {
    return static_cast<std::uint32_t>(page >> (fanout_bits * level)) & (fanout - 1);
  }
  GPUFS_DEVICE static std::uint32_t levels_for(std::uint64_t page) {
    std::uint32_t levels = 1;
    while (page >> (fanout_bits * levels) != 0) ++levels;
    return levels;
  }
  // Words that walks without the lock may meet. Relaxed: what a walk finds is only a hint, since the frame's key is compared after
  // the pin, and the key's seal says whether it is of that pin's fill. A fence for each word would make the lock's holder several
  // times slower.
  GPUFS_DEVICE static std::uint32_t get(std::uint32_t& word) {
    return simt::atomic_ref<std::uint32_t>(word).load(std::memory_order_relaxed);
  }
  GPUFS_DEVICE static void put(std::uint32_t& word, std::uint32_t value) {
    simt::atomic_ref<std::uint32_t>(word).store(value, std::memory_order_relaxed);
  }

  GPUFS_DEVICE const original_layout& all() const { return all_; }
  GPUFS_DEVICE radix_words& words() const { return *all().tree.words; }
  GPUFS_DEVICE radix_node* nodes() const { return all().tree.nodes; }

  // A walk may see a node that was given another place meanwhile: then it finds some other entry, or a number that is out of range.
  GPUFS_DEVICE std::uint32_t look_up(cache::page_key key) const {
    const radix_storage& storage = all().tree;
    const std::uint32_t tree = find_tree(id_of(key));
    if (tree == none) return none;
    const std::uint64_t page = page_of(key);
    const std::uint32_t root = get(storage.trees[tree].root);
    const std::uint32_t levels = root >> root_bits;
    if (levels == 0 || (levels < max_height && page >> (fanout_bits * levels) != 0)) return none;
    std::uint32_t node = (root & node_mask) - 1;
    for (std::uint32_t level = levels; level-- > 0;) {
      if (node >= storage.nnodes) return none;
      node = get(storage.nodes[node].children[digit(page, level)]) - 1;
    }
    return node;
  }

  GPUFS_DEVICE std::uint32_t find_tree(std::uint32_t id) const {
    const radix_storage& storage = all().tree;
    std::uint32_t tree = get(storage.chains[id & storage.chain_mask]);
    const std::uint32_t most = locked_ ? storage.ntrees : unlocked_steps;
    for (std::uint32_t step = 0; step < most && tree != 0; ++step) {
      if (get(storage.trees[tree - 1].cache_id) == id) return tree - 1;
      tree = get(storage.trees[tree - 1].next);
    }
    return none;
  }

  // From here on the caller holds the lock.

  GPUFS_DEVICE file_tree& tree_for(std::uint32_t id) const {
    const radix_storage& storage = all().tree;
    std::uint32_t tree = find_tree(id);
    if (tree == none) {
      tree = storage.free_trees[--words().nfree_trees];  // there is one for every frame
      std::uint32_t& chain = storage.chains[id & storage.chain_mask];
      put(storage.trees[tree].cache_id, id);
      put(storage.trees[tree].root, 0);
      put(storage.trees[tree].next, get(chain));
      put(chain, tree + 1);
    }
    return storage.trees[tree];
  }

  GPUFS_DEVICE void drop_tree(std::uint32_t tree) const {
    const radix_storage& storage = all().tree;
    std::uint32_t* link = &storage.chains[get(storage.trees[tree].cache_id) & storage.chain_mask];
    while (get(*link) != tree + 1) link = &storage.trees[get(*link) - 1].next;
    put(*link, get(storage.trees[tree].next));
    put(storage.trees[tree].root, 0);
    storage.free_trees[words().nfree_trees++] = tree;
  }

  GPUFS_DEVICE std::uint32_t take_node() const { return all().tree.free_nodes[--words().nfree_nodes]; }

  GPUFS_DEVICE void set_child(std::uint32_t node, std::uint32_t at, std::uint32_t child) const {
    radix_node& n = nodes()[node];
    if (get(n.children[at]) == 0) ++n.nchildren;
    put(n.children[at], child);
  }

  GPUFS_DEVICE void erase_locked(cache::page_key key, cache::frame_index f) const {
    const std::uint32_t tree = find_tree(id_of(key));
    if (tree == none) return;
    const std::uint64_t page = page_of(key);
    const std::uint32_t root = get(all().tree.trees[tree].root);
    const std::uint32_t levels = root >> root_bits;
    if (levels < max_height && page >> (fanout_bits * levels) != 0) return;
    std::uint32_t way[max_height];  // by level
    std::uint32_t next = root & node_mask;
    for (std::uint32_t level = levels; level-- > 0;) {
      if (next == 0) return;
      way[level] = next - 1;
      next = get(nodes()[way[level]].children[digit(page, level)]);
    }
    if (next != static_cast<std::uint32_t>(f) + 1) return;
    begin_change();
    std::uint32_t level = 0;
    for (; level < levels; ++level) {
      radix_node& n = nodes()[way[level]];
      put(n.children[digit(page, level)], 0);
      if (--n.nchildren != 0) break;
      all().tree.free_nodes[words().nfree_nodes++] = way[level];
    }
    if (level == levels) drop_tree(tree);
    end_change();
  }

  // What a walk has read before the version that it sees unchanged afterwards is from one state of the trees.
  GPUFS_DEVICE void begin_change() const {
    const simt::atomic_ref<std::uint32_t> version(words().version);
    version.store(version.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    simt::fence(std::memory_order_release, simt::scope::device);  // meets find's acquire fence
  }
  GPUFS_DEVICE void end_change() const {
    const simt::atomic_ref<std::uint32_t> version(words().version);
    version.store(version.load(std::memory_order_relaxed) + 1, std::memory_order_release);  // meets find's acquire
  }

  const original_layout& all_;
  mutable bool locked_ = false;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::baselines
