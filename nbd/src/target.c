#define _GNU_SOURCE
#include "target.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "options.h"
#include "session.h"

#define SECOND_NS UINT64_C(1000000000)

/* From one try to the next while a daemon or peer is away. */
#define NAP_NS (20u * 1000 * 1000)

/* Why the last try of this thread failed. */
static _Thread_local char reason[256];

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND_NS + (uint64_t)now.tv_nsec;
}

bool target_begin(struct target *target, const char *path, bool readonly) {
    memset(target, 0, sizeof *target);
    pthread_mutex_init(&target->lock, NULL);
    target->can_write = !readonly;
    target->run = 1;
    target->path = path == NULL ? NULL : strdup(path);
    target->place = options_place(path);
    return target->place != NULL && (path == NULL || target->path != NULL);
}

void target_end(struct target *target) {
    piped_handle_free(target->handle);
    pthread_mutex_destroy(&target->lock);
    free(target->path);
    free(target->place);
}

static uint64_t run_of(struct target *target) {
    uint64_t generation = session_generation();
    pthread_mutex_lock(&target->lock);
    if (target->generation != generation) {
        target->generation = generation;
        target->run++;
    }
    uint64_t run = target->run;
    pthread_mutex_unlock(&target->lock);
    return run;
}

/* The end of a request, which nbdkit's end and the end of the client cut short. */
static piped_status await(piped_queue *queue, uint64_t number, struct piped_result *result) {
    piped_status status = piped_wait(queue, number, (int64_t)SECOND_NS, result);
    while (status == PIPED_UNDERWAY) {
        if (nbdkit_nanosleep(0, 1) == -1)
            piped_cancel(queue, number, NULL);
        status = piped_wait(queue, number, (int64_t)SECOND_NS, result);
    }
    return status == PIPED_OK ? result->status : status;
}

static piped_status transfer(struct seat *seat, piped_handle *handle, const struct work *work,
                             uint64_t left_ns) {
    const struct piped_request_options how = {
        .size = sizeof how,
        .flags = work->what == WORK_SYNC ? 0 : PIPED_RESUBMIT | work->flags,
        .deadline_ns = left_ns,
    };
    void *data = NULL;
    piped_status status =
        work->what == WORK_SYNC ? PIPED_OK : seat_buffer(seat, work->length, &data);
    if (status != PIPED_OK)
        return status;
    struct piped_request request;
    if (work->what == WORK_SYNC) {
        piped_prep_sync(&request, handle);
    } else if (work->what == WORK_WRITE) {
        memcpy(data, work->from, work->length);
        piped_prep_write(&request, handle, work->offset, seat->buffer);
    } else {
        piped_prep_read(&request, handle, work->offset, seat->buffer);
    }
    uint64_t number;
    struct piped_result result = {.bytes = 0};
    status = piped_submit(seat->queue, &request, &how, &number);
    if (status == PIPED_OK)
        status = await(seat->queue, number, &result);
    if (status != PIPED_OK || work->what != WORK_READ)
        return status;
    if (result.bytes < work->length)
        return PIPED_RANGE;
    /* It has moved if the client went on with another daemon. */
    status = piped_buffer_data(seat->buffer, &data, NULL);
    if (status == PIPED_OK)
        memcpy(work->to, data, work->length);
    return status;
}

/* What is known of the file now; PIPED_FOREIGN if it is another. Under the target's lock. */
static piped_status identify(struct target *target, piped_queue *queue, piped_handle *handle,
                             struct piped_file_info *info) {
    piped_status status = piped_stat(queue, handle, "", info);
    if (status != PIPED_OK)
        return status;
    target->is_another |= target->inode != 0 && info->inode != target->inode;
    target->inode = info->inode;
    target->seen_run = target->run;
    return target->is_another ? PIPED_FOREIGN : PIPED_OK;
}

static piped_status stat_now(struct target *target, piped_queue *queue, piped_handle *handle,
                             struct piped_file_info *info) {
    pthread_mutex_lock(&target->lock);
    piped_status status = identify(target, queue, handle, info);
    pthread_mutex_unlock(&target->lock);
    return status;
}

static piped_status ask(struct target *target, struct seat *seat, piped_handle *handle,
                        const struct work *work, uint64_t left_ns) {
    piped_queue *queue = seat->queue;
    uint64_t offset = work->offset, length = work->length;
    switch (work->what) {
    case WORK_OPEN:
        return PIPED_OK;
    case WORK_STAT:
        return stat_now(target, queue, handle, work->info);
    case WORK_READ:
    case WORK_WRITE:
    case WORK_SYNC:
        return transfer(seat, handle, work, left_ns);
    case WORK_ZERO:
        return piped_zero(queue, handle, offset, length, work->flags);
    case WORK_TRIM:
        return piped_trim(queue, handle, offset, length);
    case WORK_ALLOCATE:
        return piped_allocate(queue, handle, offset, length, PIPED_KEEP_LENGTH);
    case WORK_CACHE:
        return piped_advise(queue, handle, offset, length, PIPED_ADVICE_WILL_NEED);
    case WORK_EXTENTS:
        return piped_extents(queue, handle, offset, length, work->extents, work->capacity,
                             work->found);
    }
    return PIPED_INTERNAL;
}

/* Under the target's lock. */
static piped_status open_handle(struct target *target) {
    uint32_t flags = PIPED_READ | (target->can_write ? PIPED_WRITE : 0);
    if (options.region != NULL)
        return piped_open_region(session_client(), options.peer, options.region, flags,
                                 &target->handle);
    return piped_open_export(session_client(), options.peer, options.export, target->path, flags,
                             &target->handle);
}

