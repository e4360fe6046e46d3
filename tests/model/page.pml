// SPDX-License-Identifier: Apache-2.0
// The life of a page, as docs/design/page-lifecycle.md tells it, for Spin. Each atomic operation of the code is one step here (a d_step, or
// one statement); names are the code's. tests/model/check.sh says which configurations there are and runs them.
//
// READ:     groups read pages of a file whose version changes; fills fail.        cache/*.hpp, file/file.hpp
//           With LOOKER one more reads without a pin.                              pointer/detail/unpinned.hpp
// WRITE:    groups write and read bytes of pages, write back, fsync; a write at the host fails; a CPU process writes, too.
// TRUNCATE: groups write and read while another one truncates the file.          docs/design/writing.md
// Both with STORED: pages 0 and 1 are written and read in place; in WRITE another process cuts the file underneath, and lets it grow
// again.
//
// A page has two bytes; byte b of the file is byte b % 2 of page b / 2. What a byte holds is a number that grows with each write, so an
// older one in the place of a newer one is seen. Waits with a time limit wait here without one: a missed wake-up is a deadlock.
// Memory is sequentially consistent.

#ifndef NFRAMES
#define NFRAMES 2
#endif
#ifndef NOPS
#define NOPS 2  // calls that a group makes
#endif
#ifndef NLISTS
#define NLISTS 1  // dirty lists: frame f is in list f % NLISTS
#endif
#define LIMIT 1  // dirty_limit
#if (defined(WRITE) || defined(TRUNCATE)) && !defined(FINE)
#define COARSE  // look-ups and evictions are one step each; READ shows that this may be said
#endif
#ifndef FAILURES
#define FAILURES 1  // of the host, at most
#endif
#define NPAGES 3
#define NBYTES 6
#define NBUCKETS 2
#define NONE 255

// --- The cache --------------------------------------------------------------------------------------------------------------------

// The state word. `listed` and the flags of writing are 0 in READ.
byte pins[NFRAMES];
byte stamp[NFRAMES];
bit dirty[NFRAMES], listed[NFRAMES], failed[NFRAMES], filling[NFRAMES];
bit claimed[NFRAMES] = 1, vacant[NFRAMES] = 1;  // vacant: `free`
// The key word: the key, and the stamp that it is sealed with.
byte key[NFRAMES], seal[NFRAMES];
byte data[2 * NFRAMES];

byte slots[2 * NBUCKETS];  // 0 or frame + 1; all keys have one tag
bit bucket_lock[NBUCKETS];
#define HOME(k) ((k) % NBUCKETS)
#define CHOICE(k) ((k) % NFRAMES)  // frames::preferred

byte host_failures = FAILURES;
byte ndone;  // groups that have ended

// What a look-up would take for page k.
#define HITS(f, k) (!claimed[f] && !failed[f] && key[f] == (k) && seal[f] == stamp[f])
#define EVICTABLE(f) (pins[f] == 0 && !dirty[f] && !filling[f] && !claimed[f])
#define NAMED(f) (slots[0] == (f) + 1 || slots[1] == (f) + 1 || slots[2] == (f) + 1 || slots[3] == (f) + 1)

// hash_table::erase: only the frame's owner removes what names it.
inline erase(f) {
  if
  :: slots[2 * HOME(key[f])] == f + 1 -> slots[2 * HOME(key[f])] = 0
  :: slots[2 * HOME(key[f]) + 1] == f + 1 -> slots[2 * HOME(key[f]) + 1] = 0
  :: else -> assert(false)
  fi
}

// The front hand of the clock, which evicts: clock_rings::evict. Any frame, at any moment.
#ifdef COARSE
inline evict(f) {
  claimed[f] = 1;
  failed[f] = 0;
  vacant[f] = 1
}
active proctype evictor() {
end:
  do
  :: d_step { EVICTABLE(0) -> evict(0) }
  :: d_step { EVICTABLE(1) -> evict(1) }
  od
}
#else
active proctype evictor() {
  byte f, seen;
  bit was_failed, ours;
end:
  do
  :: atomic {
       if
       :: EVICTABLE(0) -> f = 0
       :: EVICTABLE(1) -> f = 1
       fi;
       seen = stamp[f];
       was_failed = failed[f]
     }
     d_step {  // frames::claim
#ifdef MUTATE_CLAIM_PINS
       ours = !dirty[f] && !filling[f] && !claimed[f] && stamp[f] == seen && failed[f] == was_failed;
#else
       ours = EVICTABLE(f) && stamp[f] == seen && failed[f] == was_failed;
#endif
       if
       :: ours -> claimed[f] = 1; failed[f] = 0
       :: else
       fi
     }
     if
     :: ours && !was_failed -> d_step { erase(f) }
     :: else
     fi;
     if
     :: ours -> d_step {
          assert(!NAMED(f));
          vacant[f] = 1  // frames::release
        }
     :: else
     fi;
     d_step { f = 0; seen = 0; was_failed = 0; ours = 0 }
  od
}
#endif

