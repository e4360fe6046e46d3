// SPDX-License-Identifier: Apache-2.0
// Write-backs that the host answers too late (file/detail/write_back.hpp: finish_page; transport/detail/requests.hpp, file/detail/late_answers.hpp;
// docs/design/writing.md, "Write-back of one page"), for Spin, as page.pml; what is said there of steps is so here. The host answers each
// request at last, in any order; who waits for it gives up at any moment, at most NTIMEOUTS times. Other waits have no time limit.
//
// There are NPAGES pages of one byte, each in its frame for good, in one list; a byte is the number of its write. Requests go through one
// ring of NSLOTS slots.

#ifndef NPAGES
#define NPAGES 1
#endif
#ifndef NWRITES
#define NWRITES 2    // of each writer, one to each page in turn; an fsync after each
#endif
#ifndef NTIMEOUTS
#define NTIMEOUTS 1
#endif
#ifndef NASKS
#define NASKS 2      // requests of others
#endif
#ifndef FAILURES
#define FAILURES 1   // of the host
#endif
#define NSLOTS 2
#define BATCH NPAGES
#define HELD 1
#define LATE 2

byte pins[NPAGES], data[NPAGES];
bit dirty[NPAGES], listed[NPAGES], mask[NPAGES], in_list[NPAGES];
byte list_lock;       // HELD, and LATE for each that is late
byte dirty_pages;
bit write_error;

// The ring. A slot's word: its turn, and whether who had it last gave it up.
byte tail, turn[NSLOTS];
bit abandoned[NSLOTS];
byte asked[NSLOTS], answered[NSLOTS];  // `sequence` of request and reply
byte asked_frame[NSLOTS], asked_value[NSLOTS];
bit asked_write[NSLOTS], answer_failed[NSLOTS];

byte host[NPAGES];    // the file
byte host_failures = FAILURES;
byte timeouts = NTIMEOUTS;

// What must be: no part of the code.
byte dropped[NPAGES]; // the newest that failed, or was given up
bit told[NPAGES];     // somebody was told of it
byte ndone;

// A worker of the host: takes the request, then works with what lies in the slot.
proctype worker(byte s) {
  byte seq;
end:
  do
  :: d_step { asked[s] != answered[s] -> seq = asked[s] }
     atomic {
       if
       :: !asked_write[s]
       :: asked_write[s] ->
          assert(asked_value[s] >= host[asked_frame[s]]);  // never an older one
          host[asked_frame[s]] = asked_value[s];
          answer_failed[s] = 0
       :: asked_write[s] && host_failures > 0 -> host_failures--; answer_failed[s] = 1
       fi
     }
     d_step { answered[s] = seq; seq = 0 }
  od
}

#define TURN_OF(n) ((n) / NSLOTS)
#define LOCALS \
  byte number, index, old, f, value, n, i, wanted; \
  byte batch_index[BATCH], batch_number[BATCH], batch_frame[BATCH], batch_value[BATCH]; \
  bit ours, was_dirty, was_listed, error, found, lost

// requests::reclaim of slot `index`, seen with the turn `old` and abandoned.
inline reclaim() {
#ifdef MUTATE_RECLAIMED_UNANSWERED
  ours = 1;
#else
  ours = (answered[index] == old * NSLOTS + index + 1);
#endif
  if
  :: ours ->
     d_step {
       ours = (abandoned[index] && turn[index] == old);
#ifndef MUTATE_RECLAIMED_BY_TWO
       if
       :: ours -> abandoned[index] = 0
       :: else
       fi
#endif
     }
  :: else
  fi;
  if
  :: ours ->
#ifdef MUTATE_SLOT_BEFORE_REQUEST_READ
     d_step { turn[index] = old + 1; abandoned[index] = 0 }
#endif
     if
     :: asked_write[index] ->  // end_late_write
#ifndef MUTATE_LATE_PIN_KEPT
        d_step { i = asked_frame[index]; assert(pins[i] > 0); pins[i]--; i = 0 }
#endif
        dirty_pages--;
#if !defined(MUTATE_LATE_LIST_KEPT) && !defined(MUTATE_LIST_NOT_LOST)
        d_step { assert(list_lock >= LATE); list_lock = list_lock - LATE }
#endif
     :: else
     fi;
#ifndef MUTATE_SLOT_BEFORE_REQUEST_READ
     d_step { turn[index] = old + 1; abandoned[index] = 0 }
#endif
  :: else
  fi;
  ours = 0
}

