// SPDX-License-Identifier: Apache-2.0
// A page that several map for writing, and their twin (file/map_to_write.hpp, cache/detail/dirty.hpp; docs/design/writing.md, "Pages mapped for
// writing"), for Spin, as page.pml. What is said there of steps, bytes and time limits is so here.
//
// There is one page, of two bytes, which are one word of the mask; mapper b stores to byte b. Looking the page up, filling and
// evicting it are one step each (page.pml has them). Its twin is one of NSPARES other frames, which somebody else uses when they are
// free. Bytes are 0 or 1: so what is stored may be what was there, was noted, or was written back before.
//
// SHARE: mappers store, msync and unmap, beside write-backs and a group that writes by pwrite.
// CUT:   mappers store to byte 1, beside truncations to one byte, and growth.

#ifndef NSPARES
#define NSPARES 1
#endif
#ifndef NMAPS
#define NMAPS 1    // times that a mapper maps the page
#endif
#ifndef NSTORES
#define NSTORES 3  // stores of a mapper while it has the page mapped
#endif
#ifndef NOTHERS
#define NOTHERS 1  // of the second one
#endif

// --- The page's frame -------------------------------------------------------------------------------------------------------------

byte pins;
bit resident, dirty, listed;
bit data[2];
byte mask;
bit in_list, list_lock;
byte dirty_pages;
bit host[2];            // the file
byte host_nbytes = 2;   // its size
byte file_nbytes = 2;   // the slot's
byte writing;           // the gate
bit closed;
byte twinned;           // the slot's: 1: pages of it may have twins soon; 2: they may
bit last[2];            // no part of the code: what was stored last
byte ndone;

// --- Its twin ---------------------------------------------------------------------------------------------------------------------

bit twin_lock;
byte count, twin;
bit spare_pinned[NSPARES];
bit spare_data[2 * NSPARES];

active proctype evictor() {
end:
  do
  :: d_step { resident && pins == 0 && !dirty -> resident = 0; data[0] = 0; data[1] = 0 }
  od
}

// Others use each frame that is free, for pages of their own.
active proctype others() {
end:
  do
  :: d_step { !spare_pinned[0] && !spare_data[0] -> spare_data[0] = 1; spare_data[1] = 1 }
  :: d_step { !spare_pinned[0] && spare_data[0] -> spare_data[0] = 0; spare_data[1] = 0 }
#if NSPARES > 1
  :: d_step { !spare_pinned[1] && !spare_data[2] -> spare_data[2] = 1; spare_data[3] = 1 }
  :: d_step { !spare_pinned[1] && spare_data[2] -> spare_data[2] = 0; spare_data[3] = 0 }
#endif
  od
}

// page_cache::acquire, and file::fill_live
inline acquire() {
  d_step {
    if
    :: !resident ->
       resident = 1;
       data[0] = host[0];
       data[1] = (file_nbytes > 1 -> host[1] : 0)
    :: else
    fi;
    pins++
  }
}
inline pass_gate() {
  do
  :: d_step { passed = !closed; writing++ }
     if
     :: passed -> break
     :: else -> writing--; !closed
     fi
  od;
  passed = 0
}

// enter_dirty
inline enter_dirty() {
  d_step { was_dirty = dirty; was_listed = listed; dirty = 1 }  // dirty_pages::set_dirty
  if
  :: !was_dirty ->
     dirty_pages++;
     d_step { assert(!in_list); in_list = 1 }                    // dirty_pages::enter
     listed = 1
  :: was_dirty && !was_listed -> (listed || !dirty)
  :: else
  fi;
  d_step { was_dirty = 0; was_listed = 0 }
}

// --- Writing back -----------------------------------------------------------------------------------------------------------------

#define HELD(t) assert(spare_pinned[t])

// write_back_list, of one page: the list's lock is held. store_page and write_request; the host's answer, and stores in place, are the
// step in which the file changes.
inline write_back() {
  d_step {  // dirty_pages::leave
    ours = in_list;
    in_list = 0
  }
  if
  :: ours ->
     atomic { listed; assert(dirty && resident) }  // dirty_pages::begin_write_back
     pins++;
     d_step { dirty = 0; listed = 0 }
#ifndef MUTATE_TWIN_NOT_KEPT
     keeps = (twinned != 0);
     if
     :: keeps -> lock_twin()
     :: !keeps
     fi;
#endif
     bits = mask;  // dirty_pages::look, take
     mask = mask & (3 - bits);
     // keep_twin: what goes to the file is what the twin has from now on.
     if
     :: (bits & 1) -> d_step { value[0] = data[0]; if :: keeps && count != 0 -> HELD(twin); spare_data[2 * twin] = value[0] :: else fi }
     :: else
     fi;
     if
     :: (bits & 2) -> d_step { value[1] = data[1]; if :: keeps && count != 0 -> HELD(twin); spare_data[2 * twin + 1] = value[1] :: else fi }
     :: else
     fi;
     if
     :: keeps -> twin_lock = 0
     :: else
     fi;
     d_step {
       host[0] = ((bits & 1) -> value[0] : host[0]);
       host[1] = ((bits & 2) -> value[1] : host[1]);
       host_nbytes = ((bits & 2) -> 2 : host_nbytes)
     }
     pins--;
     dirty_pages--
  :: else
  fi;
  d_step { value[0] = 0; value[1] = 0; bits = 0; keeps = 0 }
}