#if defined(MUTATE_KEY_UNCHECKED)
#define KEY_FITS(k) true
#elif defined(MUTATE_STAMP_UNCHECKED)
#define KEY_FITS(k) (was_key == k)
#else
#define KEY_FITS(k) (was_key == k && was_seal == was_stamp)
#endif
inline add_pin(f) {
  was_refused = claimed[f] || failed[f];
  was_filling = filling[f];
  was_stamp = stamp[f];
  pins[f]++
}
inline read_key(f) {
  was_key = key[f];
  was_seal = seal[f]
}
inline decide(k) {
  held = !was_refused && KEY_FITS(k);
  refused = !held;
  was_filling = was_filling && held;
  was_refused = 0;
  was_stamp = 0;
  was_key = 0;
  was_seal = 0
}
// frames::pin's two accesses, in either order; with ONE_ORDER in the code's.
inline pin(f, k) {
  if
  :: d_step { read_key(f) }
     d_step { add_pin(f); decide(k) }
#ifndef ONE_ORDER
  :: d_step { add_pin(f) }
     d_step { read_key(f); decide(k) }
#endif
  fi;
  if
  :: refused -> d_step { pins[f]--; refused = 0 }
  :: !refused
  fi
}

// page_cache::find: the frame of the page's choice, else what hash_table::find finds: a bucket is one load. Sets held, f, was_filling.
inline find(k) {
  d_step { f = CHOICE(k); held = 0 }
  pin(f, k);
  if
  :: held -> skip
  :: else -> find_elsewhere(k)
  fi
}
inline find_elsewhere(k) {
  d_step { first = slots[2 * HOME(k)]; second = slots[2 * HOME(k) + 1] }
  if
  :: d_step { first != 0 -> f = first - 1; first = 0 }
     pin(f, k)
  :: first == 0
  fi;
  if
  :: d_step { !held && second != 0 -> f = second - 1; second = 0 }
     pin(f, k)
  :: held || second == 0 -> second = 0
  fi
}

#ifdef COARSE
#define LOOKUP_LOCALS \
  byte f; \
  bit filler, error, was_filling
inline acquire() {
  atomic {
    if
    :: HITS(0, k) -> d_step { f = 0; pins[0]++; was_filling = filling[0] }
    :: HITS(1, k) -> d_step { f = 1; pins[1]++; was_filling = filling[1] }
    :: !HITS(0, k) && !HITS(1, k) && vacant[0] -> d_step { f = 0; begin_fill_at_once(0) }
    :: !HITS(0, k) && !HITS(1, k) && !vacant[0] && vacant[1] -> d_step { f = 1; begin_fill_at_once(1) }
    :: !HITS(0, k) && !HITS(1, k) && EVICTABLE(CHOICE(k)) -> d_step { f = CHOICE(k); failed[f] = 0; begin_fill_at_once(f) }
    fi
  }
  if
  :: was_filling -> d_step { !filling[f]; was_filling = 0; error = failed[f]; if :: error -> pins[f]-- :: else fi }
  :: else
  fi
}
#ifdef TRUNCATE
#define NEXT_STAMP(f) stamp[f] = (stamp[f] + 1) % 4
#else
#define NEXT_STAMP(f) skip  // nobody asks
#endif
inline begin_fill_at_once(f) {
  key[f] = k;
  NEXT_STAMP(f);
  seal[f] = stamp[f];
  filler = 1;
  pins[f]++;
  vacant[f] = 0;
  claimed[f] = 0;
  filling[f] = 1
}
#else
#define LOOKUP_LOCALS \
  byte f, first, second, was_stamp, was_key, was_seal; \
  bit held, refused, was_refused, was_filling, filler, error

