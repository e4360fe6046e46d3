// SPDX-License-Identifier: Apache-2.0
// Operations (file/detail/operation.hpp, file/detail/page_operations.hpp; transport/detail/requests.hpp; docs/design/operations.md), for Spin, as page.pml;
// what is said there of steps is so here. NFRAMES frames, in which pages come one after the other: a page is the number of its fill. Some
// begin fills and leave at once; some wait for them, end them, and give up at any moment, NTIMEOUTS times in all; others come by
// as they need a request slot. The host answers each request at last, in any order.
//
// TO_FRAME: the copy engine brings the pages in. Bytes come to the frame until the host has answered. Who waits gives up at any moment,
// as often as it likes, and pulls the page into another frame. KERNEL_FIRST: the host answers when the kernel has ended, and not before.

#ifndef NBEGINNERS
#define NBEGINNERS 2
#endif
#ifndef NREADERS
#define NREADERS 2
#endif
#ifndef NOTHERS
#define NOTHERS 1     // who need a request slot for something else
#endif
#ifndef NTIMEOUTS
#define NTIMEOUTS 1
#endif
#ifndef FAILURES
#define FAILURES 1    // of the host
#endif
#ifndef NFRAMES
#ifdef TO_FRAME
#define NFRAMES 2
#else
#define NFRAMES 1
#endif
#endif
#define NSLOTS 2
#define NONE 255
#define NACTORS (NBEGINNERS + NREADERS + NOTHERS)

mtype = { FREE, FILLING, RESIDENT, FAILED };

// The frames.
mtype state[NFRAMES] = FREE;
byte pins[NFRAMES], fill[NFRAMES], data[NFRAMES], operation[NFRAMES];  // operation: the ticket + 1, or 0
byte held_copies;

// The ring. A slot's word: its turn, and whether who had it last left it.
byte tail, turn[NSLOTS];
bit abandoned[NSLOTS];
byte asked[NSLOTS], answered[NSLOTS];  // `sequence` of request and reply
byte asked_fill[NSLOTS];               // 0: nothing for a frame
byte asked_frame[NSLOTS];
byte payload[NSLOTS];                  // of the answer: the page that was asked for
bit answer_failed[NSLOTS], in_payload[NSLOTS];

byte failures = FAILURES, timeouts = NTIMEOUTS;

// What must be: no part of the code.
bit copying[NFRAMES];
byte nfills, ndone;

#ifdef TO_FRAME
#define IS_COPIED(s) (asked_fill[s] != 0)
#else
#define IS_COPIED(s) false
#endif
#ifdef KERNEL_FIRST
#define IS_ASKED(s) (asked[s] != answered[s] && (!IS_COPIED(s) || ndone == NACTORS))
#else
#define IS_ASKED(s) (asked[s] != answered[s])
#endif

// The frame is no other page's, and is not filled anew.
#define IS_ITS_FRAME(s) (fill[asked_frame[s]] == asked_fill[s] && (state[asked_frame[s]] == FILLING || state[asked_frame[s]] == FAILED))

proctype host(byte s) {
  bit stored;
end:
  do
  // Once, at any moment: a host that could store again and again would never be stuck, nor would those who wait for it.
  :: d_step { asked[s] != answered[s] && IS_COPIED(s) && !stored ->
       assert(IS_ITS_FRAME(s));
       data[asked_frame[s]] = asked_fill[s];
       stored = 1 }
  :: d_step { IS_ASKED(s) && stored ->
       assert(IS_ITS_FRAME(s));
       answer_failed[s] = 0;
       in_payload[s] = 0;
       stored = 0;
       answered[s] = asked[s] }
  :: d_step { IS_ASKED(s) ->  // also where the engine has failed
       answer_failed[s] = 0;
       in_payload[s] = 1;
       payload[s] = asked_fill[s];
       stored = 0;
       answered[s] = asked[s] }
  :: d_step { IS_ASKED(s) && failures > 0 ->
       failures--;
       answer_failed[s] = 1;
       stored = 0;
       answered[s] = asked[s] }
  od
}

#define TURN_OF(n) ((n) / NSLOTS)
#define SLOT_OF(n) ((n) % NSLOTS)
#define LOCALS byte number, mine, at, f; bit ours, took

// requests::take_back of ticket `at`.
#define IS_ABANDONED (abandoned[SLOT_OF(at)] && turn[SLOT_OF(at)] == TURN_OF(at))
#ifdef MUTATE_UNANSWERED
#define IS_LATE IS_ABANDONED
#else
#define IS_LATE (IS_ABANDONED && answered[SLOT_OF(at)] == at + 1)
#endif
inline take_back() {
  d_step {
    took = IS_LATE;
    if
    :: took -> abandoned[SLOT_OF(at)] = 0
    :: else
    fi
  }
}

inline give_back(n) { turn[SLOT_OF(n)] = TURN_OF((n) + NSLOTS) }