inline end_late_writes() {
  for (index : 0 .. NSLOTS - 1) {
    d_step { found = abandoned[index]; old = turn[index] }
    if
    :: found -> reclaim()
    :: else
    fi
  }
  index = 0;
  old = 0;
  found = 0
}

// requests::take: a slot in index and number, or !found. `waits`: until there is one.
inline take(waits) {
  do
  :: number = tail;
     index = number % NSLOTS;
     d_step { old = turn[index]; found = !abandoned[index] && old == TURN_OF(number); ours = abandoned[index] && old + 1 == TURN_OF(number) }
     if
     :: found ->
        d_step {
          found = (tail == number);
          if
          :: found -> tail++
          :: else
          fi
        }
        if
        :: found -> break
        :: else
        fi
     :: !found && ours -> reclaim();
        // Until something has changed.
        (tail != number || turn[index] != old || (abandoned[index] && answered[index] == old * NSLOTS + index + 1))
     :: !found && !ours ->
        if
        :: waits -> (tail != number || turn[index] != old || abandoned[index])
        :: else -> break
        fi
     fi
  od;
  ours = 0;
  old = 0
}

// write_back_list: its lock is held, and the list not lost. `error`: the host has not answered for a page.
inline write_back() {
  do
  :: n = 0;
     do
     :: n == BATCH -> break
     :: n < BATCH ->
        // take_dirty
        d_step {
          found = 0;
          f = 0;
          do
          :: f < NPAGES && !in_list[f] -> f++
          :: else -> break
          od;
          if
          :: f < NPAGES ->
#ifndef MUTATE_PAGE_TWICE_IN_A_BATCH
             found = !((n > 0 && batch_frame[0] == f)
#if BATCH > 1
               || (n > 1 && batch_frame[1] == f)
#endif
             );
#else
             found = 1;
#endif
             if
             :: found -> in_list[f] = 0
             :: else
             fi
          :: else
          fi
        }
        if
        :: !found -> break
        :: else
        fi;
        take(n == 0);
        if
        :: !found -> in_list[f] = 1; break  // put_back
        :: else
        fi;
        listed[f];
        pins[f]++;
        d_step { dirty[f] = 0; listed[f] = 0 }
        mask[f] = 0;
        value = data[f];
        // write_request
        d_step { asked_write[index] = 1; asked_frame[index] = f; asked_value[index] = value }
        d_step {
          asked[index] = number + 1;
          batch_index[n] = index; batch_number[n] = number; batch_frame[n] = f; batch_value[n] = value;
          n++; index = 0; number = 0; f = 0; value = 0
        }
     od;
     found = 0;
     if
     :: n == 0 -> break
     :: else
     fi;
     // finish_page
     do
     :: n == 0 -> break
     :: n > 0 && answered[batch_index[n - 1]] == batch_number[n - 1] + 1 ->
        n--;
        d_step {  // give_back; the answer was read before
          index = batch_index[n];
          if
          :: answer_failed[index] ->
             write_error = 1; dropped[batch_frame[n]] = batch_value[n]; told[batch_frame[n]] = 0
          :: else
          fi;
          turn[index] = TURN_OF(batch_number[n] + NSLOTS);
          index = 0
        }
        pins[batch_frame[n]]--;
        dirty_pages--
     :: atomic { n > 0 && timeouts > 0 && answered[batch_index[n - 1]] != batch_number[n - 1] + 1 -> timeouts--; n-- }
        d_step {
#ifndef MUTATE_TIMEOUT_UNTOLD
          write_error = 1;  // keep_error
#endif
          dropped[batch_frame[n]] = batch_value[n]; told[batch_frame[n]] = 0
        }
        error = 1;
#if defined(MUTATE_SLOT_GIVEN_BACK)
        turn[batch_index[n]] = TURN_OF(batch_number[n] + NSLOTS);
        pins[batch_frame[n]]--;
        dirty_pages--
#elif defined(MUTATE_LIST_NOT_LOST)
        abandoned[batch_index[n]] = 1
#elif defined(MUTATE_LOST_AFTER_ABANDON)
        abandoned[batch_index[n]] = 1;
        list_lock = list_lock + LATE
#else
        list_lock = list_lock + LATE;      // begin_late
        abandoned[batch_index[n]] = 1      // requests::abandon
#endif
     od;
     i = 0;
     d_step {
       do
       :: i < BATCH -> batch_index[i] = 0; batch_number[i] = 0; batch_frame[i] = 0; batch_value[i] = 0; i++
       :: else -> break
       od;
       i = 0
     }
     if
     :: error -> break
     :: else
     fi
  od;
  f = 0
}
inline unlock() {
#ifdef MUTATE_UNLOCK_CLEARS
  list_lock = 0
#else
  d_step { assert(list_lock % 2 == HELD); list_lock = list_lock - HELD }
#endif
}