// page_cache::acquire. f is pinned; `filler`: by us, to be filled; or `error`: nothing is pinned.
inline acquire() {
  d_step { filler = 0; error = 0 }
  find(k);
  do
  :: held -> break
  :: else ->
     atomic { !bucket_lock[HOME(k)] -> bucket_lock[HOME(k)] = 1 }
#ifndef MUTATE_NO_SECOND_LOOK
     find(k);
#endif
     if
     :: held -> bucket_lock[HOME(k)] = 0; break
     :: else
     fi;
     // clock_rings::take: the frame of choice, if it is free or may be evicted
     d_step {
       f = CHOICE(k);
       if
       :: vacant[f] -> vacant[f] = 0; filler = 1
       :: else
       fi
     }
     if
     :: atomic { !filler && EVICTABLE(f) -> was_stamp = stamp[f]; was_refused = failed[f] }
        d_step {  // frames::claim
#ifdef MUTATE_TAKE_PINNED
          filler = !dirty[f] && !filling[f] && !claimed[f] && stamp[f] == was_stamp && failed[f] == was_refused;
#else
          filler = EVICTABLE(f) && stamp[f] == was_stamp && failed[f] == was_refused;
#endif
          if
          :: filler -> claimed[f] = 1; failed[f] = 0
          :: else
          fi
        }
        if
#ifndef MUTATE_TAKE_LEAVES_ENTRY
        :: filler && !was_refused -> d_step { erase(f) }
#endif
        :: else
        fi;
        d_step { was_stamp = 0; was_refused = 0 }
     :: else
     fi;
     // clock_rings::allocate: the back hand
     d_step {
       if
       :: filler -> assert(!NAMED(f))
       :: !filler && vacant[0] -> f = 0; vacant[0] = 0; filler = 1
       :: !filler && !vacant[0] && vacant[1] -> f = 1; vacant[1] = 0; filler = 1
       :: else
       fi
     }
     if
     :: filler ->
#if defined(TRUNCATE) && defined(MUTATE_SIZE_EARLY)
        nbytes = file_nbytes;
#endif
        d_step { key[f] = k; seal[f] = stamp[f] + 1 }                             // frames::begin_fill
        d_step { stamp[f]++; pins[f]++; filling[f] = 1; claimed[f] = 0 }
        d_step {                                                                   // hash_table::insert
          assert(!(NAMED(0) && HITS(0, k)) && !(NAMED(1) && HITS(1, k)));          // no page in two frames
          if
          :: slots[2 * HOME(k)] == 0 -> slots[2 * HOME(k)] = f + 1
          :: else -> assert(slots[2 * HOME(k) + 1] == 0); slots[2 * HOME(k) + 1] = f + 1
          fi
        }
        bucket_lock[HOME(k)] = 0;
        held = 1;
        break
     :: else ->
        bucket_lock[HOME(k)] = 0;
        (vacant[0] || vacant[1] || EVICTABLE(CHOICE(k)))  // -ENOMEM, were it not to come
     fi
  od;
  if
  :: !filler && was_filling ->  // frames::wait_filled
     d_step {
       !filling[f];
#ifndef MUTATE_WAITER_IGNORES_ERROR
       error = failed[f]
#endif
     }
     if
     :: error -> pins[f]--
     :: else
     fi
  :: else
  fi;
  d_step { held = 0; was_filling = 0 }
}
#endif

inline end_fill_ok() {
  d_step { filling[f] = 0; filler = 0 }
}
// page_cache::fail_fill
inline end_fill_failed() {
#if !defined(MUTATE_FAIL_LEAVES_ENTRY) && !defined(COARSE)
  d_step { erase(f) }
#endif
#ifdef MUTATE_FAIL_KEEPS_FILLING
  failed[f] = 1;
#else
  d_step { failed[f] = 1; filling[f] = 0 }
#endif
  d_step { pins[f]--; filler = 0; error = 1 }
}

inline check_cache_at_rest() {
  assert(pins[0] == 0 && pins[1] == 0);
  assert(!filling[0] && !filling[1]);
  assert(!bucket_lock[0] && !bucket_lock[1])
}

// --- READ -------------------------------------------------------------------------------------------------------------------------
#ifdef READ

byte version;  // of the file; a page's key is version * NPAGES + page, its bytes are key + 1

// Opens (this version's cache id), reads a page, closes; with NOPS > 1 others after that.
proctype reader(byte k) {
  LOOKUP_LOCALS;
  byte n;
  for (n : 1 .. NOPS) {
    k = k + version * NPAGES;
    acquire();
    if
    :: filler ->  // file::fill: -ESTALE when the file has changed
       atomic {
         if
         :: version != k / NPAGES -> error = 1
         :: version == k / NPAGES
         :: host_failures > 0 -> host_failures--; error = 1
         fi
       }
       if
       :: error -> end_fill_failed()
       :: else ->
          data[2 * f] = k + 1;
          data[2 * f + 1] = k + 1;
          end_fill_ok()
       fi
    :: else
    fi;
    if
    :: !error ->
       assert(key[f] == k && data[2 * f] == k + 1);
       assert(data[2 * f + 1] == k + 1);
       assert(HITS(f, k));
       pins[f]--
    :: else
    fi;
    d_step { f = 0; k = 0; error = 0 }
#if NOPS > 1
    if
    :: true
    :: k = 1
    :: k = 2
    fi
#endif
  }
  atomic { n = 0; k = 0; ndone++ }
}

