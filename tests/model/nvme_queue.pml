// SPDX-License-Identifier: Apache-2.0
// A pair of NVMe queues that lanes drive (gpufs/nvme/detail/queue_pair.hpp; docs/design/nvme.md), for Spin, as page.pml.
//
// Both queues have N slots; there are N - 1 records, each with a buffer of one byte, into which the controller moves the command's number.
// Each lane submits NCOMMANDS commands, one at a time, and waits for it; who waits may poll. The controller fetches in order, moves and
// completes in any order, as long as the completion queue has room, and keeps NSTUCK commands for ever, which it may still move. A lane
// gives such a command up, and NTIMEOUTS others. The host then closes the gate, resets the controller, and opens the queues again.
// Each access to a shared word is one step. Checked: what is fetched is a command that was published, once; a lane whose command is done
// has its bytes in its buffer; no entry is overwritten unread, no slot unfetched; no doorbell goes back; nobody waits for ever; in the end all records are free.

#ifndef N
#define N 3
#endif
#ifndef NLANES
#define NLANES 2
#endif
#ifndef NCOMMANDS
#define NCOMMANDS 3
#endif
#ifndef NSTUCK
#define NSTUCK 1
#endif
#ifndef NTIMEOUTS
#define NTIMEOUTS 1
#endif
#define NRECORDS (N - 1)

#define IDLE 0
#define PENDING 1
#define GIVEN_UP 2
#define DONE 3

// Words of the queue.
byte tail, head, rung, cq_head, cq_told;
byte ringers, users, epoch, seen_epoch;
bit polling, gate;
byte published[N];
bit free[NRECORDS] = 1;
byte record[NRECORDS], record_epoch[NRECORDS];
bit aborted[NRECORDS];

// Memory that the controller reaches.
byte sq_cid[N], sq_number[N];
byte cq_cid[N], cq_sqhd[N];
bit cq_phase[N];
byte buffer[NRECORDS];
byte sq_bell, cq_bell;

// The controller.
bit ready = 1;
byte c_head, c_tail;                   // c_tail counts to 2 N
byte under_way[NRECORDS];              // by command identifier: the command's number
bit moved[NRECORDS], stuck[NRECORDS];
byte nstuck = NSTUCK;

// What must be: no part of the code.
bit was_fetched[NLANES * NCOMMANDS + 1];
bit unread[N], unfetched[N];
byte timeouts = NTIMEOUTS;
byte ndone;

#ifdef MUTATE_PHASE_OF_THE_FIRST_TURN
#define PHASE(position) 1
#else
#define PHASE(position) (1 - (position) / N % 2)
#endif
#define IS_NEW (cq_phase[cq_head % N] == PHASE(cq_head))

active proctype controller() {
  byte c;
end:
  do
  :: atomic {
       ready && c_head != sq_bell ->
       c = sq_cid[c_head];
       assert(!was_fetched[sq_number[c_head]] && sq_number[c_head] > 0);  // a whole new command
       was_fetched[sq_number[c_head]] = 1;
       assert(under_way[c] == 0);      // identifiers under way differ
       under_way[c] = sq_number[c_head];
       unfetched[c_head] = 0; sq_cid[c_head] = 0; sq_number[c_head] = 0;  // what nobody reads again is 0, for fewer states
       moved[c] = 0;
       if
       :: nstuck > 0 -> nstuck--; stuck[c] = 1
       :: stuck[c] = 0
       fi;
       c_head = (c_head + 1) % N;
       c = 0
     }
  :: atomic {
       if
       :: ready && under_way[0] != 0 && !moved[0] -> c = 0
       :: ready && under_way[NRECORDS - 1] != 0 && !moved[NRECORDS - 1] -> c = NRECORDS - 1
       fi;
       buffer[c] = under_way[c]; moved[c] = 1; c = 0
     }
  :: atomic {
       if
       :: ready && (c_tail + 1) % N != cq_bell && under_way[0] != 0 && moved[0] && !stuck[0] -> c = 0
       :: ready && (c_tail + 1) % N != cq_bell && under_way[NRECORDS - 1] != 0 && moved[NRECORDS - 1] && !stuck[NRECORDS - 1] -> c = NRECORDS - 1
       fi;
       assert(!unread[c_tail % N]);
       cq_cid[c_tail % N] = c; cq_sqhd[c_tail % N] = c_head;
       unread[c_tail % N] = 1; under_way[c] = 0; moved[c] = 0; c = 0
#ifdef MUTATE_ENTRY_READ_IN_PARTS
     }
     atomic {  // an entry is seen word by word
#endif
       cq_phase[c_tail % N] = 1 - c_tail / N; c_tail = (c_tail + 1) % (2 * N)
     }
  od
}