inline leave() { d_step { number = 0; mine = 0; at = 0; f = 0; ours = 0; took = 0; ndone++ } }

// operation::take of ticket `at`.
inline take(g) {
  d_step {
#ifdef MUTATE_TAKES_ANY
    ours = operation[g] != 0;
#else
    ours = operation[g] == at + 1;
#endif
    if
    :: ours -> operation[g] = 0
    :: else
    fi
  }
}

inline unpin(g) { d_step { assert(pins[g] > 0); pins[g]-- } }

// operation::take_without_answer. A frame that bytes may come to stays pinned until the answer has come.
inline begin_held(g) {
#ifndef TO_FRAME
  skip
#elif defined(MUTATE_COPY_NOT_PINNED)
  held_copies++
#elif defined(MUTATE_COPY_NOT_COUNTED)
  pins[g]++
#else
  pins[g]++;
  held_copies++
#endif
}
inline end_held(g) {
#ifndef TO_FRAME
  skip
#elif defined(MUTATE_COPY_NOT_PINNED)
  held_copies--
#elif defined(MUTATE_COPY_NOT_COUNTED)
  unpin(g)
#else
  unpin(g);
  d_step { assert(held_copies > 0); held_copies-- }
#endif
}
inline take_without_answer(g) {
#ifndef MUTATE_COPY_PINNED_AFTER_TAKE
  begin_held(g);
#endif
  take(g);
  if
#ifdef MUTATE_COPY_PINNED_AFTER_TAKE
  :: ours -> begin_held(g)
#elif !defined(MUTATE_COPY_STAYS_PINNED)
  :: !ours -> end_held(g)
#endif
  :: else
  fi
}
inline end_given_up(g) {
#ifdef MUTATE_COPY_UNPINNED_EARLY
  skip
#else
  end_held(g)
#endif
}

// Ends the fill, whose slot `at` is ours.
inline end_operation(g) {
  if
  :: !answer_failed[SLOT_OF(at)] ->
     d_step { assert(state[g] == FILLING && !copying[g]); copying[g] = 1; if :: in_payload[SLOT_OF(at)] -> data[g] = 0 :: else fi }
#ifdef MUTATE_SLOT_GIVEN_BACK_EARLY
     give_back(at);
#endif
     d_step { if :: in_payload[SLOT_OF(at)] -> data[g] = payload[SLOT_OF(at)] :: else fi; copying[g] = 0 }
     d_step { state[g] = RESIDENT; assert(data[g] == fill[g]) }
  :: else ->
     d_step { assert(state[g] == FILLING && !copying[g]); state[g] = FAILED }
  fi;
#ifndef MUTATE_SLOT_GIVEN_BACK_EARLY
  give_back(at);
#endif
#ifndef MUTATE_PIN_KEPT
  unpin(g)
#endif
}

// What requests::reclaim does with ticket `at`.
inline reclaim() {
  take_back();
  if
  :: took ->
     if
     :: asked_fill[SLOT_OF(at)] != 0 ->
#ifdef MUTATE_LATE_ANSWER_ENTERS
        ours = 1; operation[asked_frame[SLOT_OF(at)]] = 0;
#else
        take(asked_frame[SLOT_OF(at)]);
#endif
        if
        :: ours -> f = asked_frame[SLOT_OF(at)]; end_operation(f); f = NONE
        :: else -> end_given_up(asked_frame[SLOT_OF(at)]); give_back(at)
        fi
     :: else -> give_back(at)
     fi
  :: else
  fi
}

// What requests::end_ahead does with a slot.
#define IS_LEFT(s) (abandoned[s] && answered[s] == turn[s] * NSLOTS + (s) + 1)
inline end_left(s) {
  at = turn[s] * NSLOTS + (s);
  reclaim()
}

// A slot, of ticket `number`; or none, and number is NONE.
inline take_slot() {
  number = tail;
  if
  :: abandoned[SLOT_OF(number)] && number >= NSLOTS && turn[SLOT_OF(number)] == TURN_OF(number - NSLOTS) ->
     at = number - NSLOTS;
     reclaim()
  :: else
  fi;
  d_step {
    if
    :: tail == number && !abandoned[SLOT_OF(number)] && turn[SLOT_OF(number)] == TURN_OF(number) -> tail++
    :: else -> number = NONE
    fi
  }
}

inline send(what) {
  d_step { asked_fill[SLOT_OF(number)] = what; asked_frame[SLOT_OF(number)] = f; asked[SLOT_OF(number)] = number + 1 }
}