// Reads a page without a pin: pointer/detail/unpinned.hpp.
#ifdef LOOKER
#ifdef MUTATE_LOOKED_AT_WHILE_FILLED
#define LOOKS_FILLED(f) (!claimed[f] && !failed[f])
#else
#define LOOKS_FILLED(f) (!claimed[f] && !failed[f] && !filling[f])
#endif
#if defined(MUTATE_LOOKED_ONCE)
#define HAS_STAYED(f) true
#elif defined(MUTATE_STAYED_IF_NOT_CLAIMED)
#define HAS_STAYED(f) (!claimed[f])
#else
#define HAS_STAYED(f) (stamp[f] == seen_stamp && !claimed[f])
#endif
proctype looker(byte k) {
  byte f, seen_stamp, seen_key, seen_seal, a, b;
  bit there, held;
  k = k + version * NPAGES;
  atomic {
    if
    :: slots[2 * HOME(k)] != 0 -> f = slots[2 * HOME(k)] - 1; there = 1
    :: slots[2 * HOME(k) + 1] != 0 -> f = slots[2 * HOME(k) + 1] - 1; there = 1
    :: f = CHOICE(k); there = 1  // asked first; the table only if it has another page
    fi
  }
  if
  :: there ->
     if  // frames::look
     :: d_step { seen_key = key[f]; seen_seal = seal[f] }
        d_step { seen_stamp = stamp[f]; held = LOOKS_FILLED(f) }
     :: d_step { seen_stamp = stamp[f]; held = LOOKS_FILLED(f) }
        d_step { seen_key = key[f]; seen_seal = seal[f] }
     fi;
     if
     :: held && seen_key == k && seen_seal == seen_stamp ->
        a = data[2 * f];
        b = data[2 * f + 1];
        d_step {
          held = HAS_STAYED(f);
          assert(!held || (a == k + 1 && b == k + 1))
        }
     :: else
     fi
  :: else
  fi
}
#endif

proctype changer() {
  version = 1;
}

#ifndef NREADERS
#define NREADERS 3
#endif
init {
  byte p, q, r;
  atomic {  // all readers do the same, so that pages in rising order are all there are
    select(p : 0 .. 2);
    select(q : p .. 2);
    run reader(p);
    run reader(q);
#if NREADERS > 2
    select(r : q .. 2);
    run reader(r);
#endif
#ifdef LOOKER
    select(r : 0 .. 2);
    run looker(r);
#endif
#ifndef NO_CHANGE
    run changer();
#endif
    p = 0;
    q = 0;
    r = 0
  }
  ndone == NREADERS;
  d_step { check_cache_at_rest() }
}
#endif

// --- Writing ----------------------------------------------------------------------------------------------------------------------
#if defined(WRITE) || defined(TRUNCATE)

byte mask[NFRAMES];       // bit i: byte i was written since it was last taken
byte dirty_next[NFRAMES];
byte list_head[NLISTS];   // 0 or frame + 1
bit list_lock[NLISTS];
byte dirty_pages;
bit write_error;
byte host[NBYTES];        // the file
#define LIST(f) ((f) % NLISTS)

// What must be: these are no part of the code.
byte last[NBYTES];        // the newest that was written
byte written[NBYTES];        // the newest whose write has returned
byte dropped[NBYTES];     // the newest whose write-back has failed
bit told;                 // somebody was told so

#if defined(TRUNCATE) || defined(STORED)
#define GATE
byte writing;             // the gate: writes under way
bit closed;               // the gate
#endif
#ifdef STORED
byte mapped_nbytes = 4;   // the slot's
bit wrote_in_place;       // its in_place_nbytes is not 0
bit gone[NPAGES];         // the mapping's page is not the file's any more
byte orphan[NBYTES];      // what it has then
byte cut[NBYTES];         // what must be: the newest that the file had, and somebody else has cut off
#define IN_PLACE(k) (2 * (k) + 2 <= mapped_nbytes)
#endif
#ifdef TRUNCATE
byte file_nbytes;         // the slot's
byte host_nbytes;         // the file's
byte true_nbytes;         // as it should be
byte serial = 1;          // of writes
#endif

#define WRITEBACK_LOCALS \
  byte g, bits, page, copy0, copy1, list; \
  bit none, ours, was_dirty, was_listed, in_place, lost