inline ring_sq(to) {
  d_step {
    assert((to + N - c_head) % N >= (sq_bell + N - c_head) % N);
    sq_bell = to
  }
}
inline ring_cq() { d_step { cq_bell = cq_head % N; cq_told = cq_head } }

inline finish(c) {
  d_step { record[c] = IDLE; record_epoch[c] = 0; aborted[c] = 0; buffer[c] = 0 }
  free[c] = 1
}

// queue_pair::poll
inline poll() {
#ifdef MUTATE_TWO_POLL
  got = 1;
#else
  d_step { got = !polling; polling = 1 }
#endif
  if
  :: got && gate -> polling = 0
  :: got && !gate ->
     if
     :: seen_epoch != epoch ->
        for (i : 0 .. NRECORDS - 1) {
          if
          :: d_step { record[i] == PENDING && record_epoch[i] != epoch -> record[i] = DONE; aborted[i] = 1 }
          :: d_step { record[i] == GIVEN_UP && record_epoch[i] != epoch -> record[i] = IDLE }
             free[i] = 1
          :: d_step { else -> skip }
          fi
        }
        i = 0;
        seen_epoch = epoch
     :: else
     fi;
#ifdef MUTATE_ENTRY_READ_IN_PARTS
     c = cq_cid[cq_head % N];
#endif
     if
     :: d_step {
          IS_NEW ->
#ifndef MUTATE_ENTRY_READ_IN_PARTS
          c = cq_cid[cq_head % N];
#endif
          i = cq_sqhd[cq_head % N]; unread[cq_head % N] = 0; cq_sqhd[cq_head % N] = 0; cq_cid[cq_head % N] = 0
        }
        head = head + (i + N - head % N) % N;
        i = 0;
#ifdef MUTATE_SQHD_IS_DONE
        for (i : 0 .. NRECORDS - 1) {
          if
          :: d_step { record[i] == PENDING && under_way[i] != 0 -> record[i] = DONE }
          :: d_step { else -> skip }
          fi
        }
        i = 0;
#endif
        if
        :: d_step { record[c] == PENDING -> record[c] = DONE }
#ifdef MUTATE_LATE_ENTRY_IS_DONE
        :: d_step { record[c] == GIVEN_UP -> record[c] = DONE }
#else
        :: d_step { record[c] == GIVEN_UP -> record[c] = IDLE }
           free[c] = 1
#endif
        :: d_step { else -> skip }
        fi;
        c = 0;
        cq_head++;
#ifndef MUTATE_NEVER_TOLD
        if
        :: cq_head - cq_told >= 2 -> ring_cq()
        :: else
        fi
#endif
     :: else ->
#ifndef MUTATE_NEVER_TOLD
        if
        :: cq_head != cq_told -> ring_cq()
        :: else
        fi
#else
        skip
#endif
     fi;
     polling = 0
  :: else
  fi;
  got = 0
}
// What makes a poll worth it: for a lane that waits.
#ifdef MUTATE_NEVER_TOLD
#define MAY_POLL (!polling && !gate && (IS_NEW || seen_epoch != epoch))
#else
#define MAY_POLL (!polling && !gate && (IS_NEW || seen_epoch != epoch || cq_head != cq_told))
#endif

inline leave() {
  d_step { assert(users > 0); users-- }
}

// queue_pair::submit; got: record r has the command.
inline submit() {
#ifdef MUTATE_GATE_LOOKED_AT_FIRST
  got = !gate;
  if
  :: got -> users++
  :: else -> !gate
  fi;
#else
  users++;
  got = !gate;
  if
  :: !got -> leave(); !gate
  :: else
  fi;
#endif
  if
  :: got ->
     d_step {
       r = 0;
       do
       :: r < NRECORDS && !free[r] -> r++
       :: else -> break
       od;
       got = r < NRECORDS;
       if
       :: got -> free[r] = 0
       :: else -> r = 0
       fi
     }
     if
     :: got ->
        d_step {
          got = tail + 1 - head <= N - 1;
          p = tail;
          if
          :: got -> tail++
          :: else
          fi
        }
        assert(got);  // records bound the depth
        d_step { record[r] = PENDING; record_epoch[r] = epoch }
#ifdef MUTATE_PUBLISHED_BEFORE_WRITTEN
        published[p % N] = p + 1;
#endif
        d_step { assert(!unfetched[p % N]); unfetched[p % N] = 1; sq_cid[p % N] = r }
        sq_number[p % N] = number;
#ifndef MUTATE_PUBLISHED_BEFORE_WRITTEN
        published[p % N] = p + 1;
#endif
        // ring
#ifdef MUTATE_EACH_RINGS_FOR_ITSELF
        ring_sq((p + 1) % N);
#else
        d_step { i = ringers; ringers++ }
        if
        :: i == 0 ->
           i = 1;
           do
           :: i == 0 -> break
           :: else ->
#ifdef MUTATE_RUNG_TO_THE_TAIL
              p = rung;
              rung = tail;
#else
              p = rung;
              do
#ifdef MUTATE_PUBLISHED_IN_ANY_TURN
              :: published[rung % N] != 0 && rung < tail -> rung++
#else
              :: published[rung % N] == rung + 1 -> rung++
#endif
              :: else -> break
              od;
#endif
              if
              :: p != rung -> ring_sq(rung % N)
              :: else
              fi;
#ifdef MUTATE_NOBODY_LOOKS_AGAIN
              d_step { ringers = 0; i = 0 }
#else
              d_step { ringers = ringers - i; i = ringers }
#endif
           od
        :: else -> i = 0
        fi;
#endif
        p = 0;
        leave();
        got = 1
     :: else ->
        leave();
        // Somebody's command must end.
        do
        :: MAY_POLL -> poll()
        :: free[0] || free[NRECORDS - 1] -> break
        od
     fi
  :: else
  fi
}