// write_back_lists; `error`: -ETIMEDOUT.
inline write_back_all() {
  lost = (list_lock >= LATE);
  if
  :: lost ->
     end_late_writes();
     lost = (list_lock >= LATE)
  :: else
  fi;
  if
  :: lost -> error = 1
  :: else ->
     atomic {
       if
       :: list_lock == 0 -> list_lock = HELD; ours = 1
       :: list_lock >= LATE -> error = 1
       fi
     }
     if
     :: ours ->
        ours = 0;
        write_back();
        unlock()
     :: else
     fi
  fi;
  lost = 0
}

#define SAVED(p, v) (host[p] >= (v) || (dropped[p] >= (v) && told[p]))

proctype writer(byte p) {
  LOCALS;
  byte writes;
  for (writes : 1 .. NWRITES) {
    // write_in_page; see page.pml
    pins[p]++;
    d_step { data[p]++; wanted = data[p] }
    mask[p] = 1;
    d_step { was_dirty = dirty[p]; was_listed = listed[p]; dirty[p] = 1 }
    if
    :: !was_dirty ->
       dirty_pages++;
       d_step { assert(!in_list[p]); in_list[p] = 1 }
       listed[p] = 1
    :: was_dirty && !was_listed -> (listed[p] || !dirty[p])
    :: else
    fi;
    d_step { pins[p]--; was_dirty = 0; was_listed = 0 }
    // flush
    write_back_all();
    d_step {
      error = error || write_error;
      write_error = 0;
      if
      :: error ->
         i = 0;
         do
         :: i < NPAGES -> told[i] = 1; i++
         :: else -> break
         od;
         i = 0
      :: else
      fi;
      assert(error || SAVED(p, wanted));
      error = 0;
      wanted = 0
    }
#if NPAGES > 1
    p = 1 - p
#endif
  }
  p = 0;
  d_step { writes = 0; ndone++ }
}

// Others ask, too, and come by late answers.
proctype asker() {
  LOCALS;
  byte asks;
  for (asks : 1 .. NASKS) {
    take(1);
    d_step { asked_write[index] = 0; asked_frame[index] = 0; asked_value[index] = 0 }
    asked[index] = number + 1;
    answered[index] == number + 1;
    turn[index] = TURN_OF(number + NSLOTS);
    d_step { index = 0; number = 0; found = 0 }
  }
  asks = 0;
  ndone++
}

init {
  LOCALS;
  atomic {
    run worker(0);
    run worker(1);
    run writer(0);
    run writer(NPAGES - 1);
    run asker()
  }
  ndone == 3;
  // mount::sync, when the kernels have ended, and the host may not have.
  for (f : 0 .. NPAGES - 1) {
    if
#ifdef MUTATE_SYNC_BESIDE_LATE
    :: listed[f] ->
#else
    :: listed[f] && list_lock < LATE ->
#endif
       d_step {
         assert(data[f] >= host[f]);
         host[f] = data[f];
         mask[f] = 0;
         dirty[f] = 0;
         listed[f] = 0;
         in_list[f] = 0;
         dirty_pages--
       }
    :: else
    fi
  }
  f = 0;
  (asked[0] == answered[0] && asked[1] == answered[1]);
  // One more fsync, with nothing in its way.
  timeouts = 0;
  write_back_all();
  d_step {
    assert(!error);
    assert(list_lock == 0 && dirty_pages == 0 && !abandoned[0] && !abandoned[1]);
    assert(turn[0] == TURN_OF(tail + 1) && turn[1] == TURN_OF(tail));
    i = 0;
    do
    :: i < NPAGES ->
       assert(pins[i] == 0 && !dirty[i] && !listed[i] && !in_list[i] && !mask[i]);
       assert(host[i] == data[i] || dropped[i] == data[i]);
       i++
    :: else -> break
    od
  }
}