// Write-back of one page; the list's lock is held. `none`: it is empty.
inline write_back(l) {
  do
  :: d_step { g = list_head[l]; none = (g == 0) }
     if
     :: none -> break
     :: else
     fi;
     d_step {
       ours = (list_head[l] == g);
       if
       :: ours -> list_head[l] = dirty_next[g - 1]; g = g - 1
       :: else
       fi
     }
     if
     :: ours -> break
     :: else
     fi
  od;
  if
  :: none
  :: else ->
#ifdef STORED
     in_place = IN_PLACE(key[g]);  // take_dirty
#endif
#ifndef MUTATE_UNLISTED
     atomic { listed[g]; assert(dirty[g] && !claimed[g]) }  // its pusher is about to say so
#endif
#ifndef MUTATE_CLEANER_UNPINNED
     d_step { pins[g]++; page = key[g] }
#else
     page = key[g];
#endif
#ifndef MUTATE_CLEAR_LATE
     d_step { dirty[g] = 0; listed[g] = 0 }
#endif
#ifndef MUTATE_MASK_LATE
     bits = mask[g];  // looks; then takes
#ifdef MUTATE_MASK_STORED
     mask[g] = 0;
#else
     d_step { copy0 = bits; bits = mask[g] & copy0; mask[g] = mask[g] & (3 - copy0); copy0 = 0 }
#endif
#endif
     copy0 = data[2 * g];
     copy1 = data[2 * g + 1];
#ifdef MUTATE_MASK_LATE
     d_step { bits = mask[g]; mask[g] = 0 }
#endif
#ifdef MUTATE_CLEAR_LATE
     d_step { dirty[g] = 0; listed[g] = 0 }
#endif
#ifdef MUTATE_WHOLE_PAGE
     bits = 3;
#endif
#ifdef MUTATE_UNLOCK_EARLY
     list_lock[l] = 0;
#endif
     if
     :: bits == 0
#ifdef STORED
     :: bits != 0 && in_place ->  // store_page
        if
        :: bits & 1 -> store_byte(2 * page, copy0)
        :: !(bits & 1)
        fi;
        if
        :: bits & 2 -> store_byte(2 * page + 1, copy1)
        :: !(bits & 2)
        fi;
#ifdef MUTATE_STORES_UNTOLD
        skip
#else
        wrote_in_place = 1
#endif
#endif
     :: else -> write_at_host()
     fi;
#ifdef MUTATE_UNLOCK_EARLY
     atomic { !list_lock[l] -> list_lock[l] = 1 }
#endif
#ifndef MUTATE_CLEANER_UNPINNED
     pins[g]--;
#endif
     dirty_pages--
  fi;
  d_step { g = 0; bits = 0; page = 0; copy0 = 0; copy1 = 0; ours = 0; in_place = 0 }
}

#ifdef STORED
// A store through the mapping.
inline store_byte(b, value) {
  d_step {
#ifdef TRUNCATE
    assert(!gone[(b) / 2]);
    host[b] = value
#else
    if
    :: gone[(b) / 2] -> orphan[b] = value; dropped[b] = value
    :: else -> write_byte_at_host(b, value)
    fi
#endif
  }
}

// `lost`: what was stored may be.
inline sync_on_host() {
  if
  :: wrote_in_place ->
     lost = gone[0] || gone[1];  // the host's look
#ifdef MUTATE_STORED_FORGOTTEN
     wrote_in_place = 0;
#endif
     if
     :: lost ->
        atomic { !closed -> closed = 1 }  // begin_truncation
        writing == 0;
        mapped_nbytes = 0;
        list = 0;
        do                                // wait_for_write_backs
        :: list == NLISTS -> break
        :: else ->
           atomic { !list_lock[list] -> list_lock[list] = 1 }
           list_lock[list] = 0;
           list++
        od;
        list = 0;
        d_step { wrote_in_place = 0; told = 1 }
        closed = 0
     :: else
     fi
  :: else
  fi
}
#endif

inline write_byte_at_host(b, value) {
#ifdef TRUNCATE
  host_nbytes = (host_nbytes > b -> host_nbytes : b + 1);
#else
  assert(value >= host[b]);  // never an older one
#endif
  host[b] = value
}
inline write_at_host() {
  atomic {
    if
    :: true ->
       d_step {
         if
         :: bits & 1 -> write_byte_at_host(2 * page, copy0)
         :: else
         fi;
         if
         :: bits & 2 -> write_byte_at_host(2 * page + 1, copy1)
         :: else
         fi;
         bits = 0
       }
    :: host_failures > 0 ->
       host_failures--;
       d_step {
         if
         :: bits & 1 -> dropped[2 * page] = copy0
         :: else
         fi;
         if
         :: bits & 2 -> dropped[2 * page + 1] = copy1
         :: else
         fi
       }
    fi
  }
  if
  :: bits != 0 ->
#ifdef MUTATE_ERROR_FORGOTTEN
     skip
#else
     write_error = 1
#endif
  :: else
  fi
}

// All lists, in turn.
inline write_back_all() {
  list = 0;
  do
  :: list == NLISTS -> break
  :: else ->
     atomic { !list_lock[list] -> list_lock[list] = 1 }
     do
     :: write_back(list);
        if
        :: none -> break
        :: else
        fi
     od;
     list_lock[list] = 0;
     list++
  od;
  atomic { list = 0; none = 0 }
}