/* Once it was open, whatever keeps it from being opened again is taken for an outage: a peer that
 * has started may not have mounted its file system. What was to be written to one file is not
 * written to another. */
static piped_status handle_of(struct target *target, const struct work *work, piped_queue *queue,
                              piped_handle **handle) {
    pthread_mutex_lock(&target->lock);
    bool was_open = target->inode != 0;
    piped_status status = target->is_another ? PIPED_FOREIGN : PIPED_OK;
    if (status == PIPED_OK && target->handle == NULL) {
        status = open_handle(target);
        if (status != PIPED_OK && was_open)
            status = PIPED_PEER_LOST;
    }
    struct piped_file_info info;
    bool is_seen = options.region != NULL || work->what == WORK_STAT;
    if (status == PIPED_OK && !is_seen && target->seen_run != target->run)
        status = identify(target, queue, target->handle, &info);
    *handle = target->handle;
    pthread_mutex_unlock(&target->lock);
    return status;
}

/* The handle is of no use any more; the next one is another run. */
static void drop_handle(struct target *target, const piped_handle *handle) {
    pthread_mutex_lock(&target->lock);
    if (target->handle == handle) {
        piped_handle_free(target->handle);
        target->handle = NULL;
        target->run++;
    }
    pthread_mutex_unlock(&target->lock);
}

static bool is_of_handle(piped_status status) {
    return status == PIPED_BAD_HANDLE || status == PIPED_GONE || status == PIPED_STALE ||
           status == PIPED_HANDLE_LOST;
}

/* Whether it may go well later. */
static bool is_passing(piped_status status) {
    switch (status) {
    /* A daemon or peer is away, or was. */
    case PIPED_PEER_LOST:
    case PIPED_GONE:
    case PIPED_OUTCOME_UNKNOWN:
    case PIPED_CANCELLED:
    case PIPED_CLOSED:
    case PIPED_DISCONNECTED:
    case PIPED_TIMED_OUT:
    case PIPED_DEADLINE_EXCEEDED:
    /* What belonged to the daemon before. */
    case PIPED_BAD_HANDLE:
    case PIPED_HANDLE_LOST:
    case PIPED_STALE:
    case PIPED_LOST:
    case PIPED_HELD:
    case PIPED_BAD_BUFFER:
    /* Others have all there is. */
    case PIPED_WOULD_BLOCK:
    case PIPED_NO_ROOM:
        return true;
    default:
        return false;
    }
}

static piped_status try_once(struct target *target, struct seat *seat, struct work *work,
                             uint64_t left_ns) {
    piped_handle *handle = NULL;
    work->run = run_of(target);
    piped_status status = seat_queue(seat);
    if (status == PIPED_OK)
        status = handle_of(target, work, seat->queue, &handle);
    if (status == PIPED_OK)
        status = ask(target, seat, handle, work, left_ns);
    if (status != PIPED_OK) {
        strncpy(reason, piped_last_message(), sizeof reason - 1);
        seat_mend(seat);
    }
    if (is_of_handle(status) && handle != NULL)
        drop_handle(target, handle);
    /* A change counts as of the earlier run, and has to be made again; a sync vouches for none. */
    if (status == PIPED_OK && work->what == WORK_SYNC && run_of(target) != work->run)
        status = PIPED_OUTCOME_UNKNOWN;
    return status;
}

piped_status target_do(struct target *target, struct work *work) {
    uint64_t end_ns = 0;
    for (;;) {
        piped_status status;
        *reason = '\0';
        struct seat *seat = seat_take(&status);
        uint64_t now = now_ns();
        /* To wait for a seat is no outage: others are at work. */
        if (end_ns == 0)
            end_ns = now + options.timeout_s * SECOND_NS;
        if (seat != NULL) {
            status = try_once(target, seat, work, end_ns > now ? end_ns - now : SECOND_NS);
            seat_give_back(seat);
        } else {
            strncpy(reason, piped_last_message(), sizeof reason - 1);
        }
        if (!is_passing(status))
            return status;
        session_reconnect();
        if (work->what == WORK_SYNC && status == PIPED_OUTCOME_UNKNOWN)
            return status;
        if (now_ns() >= end_ns || nbdkit_nanosleep(0, NAP_NS) == -1)
            return status;
    }
}

piped_status target_look(struct target *target) {
    struct piped_file_info info;
    struct work work = {.what = WORK_STAT, .info = &info};
    return target_do(target, &work);
}

int target_tell(const struct target *target, piped_status status) {
    if (status == PIPED_OK)
        return 0;
    const char *why = *reason == '\0' ? piped_status_text(status) : reason;
    int error = piped_status_errno(status);
    switch (error) {
    case ENOSPC:
    case ENOMEM:
    case EPERM:
        break;
    case EOPNOTSUPP:
        nbdkit_debug("%s: %s", target->place, why);
        return error;
    default:
        /* What NBD has no word for. */
        error = EIO;
    }
    if (status == PIPED_RANGE)
        why = "the file has become shorter";
    else if (status == PIPED_FOREIGN)
        why = "another file has its name now; restart nbdkit if that is meant";
    if (is_passing(status))
        nbdkit_error("%s: no answer in timeout=%u seconds: %s", target->place, options.timeout_s,
                     why);
    else
        nbdkit_error("%s: %s", target->place, why);
    return error;
}
