// SPDX-License-Identifier: Apache-2.0
// Operations (file/detail/operation.hpp, file/detail/page_operations.hpp; transport/detail/requests.hpp; docs/design/operations.md), for Spin, as page.pml;
// what is said there of steps is so here. One frame, in which pages come one after the other: a page is the number of its fill. Some
// begin its fills and leave at once; some wait for them, end them, and give up at any moment, NTIMEOUTS times in all; others come by
// as they need a request slot. The host answers each request at last, in any order.

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
#define NSLOTS 2
#define NACTORS (NBEGINNERS + NREADERS + NOTHERS)

mtype = { FREE, FILLING, RESIDENT, FAILED };

// The frame.
mtype state = FREE;
byte pins, fill, data, operation;  // operation: the ticket + 1, or 0

// The ring. A slot's word: its turn, and whether who had it last left it.
byte tail, turn[NSLOTS];
bit abandoned[NSLOTS];
byte asked[NSLOTS], answered[NSLOTS];  // `sequence` of request and reply
byte asked_fill[NSLOTS];               // 0: nothing for the frame
byte payload[NSLOTS];                  // of the answer: the page that was asked for
bit answer_failed[NSLOTS];

byte failures = FAILURES, timeouts = NTIMEOUTS;

// What must be: no part of the code.
bit copying;
byte ndone;

proctype host(byte s) {
end:
  do
  :: d_step { asked[s] != answered[s] ->
       answer_failed[s] = 0;
       payload[s] = asked_fill[s];
       answered[s] = asked[s] }
  :: d_step { asked[s] != answered[s] && failures > 0 ->
       failures--;
       answer_failed[s] = 1;
       answered[s] = asked[s] }
  od
}

#define TURN_OF(n) ((n) / NSLOTS)
#define SLOT_OF(n) ((n) % NSLOTS)
#define LOCALS byte number, mine, at; bit ours, took

// requests::take_back of ticket `at`.
inline take_back() {
  d_step {
#ifdef MUTATE_UNANSWERED
    took = abandoned[SLOT_OF(at)] && turn[SLOT_OF(at)] == TURN_OF(at);
#else
    took = answered[SLOT_OF(at)] == at + 1 && abandoned[SLOT_OF(at)] && turn[SLOT_OF(at)] == TURN_OF(at);
#endif
    if
    :: took -> abandoned[SLOT_OF(at)] = 0
    :: else
    fi
  }
}

inline give_back(n) { turn[SLOT_OF(n)] = TURN_OF((n) + NSLOTS) }

// operation::take of ticket `at`.
inline take() {
  d_step {
#ifdef MUTATE_TAKES_ANY
    ours = operation != 0;
#else
    ours = operation == at + 1;
#endif
    if
    :: ours -> operation = 0
    :: else
    fi
  }
}

// Ends the fill, whose slot `at` is ours.
inline end_operation() {
  if
  :: !answer_failed[SLOT_OF(at)] ->
     d_step { assert(state == FILLING && !copying); copying = 1; data = 0 }
#ifdef MUTATE_SLOT_GIVEN_BACK_EARLY
     give_back(at);
#endif
     d_step { data = payload[SLOT_OF(at)]; copying = 0 }
     d_step { state = RESIDENT; assert(data == fill) }
  :: else ->
     d_step { assert(state == FILLING && !copying); state = FAILED }
  fi;
#ifndef MUTATE_SLOT_GIVEN_BACK_EARLY
  give_back(at);
#endif
#ifndef MUTATE_PIN_KEPT
  pins--
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
        ours = 1; operation = 0;
#else
        take();
#endif
        if
        :: ours -> end_operation()
        :: else -> give_back(at)
        fi
     :: else -> give_back(at)
     fi
  :: else
  fi
}

// A slot, of ticket `number`; or none, and number is 255.
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
    :: else -> number = 255
    fi
  }
}

inline send(what) {
  d_step { asked_fill[SLOT_OF(number)] = what; asked[SLOT_OF(number)] = number + 1 }
}

proctype beginner() {
  LOCALS;
  take_slot();
  if
  :: number != 255 ->
     d_step {
       ours = state == FREE;
       if
       :: ours -> state = FILLING; fill++; mine = fill; pins++
       :: else
       fi
     }
     if
     :: ours ->
#ifdef MUTATE_ABANDONED_BEFORE_BEGIN
        send(mine);
        abandoned[SLOT_OF(number)] = 1;
        operation = number + 1
#else
        operation = number + 1;
        send(mine);
        abandoned[SLOT_OF(number)] = 1
#endif
     :: else ->
        send(0);
        abandoned[SLOT_OF(number)] = 1
     fi
  :: else
  fi;
  ndone++
}

proctype reader() {
  LOCALS;
  d_step {
    ours = state == FILLING || state == RESIDENT;
    if
    :: ours -> pins++; mine = fill
    :: else
    fi
  }
  if
  :: !ours
  :: else ->
     do
     :: state == RESIDENT -> d_step { assert(fill == mine && data == mine); pins-- }; break
     :: state == FAILED -> d_step { assert(fill == mine); pins-- }; break
     :: state == FILLING && operation != 0 ->
        at = operation - 1;
        if
        :: at == 255  // it was being ended
        :: else ->
           take_back();
           if
           :: took ->
              take();
              if
              :: ours -> end_operation()
              :: else -> give_back(at)
              fi
           :: else ->
              if
              :: d_step { timeouts > 0 -> timeouts-- };
                 take();
                 if
                 :: ours -> state = FAILED; pins--
                 :: else
                 fi
              :: true
              fi
           fi
        fi
     od
  fi;
  ndone++
}

proctype other() {
  LOCALS;
  take_slot();
  if
  :: number != 255 -> send(0); answered[SLOT_OF(number)] == number + 1; give_back(number)
  :: else
  fi;
  ndone++
}

// Who looks for a frame: it is there when nobody has it.
proctype evictor() {
end:
  do
  :: d_step { (state == RESIDENT || state == FAILED) && pins == 0 -> state = FREE }
  od
}

// In the end the frame is nobody's, or an operation's whose answer whoever comes by will find.
proctype last() {
  ndone == NACTORS && (asked[0] == answered[0] && asked[1] == answered[1]);
  assert(pins == (operation != 0));
  assert((state == FILLING) == (operation != 0));
  if
  :: operation != 0 -> assert(abandoned[SLOT_OF(operation - 1)] && turn[SLOT_OF(operation - 1)] == TURN_OF(operation - 1))
  :: else
  fi
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
    run evictor();
    run last()
  }
}