inline write_byte(b, mine) {
  d_step {
#ifdef TRUNCATE
    serial++;
    last[b] = serial;
#else
    last[b]++;
#endif
    mine = last[b];
    data[2 * f + (b) % 2] = mine
  }
}
inline mark_mask() { d_step { mask[f] = mask[f] | what } }
inline set_dirty() {
  d_step { was_dirty = dirty[f]; was_listed = listed[f]; dirty[f] = 1 }
}
inline grow() {
  skip
#ifdef TRUNCATE
  ;
  d_step {
    if
    :: what & 2 -> nbytes = 2 * k + 2
    :: else -> nbytes = 2 * k + 1
    fi;
    file_nbytes = (file_nbytes > nbytes -> file_nbytes : nbytes);
    true_nbytes = (true_nbytes > nbytes -> true_nbytes : nbytes);
    nbytes = 0
  }
#endif
}

inline fill_page() {
  // file::fill_staged: request and answer, then the copy
#ifdef TRUNCATE
#ifndef MUTATE_SIZE_EARLY
  nbytes = file_nbytes;
#endif
#ifdef STORED
  lost = (2 * k < nbytes && (nbytes < 2 * k + 2 -> nbytes : 2 * k + 2) <= mapped_nbytes);  // it is pulled
#endif
  d_step {
#ifdef STORED
    assert(!lost || !gone[k]);
    lost = 0;
#endif
    copy0 = (2 * k < nbytes -> host[2 * k] : 0);
    copy1 = (2 * k + 1 < nbytes -> host[2 * k + 1] : 0);
    nbytes = 0
  }
#else
  atomic {
    if
#ifdef STORED
    :: IN_PLACE(k) ->
       copy0 = (gone[k] -> orphan[2 * k] : host[2 * k]);
       copy1 = (gone[k] -> orphan[2 * k + 1] : host[2 * k + 1])
    :: !IN_PLACE(k) -> copy0 = host[2 * k]; copy1 = host[2 * k + 1]
#else
    :: copy0 = host[2 * k]; copy1 = host[2 * k + 1]
#endif
    :: host_failures > 0 -> host_failures--; error = 1
    fi
  }
#endif
  if
  :: error -> end_fill_failed()
  :: else ->
     d_step { data[2 * f] = copy0; data[2 * f + 1] = copy1; copy0 = 0; copy1 = 0 }
     end_fill_ok()
  fi
}

// pwrite of the bytes `what` (1, 2 or both) of page k.
inline write_page() {
#if defined(GATE) && !defined(MUTATE_NO_GATE)
  do
  :: d_step { ours = !closed; writing++ }
     if
     :: ours -> break
     :: else -> writing--; !closed
     fi
  od;
  ours = 0;
#endif
  acquire();
  if
  :: filler && what != 3 -> fill_page()
  :: else
  fi;
#ifdef STORED
  in_place = (filler && what == 3 && IN_PLACE(k));
#endif
  if
  :: error
#ifdef STORED
  :: in_place ->  // store_new_page
     write_byte(2 * k, mine0);
     write_byte(2 * k + 1, mine1);
#ifdef MUTATE_FILLED_BEFORE_STORED
     end_fill_ok();
#endif
     store_byte(2 * k, mine0);
     store_byte(2 * k + 1, mine1);
#ifndef MUTATE_NEW_PAGE_UNTOLD
     wrote_in_place = 1;
#endif
#ifndef MUTATE_FILLED_BEFORE_STORED
     end_fill_ok();
#endif
     d_step {
       pins[f]--;
       written[2 * k] = (mine0 > written[2 * k] -> mine0 : written[2 * k]);
       written[2 * k + 1] = (mine1 > written[2 * k + 1] -> mine1 : written[2 * k + 1]);
       mine0 = 0;
       mine1 = 0;
       in_place = 0
     }
#endif
  :: else ->
     if
     :: what & 1 -> write_byte(2 * k, mine0)
     :: !(what & 1)
     fi;
     if
     :: what & 2 -> write_byte(2 * k + 1, mine1)
     :: !(what & 2)
     fi;
     if
     :: filler -> end_fill_ok()
     :: !filler
     fi;
#ifndef MUTATE_DIRTY_BEFORE_MASK
     mark_mask();
#endif
#ifndef MUTATE_GROW_LATE
     grow();
#endif
     set_dirty();
     if
     :: !was_dirty ->
        dirty_pages++;
        do
        :: dirty_next[f] = list_head[LIST(f)];
           d_step {
             ours = (list_head[LIST(f)] == dirty_next[f]);
             if
             :: ours -> list_head[LIST(f)] = f + 1
             :: else
             fi
           }
           if
           :: ours -> break
           :: else
           fi
        od;
        ours = 0;
#ifndef MUTATE_UNLISTED
        listed[f] = 1
     :: was_dirty && !was_listed -> (listed[f] || !dirty[f])
#endif
     :: else
     fi;
#ifdef MUTATE_DIRTY_BEFORE_MASK
     mark_mask();
#endif
     list = LIST(f);
     d_step {
       pins[f]--;
       // From here on it is a write that came before; the call returns after it has cleaned.
#ifdef WRITE
       written[2 * k] = (mine0 > written[2 * k] -> mine0 : written[2 * k]);
       written[2 * k + 1] = (mine1 > written[2 * k + 1] -> mine1 : written[2 * k + 1]);
#endif
       mine0 = 0;
       mine1 = 0;
       was_dirty = 0;
       was_listed = 0
     }
     do
     :: dirty_pages <= LIMIT -> break
     :: dirty_pages > LIMIT ->
        // Any list whose lock is free, else our own's lock is waited for.
#ifdef MUTATE_TRY_ONLY
        if
        :: atomic { !list_lock[list] -> list_lock[list] = 1 }
        :: list_lock[list] -> break
        fi;
#else
#if NLISTS > 1
        if
        :: atomic { list_head[1 - list] != 0 && !list_lock[1 - list] -> list_lock[1 - list] = 1 }
           write_back(1 - list);
           list_lock[1 - list] = 0;
           break
        :: true ->
#endif
        atomic { !list_lock[list] -> list_lock[list] = 1 }
#endif
        write_back(list);
        list_lock[list] = 0;
        break
#if NLISTS > 1 && !defined(MUTATE_TRY_ONLY)
        fi
#endif
     od;
     atomic { list = 0; none = 0 }
#ifdef MUTATE_GROW_LATE
     grow();
#endif
  fi;
#if defined(GATE) && !defined(MUTATE_NO_GATE)
  writing--;
#endif
  d_step { f = 0; k = 0; what = 0; error = 0 }
}
#endif