// In an atomic step: begins the fill of a frame that is free, or pins one whose page is there or comes. Else f is NONE. (Frames are alike,
// so the first fill may be frame 0's.)
#if NFRAMES > 1
#define A_FRAME(is) if :: is(0) -> f = 0 :: is(1) && nfills != 0 -> f = 1 :: else -> f = NONE fi
#else
#define A_FRAME(is) if :: is(0) -> f = 0 :: else -> f = NONE fi
#endif
#define IS_FREE(g) (state[g] == FREE)
#define IS_FOUND(g) (state[g] == FILLING || state[g] == RESIDENT)
inline begin_fill() {
  A_FRAME(IS_FREE);
  if
  :: f != NONE -> state[f] = FILLING; nfills++; fill[f] = nfills; mine = nfills; pins[f]++
  :: else
  fi
}
inline find() {
  A_FRAME(IS_FOUND);
  if
  :: f != NONE -> pins[f]++; mine = fill[f]
  :: else
  fi
}

proctype beginner() {
  LOCALS;
  if
  :: held_copies != 0 -> number = NONE  // may_copy
  :: else -> take_slot()
  fi;
  if
  :: number != NONE ->
     atomic { begin_fill() }
     if
     :: f != NONE ->
#ifdef MUTATE_ABANDONED_BEFORE_BEGIN
        send(mine);
        abandoned[SLOT_OF(number)] = 1;
        operation[f] = number + 1
#else
        operation[f] = number + 1;
        send(mine);
        abandoned[SLOT_OF(number)] = 1
#endif
     :: else ->
        send(0);
        abandoned[SLOT_OF(number)] = 1
     fi
  :: else
  fi;
  leave()
}

// Of a page whose fill has failed: pins it in another frame, or pulls it there and keeps a pin. Who finds no frame ends operations, and
// takes back what was given up, while there are any (wait_among_operations).
#ifdef TO_FRAME
#define ARE_THERE (operation[0] != 0 || operation[1] != 0 || held_copies != 0)
inline look_anew() {
  do
  :: atomic { IS_FOUND(0) || IS_FOUND(1) -> find() }
     break
  :: atomic { IS_FREE(0) || IS_FREE(1) -> begin_fill() }
     d_step { assert(!copying[f]); copying[f] = 1; data[f] = 0 }
     d_step { data[f] = mine; copying[f] = 0 }
     state[f] = RESIDENT;
     break
  :: ARE_THERE && IS_LEFT(0) -> end_left(0)
  :: ARE_THERE && IS_LEFT(1) -> end_left(1)
  od
}
#endif

#ifndef TO_FRAME
#define EXPIRES d_step { timeouts > 0 -> timeouts-- }
#elif defined(MUTATE_COPY_WAITED_FOR)
#define EXPIRES false
#else
#define EXPIRES true
#endif
proctype reader() {
  LOCALS;
  atomic { find() }
  if
  :: f == NONE
  :: else ->
     do
     :: d_step { state[f] == RESIDENT -> assert(fill[f] == mine && data[f] == mine) }
        unpin(f);
        break
     :: d_step { state[f] == FAILED -> assert(fill[f] == mine); ours = 0; at = 0 }
        unpin(f);
#ifdef TO_FRAME
        look_anew()
#else
        break
#endif
     :: d_step { state[f] == FILLING && operation[f] != 0 -> at = operation[f] - 1 }
        if
        :: IS_LATE ->
           take_back();
           if
           :: took ->
              take(f);
              if
              :: ours -> end_operation(f)
              :: else -> give_back(at); end_given_up(f)
              fi
           :: else
           fi
        :: EXPIRES ->
           take_without_answer(f);
           if
           :: ours ->
              state[f] = FAILED;
              unpin(f);
#ifdef MUTATE_COPY_UNPINNED_EARLY
              end_held(f)
#endif
           :: else
           fi
        :: state[f] != FILLING || operation[f] != at + 1  // something has changed
        fi
     od
  fi;
  leave()
}

proctype other() {
  LOCALS;
  take_slot();
  if
  :: number != NONE -> send(0); answered[SLOT_OF(number)] == number + 1; give_back(number)
  :: else
  fi;
  leave()
}

// Who looks for a frame: one is there when nobody has it.
proctype evictor(byte g) {
end:
  do
  :: d_step { (state[g] == RESIDENT || state[g] == FAILED) && pins[g] == 0 -> state[g] = FREE; fill[g] = 0; data[g] = 0 }
  od
}

// In the end nothing is left but what whoever comes by the answers will end.
proctype last() {
  LOCALS;
  ndone == NACTORS && (asked[0] == answered[0] && asked[1] == answered[1]);
  end_left(0);
  end_left(1);
  for (f : 0 .. NFRAMES - 1) { assert(pins[f] == 0 && operation[f] == 0 && state[f] != FILLING) }
  assert(held_copies == 0)
}

init {
  byte i;
  atomic {
    i = 0;
    do :: i < NSLOTS -> run host(i); i++ :: else -> break od;
    i = 0;
    do :: i < NBEGINNERS -> run beginner(); i++ :: else -> break od;
    i = 0;
    do :: i < NREADERS -> run reader(); i++ :: else -> break od;
    i = 0;
    do :: i < NOTHERS -> run other(); i++ :: else -> break od;
    i = 0;
    do :: i < NFRAMES -> run evictor(i); i++ :: else -> break od;
    run last()
  }
}