// fsync, and the second half of msync
inline write_back_all() {
  atomic { !list_lock -> list_lock = 1 }
  do
  :: write_back();
     if
     :: ours
     :: !ours -> break
     fi
  od;
  list_lock = 0
}

inline lock_twin() {
  atomic { !twin_lock -> twin_lock = 1 }
}

// --- Mapping ----------------------------------------------------------------------------------------------------------------------

#define LOCALS \
  byte spare, t, end, bits, n; \
  bit have_spare, first, last_one, passed, was_dirty, was_listed, ours, keeps; \
  bit value[2]

// map_to_write. After it the page is mapped by one more.
inline map_page() {
#ifndef MUTATE_TWINS_AT_ONCE
  // begin_twins: write-backs that keep no twin end before there is one. Each list's lock, once.
  if
  :: twinned != 2 ->
     twinned = 1;
     atomic { !list_lock -> list_lock = 1 }
     list_lock = 0;
     twinned = 2
  :: else
  fi;
#else
  twinned = 2;
#endif
  acquire();
  do
  :: if
     :: !have_spare && count == 0 ->  // page_cache::take_frame
        if
        :: d_step { !spare_pinned[0] -> spare_pinned[0] = 1; spare = 0; have_spare = 1 }
#if NSPARES > 1
        :: d_step { spare_pinned[0] && !spare_pinned[1] -> spare_pinned[1] = 1; spare = 1; have_spare = 1 }
#endif
        :: count != 0                 // somebody else has made the twin meanwhile
        fi
     :: else
     fi;
#ifdef MUTATE_COUNT_UNLOCKED
     first = (count == 0);
     lock_twin();
#else
     lock_twin();
     first = (count == 0);
#endif
     if
     :: first && have_spare -> break
     :: !first -> count++; twin_lock = 0; break
     :: else -> twin_lock = 0         // the others have unmapped it since we looked
     fi
  od;
  if
  :: first ->
#ifdef MUTATE_UNLOCKED_EARLY
     twin_lock = 0;
#endif
     d_step { HELD(spare); spare_data[2 * spare] = data[0] }
     d_step { HELD(spare); spare_data[2 * spare + 1] = data[1] }
     twin = spare;
     count = 1;
     twin_lock = 0
#ifndef MUTATE_SPARE_KEPT
  :: !first && have_spare -> d_step { HELD(spare); spare_pinned[spare] = 0 }
#endif
  :: else
  fi;
  d_step { first = 0; have_spare = 0; spare = 0 }
}

// take_differences and mark_changes, of byte b: loaded once, and the twin made equal.
inline compare(b) {
#ifdef MUTATE_LOADED_TWICE
  d_step { HELD(t); bits = (data[b] != spare_data[2 * t + b] -> bits | (1 << b) : bits) }
  d_step { HELD(t); spare_data[2 * t + b] = data[b] }
#else
  d_step {
    HELD(t);
    bits = (data[b] != spare_data[2 * t + b] -> bits | (1 << b) : bits);
    spare_data[2 * t + b] = data[b]
  }
#endif
}

// note_changes
inline note_changes(leaves) {
#ifdef MUTATE_UNPINNED_BEFORE_NOTING
  if :: leaves -> pins-- :: else fi;
#endif
#ifndef MUTATE_NOTED_BESIDE_THE_GATE
  pass_gate();
#endif
#ifndef MUTATE_NOTED_UNLOCKED
  lock_twin();
#endif
  end = file_nbytes;
  t = twin;
  compare(0);
#ifdef MUTATE_TWIN_BEYOND_THE_END
  compare(1);
  bits = (end > 1 -> bits : bits & 1);
#else
  if
  :: end > 1 -> compare(1)
  :: else
  fi;
#endif
  if
  :: bits != 0 ->
     d_step { mask = mask | bits }
#ifndef MUTATE_LISTED_UNLOCKED
     enter_dirty()
#endif
  :: else
  fi;
  if
  :: leaves -> d_step { count--; last_one = (count == 0) }
  :: else
  fi;
#ifndef MUTATE_NOTED_UNLOCKED
  twin_lock = 0;
#endif
#ifdef MUTATE_LISTED_UNLOCKED
  if
  :: bits != 0 -> enter_dirty()
  :: else
  fi;
#endif
#ifdef MUTATE_LAST_SEEN_UNLOCKED
  last_one = leaves && count == 0;
#endif
#ifndef MUTATE_NOTED_BESIDE_THE_GATE
  writing--;
#endif
  if
  :: last_one -> d_step { HELD(t); spare_pinned[t] = 0 }
  :: else
  fi;
#ifndef MUTATE_UNPINNED_BEFORE_NOTING
  if
  :: leaves -> pins--
  :: else
  fi;
#endif
  d_step { bits = 0; end = 0; t = 0; last_one = 0 }
}

