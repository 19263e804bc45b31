/* What was written to a peer's file and is not flushed yet. A peer that loses its power loses what
 * only its memory had, though the writes were answered: so they are kept here until a flush, and
 * written again to the peer that has come back, as NFS clients do.
 *
 * For all threads, but that entries are walked by one that keeps all others out. */

#ifndef PIPED_NBD_JOURNAL_H
#define PIPED_NBD_JOURNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "target.h"

/* The run of a change of which nobody knows whether it is there still. */
#define RUN_NONE 0

struct entry {
    struct entry *next;
    uint64_t number;
    /* Of a write, `from` is `data`. */
    struct work work;
    unsigned char data[];
};

struct journal {
    pthread_mutex_t lock;
    struct entry *first;
    struct entry **end;
    uint64_t last_number;
    /* The last change that could not be kept, 0 if none; and the run of all such. */
    uint64_t unkept_number;
    uint64_t unkept_run;
};

void journal_begin(struct journal *journal);
void journal_free(struct journal *journal);

/* Notes a change that was made, with the bytes of a write; without `keep` (or memory) only that
 * there was one. A durable write is on stable storage: it is only kept behind others, which it must
 * not be undone by. */
void journal_note(struct journal *journal, const struct work *made, bool keep);

/* Bytes that all journals keep together. */
uint64_t journal_bytes(void);

/* Whether nothing is left to be flushed. */
bool journal_is_empty(struct journal *journal);

/* The number of the last change. */
uint64_t journal_now(struct journal *journal);

/* Whether all changes up to that number were made in that run. */
bool journal_is_of(struct journal *journal, uint64_t number, uint64_t run);

/* Everything up to that number is on stable storage. */
void journal_forget(struct journal *journal, uint64_t number);

/* Nobody knows any more what is on stable storage: all of it has to be made again. */
void journal_doubt(struct journal *journal);

/* Whether there were changes that were not kept; they are not asked for again. */
bool journal_take_unkept(struct journal *journal);

#endif
