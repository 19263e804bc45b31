/* What was written to a peer's file and is not flushed yet. A peer that loses its power loses what
 * only its memory had, though the writes were answered: so they are kept here until a flush, and
 * written again to the peer that has come back, as NFS clients do. */

#ifndef PIPED_NBD_JOURNAL_H
#define PIPED_NBD_JOURNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum change { CHANGE_WRITE, CHANGE_ZERO, CHANGE_TRIM };

struct entry {
    struct entry *next;
    uint64_t number;
    /* Of the session when it was done: which of its daemons did it. */
    uint64_t generation;
    uint64_t offset;
    uint64_t length;
    enum change change;
    uint32_t flags;
    /* Of a write. */
    unsigned char data[];
};

struct journal {
    pthread_mutex_t lock;
    struct entry *first;
    struct entry **end;
    uint64_t bytes;
    uint64_t last_number;
    /* There was no memory for a change: it cannot be made again. */
    bool has_gap;
};

void journal_begin(struct journal *journal);
void journal_free(struct journal *journal);

/* Notes a change that was made; `what` is copied, and so are the bytes of a write. `durable`: it is
 * on stable storage, so it is only kept behind others, which it must not be undone by. */
void journal_note(struct journal *journal, const struct entry *what, const void *data,
                  bool durable);

/* Bytes that are kept. */
uint64_t journal_bytes(struct journal *journal);

/* The number of the last change. */
uint64_t journal_now(struct journal *journal);

/* Whether all changes up to that number that are kept were made by that daemon. */
bool journal_is_of(struct journal *journal, uint64_t number, uint64_t generation);

/* Everything up to that number is on stable storage. */
void journal_forget(struct journal *journal, uint64_t number);

#endif