// --- WRITE ------------------------------------------------------------------------------------------------------------------------
#ifdef WRITE

// Bytes 0, 2 and 3 are written by groups, byte 1 by a CPU process.
#define CPU_BYTE 1
#ifdef STORED
#define CUT_OFF(b, wanted) ((wanted) <= cut[b])
#else
#define CUT_OFF(b, wanted) false
#endif
#define SAVED(b, wanted) (host[b] >= (wanted) || CUT_OFF(b, wanted) || ((wanted) <= dropped[b] && told))

proctype writer(byte id) {
  LOOKUP_LOCALS;
  WRITEBACK_LOCALS;
  byte k, n, what, mine0, mine1, wanted0, wanted2, wanted3;
  for (n : 1 .. NOPS) {
    if
    :: k = 0; what = 1
#ifdef WHOLE_PAGES
    :: k = 1; what = 3
#else
    :: k = 1; what = 1 + id  // each its own byte
#endif
    fi;
    write_page()
  }
  n = 0;
#ifndef NO_FSYNC
  d_step { wanted0 = written[0]; wanted2 = written[2]; wanted3 = written[3] }
  write_back_all();
#ifdef STORED
  sync_on_host();
#endif
  d_step {
    error = write_error || lost;
    lost = 0;
    write_error = 0;
    told = told || error;
    assert(error || (SAVED(0, wanted0) && SAVED(2, wanted2) && SAVED(3, wanted3)))
  }
#endif
  d_step { error = 0; wanted0 = 0; wanted2 = 0; wanted3 = 0; ndone++ }
}

proctype reader() {
  LOOKUP_LOCALS;
  byte k, copy0, copy1, wanted0, wanted1;
  if
  :: k = 0
  :: k = 1
  :: k = 2
  fi;
  d_step { wanted0 = written[2 * k]; wanted1 = written[2 * k + 1] }
  acquire();
  if
  :: filler -> fill_page()
  :: else
  fi;
  if
  :: !error ->
     assert(HITS(f, k));
     assert(data[2 * f] >= wanted0 || wanted0 <= dropped[2 * k] || CUT_OFF(2 * k, wanted0));
     assert(2 * k + 1 == CPU_BYTE || data[2 * f + 1] >= wanted1 || wanted1 <= dropped[2 * k + 1] || CUT_OFF(2 * k + 1, wanted1));
     pins[f]--
  :: else
  fi;
  d_step { f = 0; k = 0; error = 0; wanted0 = 0; wanted1 = 0; ndone++ }
}

#ifdef STORED
#define CPU_DONE gone[0]
proctype cpu_process() {
  byte b;
  d_step {
    for (b : 0 .. 3) {
      cut[b] = host[b];
      orphan[b] = host[b];
      host[b] = 0
    }
    gone[0] = 1;
    gone[1] = 1
  }
}
#else
#define CPU_DONE (host[CPU_BYTE] == 1)
proctype cpu_process() {
  host[CPU_BYTE] = 1;
}
#endif

