/* The session with the daemon, and the seats in it: a queue and a buffer each, for one request at
 * a time. */

#ifndef PIPED_NBD_SESSION_H
#define PIPED_NBD_SESSION_H

#include <stddef.h>
#include <stdint.h>

#include <piped.h>

struct seat {
    piped_queue *queue;
    piped_buffer *buffer;
    size_t capacity;
    struct seat *next;
};

/* A seat for a request; waits while all are taken. NULL: the session or its first queue cannot be
 * had; `status` and piped_last_message say why. */
struct seat *seat_take(piped_status *status);
void seat_give_back(struct seat *seat);

/* The seat has a queue. */
piped_status seat_queue(struct seat *seat);

/* The seat's buffer has room for `bytes`, and `data` is where its memory is now. */
piped_status seat_buffer(struct seat *seat, size_t bytes, void **data);

/* A request failed in a seat: what it has left there that cannot be used again is given up. */
void seat_mend(struct seat *seat);

/* The client; only while somebody has a seat. */
piped_client *session_client(void);

/* Looks for the next daemon, if this one is gone. */
void session_reconnect(void);

/* Counts the daemons that the session was with. */
uint64_t session_generation(void);

/* Connects for one look, and parts again: nbdkit forks after that. */
piped_status session_try(piped_status (*look)(piped_client *, piped_queue *));

/* Ends the session. Nobody has a seat. */
void session_end(void);

#endif