inline check_at_rest() {
  assert(pins == 0 && !dirty && !listed && !in_list && !list_lock && dirty_pages == 0 && mask == 0 && writing == 0);
  assert(!twin_lock && count == 0);
  assert(!spare_pinned[0]);
#if NSPARES > 1
  assert(!spare_pinned[1]);
#endif
  assert(host_nbytes <= file_nbytes);
  assert(host[0] == last[0] && (file_nbytes == 1 || host[1] == last[1]));
  assert(!resident || (data[0] == host[0] && (file_nbytes == 1 || data[1] == host[1])))
}

// --- SHARE ------------------------------------------------------------------------------------------------------------------------
#ifdef SHARE

// Byte b is its own, but for PWRITE, which writes to byte 0.
#ifdef PWRITE
#define SHARED(b) ((b) == 0)
#else
#define SHARED(b) false
#endif
proctype mapper(byte b; byte nstores) {
  LOCALS;
  byte maps;
  for (maps : 1 .. NMAPS) {
    map_page();
    n = 0;
    do
    :: n < nstores ->
       d_step { assert(resident); data[b] = 1 - data[b]; last[b] = data[b]; n++ }
#ifdef MSYNC
    :: n > 0 && n < nstores ->
       note_changes(0);
       write_back_all();
       assert(host[b] == last[b] || SHARED(b));
       n++
#endif
    :: n == nstores -> break
    od;
    n = 0;
    note_changes(1)
  }
  write_back_all();
  assert(host[b] == last[b] || SHARED(b));
  d_step { maps = 0; ours = 0; ndone++ }
}

#ifdef PWRITE
proctype writer() {
  LOCALS;
  pass_gate();
  acquire();
  d_step { data[0] = 1 - data[0]; last[0] = data[0] }
  d_step { mask = mask | 1 }
  enter_dirty();
  pins--;
  writing--;
  ndone++
}
#endif

proctype syncer() {
  LOCALS;
  write_back_all();
  d_step { ours = 0; ndone++ }
}

init {
  LOCALS;
  atomic {
    run mapper(0, NSTORES);
    run mapper(1, NOTHERS);
    run syncer();
#ifdef PWRITE
    run writer()
#else
    ndone++
#endif
  }
  ndone == 4;
  write_back_all();
  d_step { check_at_rest() }
}
#endif

// --- CUT --------------------------------------------------------------------------------------------------------------------------
#ifdef CUT

// Stores to byte 1 while the file has it.
proctype mapper(byte nstores) {
  LOCALS;
  map_page();
  n = 0;
  do
  :: n < nstores ->
     d_step {
       n++;
       if
       :: file_nbytes > 1 -> data[1] = 1 - data[1]; last[1] = data[1]
       :: else
       fi
     }
  :: n == nstores -> break
  od;
  n = 0;
  note_changes(1);
  ndone++
}

// ftruncate(1): see page.pml.
proctype truncater() {
  LOCALS;
  closed = 1;
  writing == 0;
  d_step { file_nbytes = 1; last[1] = 0 }
  d_step {
    ours = resident;
    if
    :: ours -> pins++
    :: else
    fi
  }
  if
  :: ours ->  // cut_page
     data[1] = 0;
     d_step { mask = mask & 1 }
#ifndef MUTATE_CUT_BESIDE_THE_TWIN
     lock_twin();
     if
     :: count != 0 -> d_step { HELD(twin); spare_data[2 * twin + 1] = 0 }
     :: else
     fi;
     twin_lock = 0;
#endif
     pins--
  :: else
  fi;
  atomic { !list_lock -> list_lock = 1 }
  list_lock = 0;
  d_step { host[1] = 0; host_nbytes = 1 }
  closed = 0;
  d_step { ours = 0; ndone++ }
}

// Writes beyond the page.
proctype grower() {
  LOCALS;
  pass_gate();
  file_nbytes = 2;
  writing--;
  ndone++
}

proctype syncer() {
  LOCALS;
  write_back_all();
  d_step { ours = 0; ndone++ }
}

init {
  LOCALS;
  atomic {
    run mapper(NSTORES);
    run mapper(NOTHERS);
    run truncater();
    run grower();
    run syncer()
  }
  ndone == 5;
  write_back_all();
  d_step { check_at_rest() }
}
#endif