init {
  atomic {
    run writer(0);
    run writer(1);
#ifdef READER
    run reader();
#else
    ndone++;
#endif
    run cpu_process()
  }
  ndone == 3 && CPU_DONE;
  d_step {
    check_cache_at_rest();
    assert(dirty_pages == dirty[0] + dirty[1] && dirty_pages <= LIMIT && dirty[0] == listed[0] && dirty[1] == listed[1]);
#ifndef NO_FSYNC
    assert(!dirty[0] && !dirty[1] && !listed[0] && !listed[1] && dirty_pages == 0 && list_head[0] == 0);
    assert(SAVED(0, last[0]) && SAVED(2, last[2]) && SAVED(3, last[3]));
    assert(mask[0] == 0 && mask[1] == 0);
#endif
    assert(CPU_DONE)
  }
}
#endif

// --- TRUNCATE ---------------------------------------------------------------------------------------------------------------------
#ifdef TRUNCATE

#define CUT 1     // ftruncate(1)
#ifdef STORED
#define BEFORE 4
#else
#define BEFORE 3  // bytes in the file at first
#endif
#define FRAME_RIGHT(f) (claimed[f] || (data[2 * f] == last[2 * key[f]] && data[2 * f + 1] == last[2 * key[f] + 1]))

proctype writer() {
  LOOKUP_LOCALS;
  WRITEBACK_LOCALS;
  byte k, n, what, mine0, mine1, nbytes;
  for (n : 1 .. NOPS) {
    if
    :: k = 0; what = 1
    :: k = 0; what = 2
    :: k = 1; what = 2
    fi;
    write_page()
  }
  n = 0;
  ndone++
}

proctype reader() {
  LOOKUP_LOCALS;
  byte k, copy0, copy1, nbytes, n;
  bit lost;
  for (n : 1 .. NOPS) {
    if
    :: k = 0
    :: k = 1
    fi;
    acquire();
    if
    :: filler -> fill_page()
    :: else
    fi;
    if
    :: !error -> pins[f]--
    :: else
    fi;
    d_step { f = 0; k = 0; error = 0 }
  }
  atomic { n = 0; ndone++ }
}

proctype syncer() {
  WRITEBACK_LOCALS;
  write_back_all();
  ndone++
}

proctype truncater() {
  byte f, was_key, was_seal, was_stamp, list;
  bit was_refused, was_filling;
#ifndef MUTATE_NO_GATE
  closed = 1;
  writing == 0;
#endif
  d_step {
    file_nbytes = CUT;
    true_nbytes = CUT;
    last[1] = 0;
    last[2] = 0;
    last[3] = 0
  }
#if defined(STORED) && !defined(MUTATE_MAPPED_STAYS)
  mapped_nbytes = CUT;
#endif
  do
  :: f == NFRAMES -> break
  :: else ->
     d_step { read_key(f) }
     d_step { add_pin(f) }
#ifdef MUTATE_SCAN_UNPINNED
     pins[f]--;
#endif
     if
     :: !was_refused && was_seal == was_stamp ->
#ifndef MUTATE_SCAN_FILLING
        !filling[f];
#endif
        if
        :: failed[f]
        :: else ->
           d_step {
             data[2 * f] = (2 * was_key < CUT -> data[2 * f] : 0);
             data[2 * f + 1] = (2 * was_key + 1 < CUT -> data[2 * f + 1] : 0)
           }
           d_step { mask[f] = (2 * was_key < CUT -> mask[f] & 1 : 0) }
        fi
     :: else
     fi;
#ifndef MUTATE_SCAN_UNPINNED
     pins[f]--;
#endif
     d_step { f++; was_key = 0; was_seal = 0; was_stamp = 0; was_refused = 0; was_filling = 0 }
  od;
#ifndef MUTATE_NO_LOCK_PASS
  do
  :: list == NLISTS -> break
  :: else ->
     atomic { !list_lock[list] -> list_lock[list] = 1 }
     list_lock[list] = 0;
     list++
  od;
#endif
  atomic {
#ifdef STORED
    gone[1] = 1;
#endif
    host_nbytes = CUT;
    host[1] = 0;
    host[2] = 0;
    host[3] = 0
  }
#ifndef MUTATE_NO_GATE
  closed = 0;
#endif
  d_step { f = 0; list = 0; ndone++ }
}

init {
  WRITEBACK_LOCALS;
  atomic {
    host[0] = 1; host[1] = 1; host[2] = 1;
    last[0] = 1; last[1] = 1; last[2] = 1;
#ifdef STORED
    host[3] = 1; last[3] = 1;
#endif
    file_nbytes = BEFORE; true_nbytes = BEFORE; host_nbytes = BEFORE;
    run writer();
    run reader();
    run syncer();
    run truncater()
  }
  ndone == 4;
  write_back_all();
  d_step {
    check_cache_at_rest();
    assert(file_nbytes == true_nbytes && host_nbytes == true_nbytes);
    assert(host[0] == last[0] && host[1] == last[1] && host[2] == last[2] && host[3] == last[3]);
    assert(FRAME_RIGHT(0) && FRAME_RIGHT(1))
  }
}
#endif
