// SPDX-License-Identifier: Apache-2.0
// Random pointer programs, and what an index into plain bytes says must come of each operation.
#pragma once
#include <algorithm>
#include <map>

#include "pointer/pointer_script.hpp"

namespace gpufs::test {
inline namespace GPUFS_MACHINE {

// How one result is compared. `fault` and `linked` may differ where a trial may run out of frames.
enum class result_kind : std::uint8_t {
  exact,
  fault,    // 0 or an errno; -ENOMEM without a frame
  linked,   // 0 or 1; 0 without a frame
  ignored,  // depends on others, or on bytes that a nil store never brings in
};
struct expected_result {
  std::uint64_t value;
  std::uint64_t starved;  // the same without a frame
  result_kind kind;
};

// What a mapping is, to the model. `bytes` are its elements' and change with the programs.
struct mapped_model {
  std::uint64_t page_nbytes;
  std::uint64_t begin;  // in the file
  std::int64_t count;
  std::uint32_t nbytes;  // of an element
  bool is_integral, has_atomics, wide_is_16;
  bool bytes_known;  // not of a nil store
  bool writable;
  std::vector<std::byte> bytes;

  // In a writable mapping: elements below are written by their lanes, then some that all lanes add to, and the rest by nobody.
  std::int64_t own_end = 0, shared_end = 0;

  std::uint64_t position(std::int64_t i) const { return begin + static_cast<std::uint64_t>(i) * nbytes; }
  bool has(std::int64_t i) const { return i >= 0 && i < count; }
  std::uint64_t page(std::int64_t i) const { return position(i) / page_nbytes; }
  bool in_one_page(std::int64_t i) const { return page(i) == (position(i) + nbytes - 1) / page_nbytes; }
  std::byte* element(std::int64_t i) { return bytes.data() + static_cast<std::size_t>(i) * nbytes; }
};

// One lane's pointers and list.
class lane_program {
 public:
  struct shape {
    unsigned nrounds = 1, nsteps = 10;  // a round
    unsigned npointers = 2;
    std::int64_t own_first = 0, own_count = 0;
    unsigned sloppy_percent = 5;  // how often an access is beyond the mapping
    bool adds_shared = false;
  };

  lane_program(random_source& draw, mapped_model& m, const shape& s) : draw_(draw), m_(m), shape_(s) {
    // Which of its pointers: its own variables, global memory, or both.
    for (unsigned i = 0; i < all_pointers; ++i) slots_.push_back(i);
    for (unsigned i = 0; i < all_pointers; ++i) std::swap(slots_[i], slots_[draw.below(all_pointers)]);
    slots_.resize(s.npointers);
    for (unsigned r = 0; r < s.nrounds; ++r) {
      round_begin_.push_back(steps_.size());
      for (unsigned i = 0; i < s.nsteps; ++i) step();
    }
    round_begin_.push_back(steps_.size());
  }

  const std::vector<pointer_step>& steps() const { return steps_; }
  const std::vector<expected_result>& expected() const { return expected_; }
  std::size_t round_begin(unsigned r) const { return round_begin_[r]; }
  std::uint64_t nfaults() const { return nfaults_; }
  std::uint64_t nreads() const { return nreads_; }
  std::uint64_t shared_sum() const { return shared_sum_; }

 private:
  static constexpr std::int64_t not_linked = -1;
  static constexpr std::int64_t far = std::int64_t{1} << 40;
  struct model_pointer {
    std::int64_t index = 0;
    std::int64_t link = not_linked;  // the page
  };

  model_pointer& at(unsigned i) { return pointers_[i]; }
  unsigned some_pointer() { return draw_.pick(slots_); }

  // Whether this lane may look at element i: elements beyond the mapping are nobody's.
  bool may_read(std::int64_t i) const {
    return !m_.writable || !m_.has(i) || (i >= shape_.own_first && i < shape_.own_first + shape_.own_count) || i >= m_.shared_end;
  }
  bool may_write(std::int64_t i) const { return !m_.has(i) || (i >= shape_.own_first && i < shape_.own_first + shape_.own_count); }

  // An element to go to: anywhere, about an edge of a page or of the mapping, or beyond.
  std::int64_t some_element(bool to_write) {
    if (draw_.percent(shape_.sloppy_percent)) return beyond();
    std::int64_t first = 0, count = m_.count;
    if (m_.writable) {
      const std::int64_t rest = m_.count - m_.shared_end;
      const bool own = to_write || rest <= 0 || draw_.percent(60);
      first = own ? shape_.own_first : m_.shared_end;
      count = own ? shape_.own_count : rest;
    }
    if (count <= 0) return beyond();
    const std::uint64_t dice = draw_.below(100);
    if (dice < 40) return first + static_cast<std::int64_t>(draw_.below(static_cast<std::uint64_t>(count)));
    if (dice < 75) {
      const std::uint64_t low = m_.page(first), high = m_.page(first + count - 1) + 1;
      const std::uint64_t edge = draw_.between(low, high) * m_.page_nbytes;
      const auto i = edge > m_.begin ? static_cast<std::int64_t>((edge - m_.begin) / m_.nbytes) : 0;
      return std::clamp<std::int64_t>(i + static_cast<std::int64_t>(draw_.below(3)) - 1, first, first + count - 1);
    }
    if (dice < 85) return first;
    if (dice < 92) return first + count - 1;
    return std::clamp<std::int64_t>(at(slots_[0]).index + static_cast<std::int64_t>(draw_.below(9)) - 4, first, first + count - 1);
  }
  std::int64_t beyond() {
    switch (draw_.below(5)) {
      case 0:
        return -1 - static_cast<std::int64_t>(draw_.below(4));
      case 1:
        return m_.count + static_cast<std::int64_t>(draw_.below(4));
      case 2:
        return far - static_cast<std::int64_t>(draw_.below(1000));
      case 3:
        return static_cast<std::int64_t>(draw_.below(1000)) - far;
      default:
        return m_.count + static_cast<std::int64_t>(m_.page_nbytes);
    }
  }

  // The element is accessed through p.
  void touch(model_pointer& p, std::int64_t i) {
    ++nreads_;
    p.link = m_.has(i) && m_.in_one_page(i) ? static_cast<std::int64_t>(m_.page(i)) : not_linked;
    if (!m_.has(i)) ++nfaults_;
  }

  void add(pointer_step s, const expected_result& e) {
    steps_.push_back(s);
    expected_.push_back(e);
  }
  void add_exact(const pointer_step& s, std::uint64_t value) { add(s, {value, 0, result_kind::exact}); }
  void add_offset(const pointer_step& s, const model_pointer& p) { add_exact(s, m_.position(p.index)); }
  // What reading `n` elements from i on gives.
  void add_data(const pointer_step& s, std::int64_t i, std::int64_t n = 1) {
    const std::vector<std::byte> none(m_.nbytes * static_cast<std::size_t>(n));
    const std::uint64_t zeros = digest(none.data(), none.size());
    if (i < 0 || i > m_.count - n) return add_exact(s, zeros);
    add(s, {digest(m_.element(i), none.size()), 0, m_.bytes_known ? result_kind::exact : result_kind::ignored});
  }

  void step() {
    pointer_step s{};
    s.p = static_cast<std::uint8_t>(some_pointer());
    s.q = static_cast<std::uint8_t>(some_pointer());
    if (m_.writable && draw_.percent(35)) return change(s);
    const std::uint64_t dice = draw_.below(100);
    if (dice < 45) return read(s);
    if (dice < 75) return go(s);
    if (dice < 90) return hand_over(s);
    look(s);
  }

  void read(pointer_step s) {
    constexpr pointer_op here[] = {pointer_op::dereference, pointer_op::dereference, pointer_op::arrow,     pointer_op::copy,
                                   pointer_op::post_plus,   pointer_op::post_minus,  pointer_op::read_only, pointer_op::fault_in};
    model_pointer& p = at(s.p);
    const bool in_place = may_read(p.index) && (m_.has(p.index) || draw_.percent(20)) && draw_.percent(60);
    if (!in_place) {
      const std::int64_t i = some_element(false);
      if (!may_read(i)) return;
      s.n = i - p.index;
      if (draw_.percent(25)) return read_wide(s, i);
      if (draw_.percent(25)) return gather(s, i);
      if (draw_.percent(25)) return walk(s);
      s.what = pointer_op::index;
      touch(p, i);
      return add_data(s, i);
    }
    s.what = here[draw_.below(std::size(here))];
    const std::int64_t i = p.index;
    switch (s.what) {
      case pointer_op::dereference:
      case pointer_op::arrow:
        touch(p, i);
        return add_data(s, i);
      case pointer_op::fault_in:
        touch(p, i);
        return add(s, {m_.has(i) ? 0 : static_cast<std::uint64_t>(-ENXIO), static_cast<std::uint64_t>(-ENOMEM),
                       m_.has(i) ? result_kind::fault : result_kind::exact});
      default: {
        model_pointer other{i};
        touch(other, i);
        if (s.what == pointer_op::post_plus) ++p.index;
        if (s.what == pointer_op::post_minus) --p.index;
        return add_data(s, i);
      }
    }
  }
  void read_wide(pointer_step s, std::int64_t i) {
    const std::int64_t n = m_.wide_is_16 ? 16 / m_.nbytes : 2;
    for (std::int64_t k = 0; k < n; ++k) {
      if (i >= 0 && i <= m_.count - n && !may_read(i + k)) return;
    }
    model_pointer& p = at(s.p);
    s.what = pointer_op::load_wide;
    touch(p, i);
    if (m_.has(i) && i > m_.count - n) ++nfaults_;  // its end is beyond the mapping
    const std::int64_t last = i + n - 1;
    const bool same_page = m_.has(last) && m_.in_one_page(last) && static_cast<std::int64_t>(m_.page(last)) == p.link;
    if (!same_page) p.link = not_linked;
    s.flag = !same_page;
    add_data(s, i, n);
  }

  // Through a page or several, now and then out of the mapping, or backwards.
  void walk(pointer_step s) {
    model_pointer& p = at(s.p);
    const auto per_page = static_cast<std::int64_t>(m_.page_nbytes / m_.nbytes);
    std::int64_t stride = draw_.percent(60) ? 1 : 1 + static_cast<std::int64_t>(draw_.below(40));
    if (draw_.percent(20)) stride = per_page / 2 + static_cast<std::int64_t>(draw_.below(3));
    if (draw_.percent(5)) stride = static_cast<std::int64_t>(draw_.below(3)) - 2;
    s.what = pointer_op::walk;
    s.n = static_cast<std::int64_t>(draw_.below(draw_.percent(30) ? 200 : 20)) - 1;
    if (m_.has(p.index) && stride > 0 && !draw_.percent(shape_.sloppy_percent)) {
      s.n = std::min(s.n, (m_.count - 1 - p.index) / stride + 1);
    }
    s.v = static_cast<std::uint64_t>(stride);
    const std::vector<std::byte> none(m_.nbytes);
    std::uint64_t all = 0;
    for (std::int64_t k = 0; k < s.n; ++k) {
      if (!may_read(p.index + k * stride)) return;
    }
    for (std::int64_t k = 0; k < s.n; ++k, p.index += stride) {
      touch(p, p.index);
      all = next_of_walk(all, digest(m_.has(p.index) ? m_.element(p.index) : none.data(), m_.nbytes));
    }
    add(s, {all, 0, m_.bytes_known ? result_kind::exact : result_kind::ignored});
  }

  void gather(pointer_step s, std::int64_t i) {
    const std::int64_t other = some_element(false), second = may_read(other) ? other : i;
    s.what = pointer_op::gather;
    s.v = static_cast<std::uint64_t>(second - at(s.p).index);
    s.flag = draw_.percent(50);
    model_pointer none;
    touch(none, i);
    touch(none, second);
    at(s.p).link = not_linked;
    add_data(s, s.flag != 0 ? i : second);
  }

  void go(pointer_step s) {
    constexpr pointer_op ways[] = {pointer_op::plus_plus, pointer_op::minus_minus,   pointer_op::add,
                                   pointer_op::subtract,  pointer_op::sum,           pointer_op::sum_reversed,
                                   pointer_op::less,      pointer_op::copy_by_value, pointer_op::by_value};
    s.what = ways[draw_.below(std::size(ways))];
    model_pointer& p = at(s.p);
    model_pointer& q = at(s.q);
    const std::int64_t way = some_element(m_.writable && draw_.percent(50)) - p.index;
    s.n = s.what == pointer_op::subtract || s.what == pointer_op::less ? -way : way;
    switch (s.what) {
      case pointer_op::plus_plus:
        ++p.index;
        return add_offset(s, p);
      case pointer_op::minus_minus:
        --p.index;
        return add_offset(s, p);
      case pointer_op::add:
      case pointer_op::subtract:
        p.index += way;
        return add_offset(s, p);
      case pointer_op::by_value: {
        model_pointer moved = p;
        p.link = not_linked;
        moved.index += way;
        q = moved;
        return add_offset(s, q);
      }
      default:
        q = {p.index + way, not_linked};
        return add_offset(s, q);
    }
  }

  void hand_over(pointer_step s) {
    constexpr pointer_op ways[] = {pointer_op::assign,    pointer_op::assign, pointer_op::move,       pointer_op::move,
                                   pointer_op::self_move, pointer_op::swap,   pointer_op::self_assign};
    s.what = ways[draw_.below(std::size(ways))];
    model_pointer& p = at(s.p);
    model_pointer& q = at(s.q);
    if (&p != &q) {
      if (s.what == pointer_op::assign) q = {p.index, not_linked};
      if (s.what == pointer_op::move) {
        q = p;
        p.link = not_linked;
      }
      if (s.what == pointer_op::swap) std::swap(p, q);
    }
    const bool of_q = s.what == pointer_op::assign || s.what == pointer_op::move;
    add_offset(s, of_q ? q : p);
  }

  void look(pointer_step s) {
    constexpr pointer_op ways[] = {pointer_op::difference, pointer_op::compare, pointer_op::unlink, pointer_op::linked,
                                   pointer_op::linked};
    s.what = ways[draw_.below(std::size(ways))];
    model_pointer& p = at(s.p);
    const std::int64_t a = p.index, b = at(s.q).index;
    switch (s.what) {
      case pointer_op::difference:
        return add_exact(s, static_cast<std::uint64_t>(a - b));
      case pointer_op::compare:
        return add_exact(s, (a == b ? 1u : 0u) | (a != b ? 2u : 0u) | (a < b ? 4u : 0u) | (a <= b ? 8u : 0u) | (a > b ? 16u : 0u) |
                                (a >= b ? 32u : 0u));
      case pointer_op::unlink:
        p.link = not_linked;
        return add_exact(s, 0);
      default:
        return add(s, {p.link != not_linked, 0, result_kind::linked});
    }
  }

  std::uint64_t load(std::int64_t i) {
    std::uint64_t v = 0;
    std::memcpy(&v, m_.element(i), m_.nbytes);
    return v;
  }
  // As element_of.
  void store(std::int64_t i, std::uint64_t v) {
    if (!m_.has(i)) return;
    for (std::uint32_t k = 0; k < m_.nbytes; ++k) {
      m_.element(i)[k] = static_cast<std::byte>(m_.is_integral ? v >> (8 * k) : (v >> (k % 8 * 8)) + k / 8);
    }
  }
  std::uint64_t mask() const { return m_.nbytes == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << 8 * m_.nbytes) - 1; }

  void change(pointer_step s) {
    constexpr pointer_op ways[] = {pointer_op::write,       pointer_op::write,      pointer_op::write_index,
                                   pointer_op::write_index, pointer_op::write_plus, pointer_op::write_copy,
                                   pointer_op::exchange,    pointer_op::fetch_ops,  pointer_op::compare_exchange,
                                   pointer_op::add_shared};
    s.what = ways[draw_.below(std::size(ways))];
    s.v = draw_.word();
    model_pointer& p = at(s.p);
    if (s.what == pointer_op::write_index || s.what == pointer_op::write_plus || s.what == pointer_op::write_copy) {
      return change_at(s, some_element(true));
    }
    if (s.what == pointer_op::add_shared && (!m_.has_atomics || !shape_.adds_shared || m_.shared_end == m_.own_end)) return;
    // These are of *p: go there first.
    const bool shared = s.what == pointer_op::add_shared;
    const auto nshared = static_cast<std::uint64_t>(m_.shared_end - m_.own_end);
    const std::int64_t i = shared ? m_.own_end + static_cast<std::int64_t>(draw_.below(nshared)) : some_element(true);
    if (!shared && !may_write(i)) return;
    if (p.index != i) {
      pointer_step there = s;
      there.what = pointer_op::add;
      there.n = i - p.index;
      p.index = i;
      add_offset(there, p);
    }
    if (!m_.has_atomics && s.what != pointer_op::write) s.what = pointer_op::write;
    change_here(s, p, i);
  }

  void change_at(pointer_step s, std::int64_t i) {
    if (!may_write(i)) return;
    model_pointer& p = at(s.p);
    s.n = i - p.index;
    if (s.what == pointer_op::write_copy) {
      const std::int64_t from = some_element(false);
      if (!may_read(from)) return;
      s.v = static_cast<std::uint64_t>(from - p.index);
      touch(p, from);
      if (m_.has(from)) {  // else nothing is written
        touch(p, i);
        if (m_.has(i)) std::memmove(m_.element(i), m_.element(from), m_.nbytes);
      }
      return add_exact(s, 0);
    }
    std::uint64_t v = s.v;
    if (s.what == pointer_op::write_plus && m_.is_integral) {
      touch(p, i);
      if (!m_.has(i)) return add_exact(s, 0);
      v += load(i);
    }
    touch(p, i);
    store(i, v);
    add_exact(s, 0);
  }

  void change_here(pointer_step s, model_pointer& p, std::int64_t i) {
    const std::uint64_t before = m_.has_atomics && m_.has(i) ? load(i) : 0;
    touch(p, i);
    const bool can_update = s.what == pointer_op::exchange || s.what == pointer_op::fetch_ops || s.what == pointer_op::add_shared;
    s.flag = can_update && draw_.percent(50);
    if (s.flag != 0) p.link = not_linked;
    switch (s.what) {
      case pointer_op::exchange:
        store(i, s.v);
        return add_exact(s, before);
      case pointer_op::compare_exchange: {
        const bool matches = draw_.percent(60);
        s.n = static_cast<std::int64_t>(matches ? before : before ^ 1);
        const bool done = matches && m_.has(i);
        if (done) store(i, s.v);
        return add_exact(s, (m_.has(i) ? before : static_cast<std::uint64_t>(s.n)) * 2 + done);
      }
      case pointer_op::fetch_ops: {
        if (!m_.has(i)) nfaults_ += 4;
        const std::uint64_t all = m_.has(i) ? mask() : 0;
        const std::uint64_t a = before, b = (a - s.v) & all, c = (b | s.v >> 3) & all, d = c & ~s.v & all;
        const std::uint64_t e = std::max(d, s.v >> 5 & all);
        store(i, std::min(e, s.v >> 7 & all));
        return add_exact(s, (((a * 31 + b) * 31 + c) * 31 + d) * 31 + e);
      }
      case pointer_op::add_shared:
        shared_sum_ += s.v;
        store(i, before + s.v);
        return add_exact(s, 0);
      default:
        store(i, s.v);
        return add_exact(s, 0);
    }
  }

  random_source& draw_;
  mapped_model& m_;
  shape shape_;
  std::vector<unsigned> slots_;
  model_pointer pointers_[all_pointers];
  std::vector<pointer_step> steps_;
  std::vector<expected_result> expected_;
  std::vector<std::size_t> round_begin_;
  std::uint64_t nfaults_ = 0, nreads_ = 0, shared_sum_ = 0;
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::test