proctype lane(byte number) {
  byte r, p, i, c, n;
  bit got;
  for (n : 1 .. NCOMMANDS) {
    do
    :: submit();
       if
       :: got -> got = 0; break
       :: else
       fi
    od;
    do
    :: d_step {
         record[r] == DONE ->
         assert(aborted[r] || buffer[r] == number)
       }
       finish(r);
       break
    :: MAY_POLL -> poll()
    :: atomic { record[r] == PENDING && (timeouts > 0 || (under_way[r] != 0 && stuck[r])) ->
         if
         :: under_way[r] != 0 && stuck[r]
         :: else -> timeouts--
         fi }
#ifdef MUTATE_GIVEN_UP_WITHOUT_A_LOOK
       record[r] = GIVEN_UP;
       break
#else
       d_step { got = record[r] == PENDING;
         if
         :: got -> record[r] = GIVEN_UP
         :: else
         fi }
       if
       :: got ->
          got = 0;
#ifdef MUTATE_GIVEN_UP_IS_FREE
          finish(r);
#endif
          break
       :: else
       fi
#endif
    od;
    r = 0;
    number++
  }
  n = 0;
  d_step { number = 0; ndone++ }
}

// Given up, and no reset since.
#define TO_RECOVER(r) (record[r] == GIVEN_UP && record_epoch[r] == epoch)

// controller::recover, on the host: also while lanes run.
active proctype host() {
  byte i;
end:
  do
  :: TO_RECOVER(0) || TO_RECOVER(NRECORDS - 1) ->
     gate = 1;
#ifndef MUTATE_GATE_NOT_WAITED_FOR
     users == 0;
     polling == 0;
     users == 0;
#endif
#ifndef MUTATE_NOT_RESET
     d_step { ready = 0; under_way[0] = 0; under_way[NRECORDS - 1] = 0; moved[0] = 0; moved[NRECORDS - 1] = 0; stuck[0] = 0; stuck[NRECORDS - 1] = 0 }
#endif
     d_step { tail = 0; head = 0; rung = 0; cq_head = 0; cq_told = 0; ringers = 0 }
     d_step {
       i = 0;
       do
       :: i < N ->
#ifndef MUTATE_PUBLISHED_KEPT
          published[i] = 0;
#endif
#ifndef MUTATE_ENTRIES_KEPT
          cq_phase[i] = 0;
#endif
          unread[i] = 0; unfetched[i] = 0; sq_cid[i] = 0; sq_number[i] = 0; cq_sqhd[i] = 0; cq_cid[i] = 0; i++
       :: else -> break
       od;
       i = 0
     }
     d_step { c_head = 0; c_tail = 0; sq_bell = 0; cq_bell = 0; ready = 1 }
#ifdef MUTATE_EPOCH_KEPT
     gate = 0;
     break
#else
     epoch++;
     gate = 0
#endif
  od
}

init {
  byte r, p, i, c, number;
  bit got;
  atomic {
    run lane(1);
    run lane(NCOMMANDS + 1)
#if NLANES > 2
    ; run lane(2 * NCOMMANDS + 1)
#endif
  }
  ndone == NLANES;
  // One more lane polls until nothing is left: the host has reset the controller if a command was given up.
  do
  :: MAY_POLL -> poll()
  :: free[0] && free[NRECORDS - 1] -> break
  od;
  assert(record[0] == IDLE && record[NRECORDS - 1] == IDLE && users == 0)
}
