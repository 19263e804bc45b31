#define _GNU_SOURCE
#include "device.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "journal.h"
#include "options.h"
#include "target.h"

/* The most that is asked for at once; a longer request is done in parts. Of bytes, each seat has a
 * buffer of that length; the daemon writes zeros itself where the file system has none. */
#define PART_BYTES (UINT32_C(4) << 20)
#define ZERO_PART_BYTES (UINT32_C(64) << 20)
#define TRIM_PART_BYTES (UINT32_C(1) << 30)

struct device {
    struct device *next;
    struct target target;
    /* Under `devices_lock`: connections that have it, or are opening it. */
    unsigned users;
    pthread_mutex_t opening;
    bool is_open;

    struct journal journal;
    /* Shared by all requests; held alone while the journal is written again. */
    pthread_rwlock_t order;

    /* Flushes come one after the other, and are counted as they begin. */
    pthread_mutex_t flushing;
    atomic_uint_fast64_t begun;
    /* Under `flushing`: which of them ended last, and how. */
    uint64_t ended;
    piped_status result;
    /* How often something was lost that had been answered. */
    uint64_t losses;
};

static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;
static struct device *devices;

/* The file of a peer: it may lose what was answered. */
static bool may_lose(void) {
    return options.region == NULL && options.peer != NULL;
}

static piped_status make_again(struct device *device) {
    piped_status status = PIPED_OK;
    /* All others are kept out. */
    for (struct entry *entry = device->journal.first; entry != NULL && status == PIPED_OK;
         entry = entry->next) {
        struct work work = entry->work;
        status = target_do(&device->target, &work);
        if (status == PIPED_OK)
            entry->work.run = work.run;
    }
    return status;
}

/* Syncs, and says whether that covers all changes up to now: PIPED_OUTCOME_UNKNOWN where some were
 * made in another run. */
static piped_status sync_all(struct device *device) {
    struct work work = {.what = WORK_SYNC};
    uint64_t number = journal_now(&device->journal);
    piped_status status = target_do(&device->target, &work);
    if (status == PIPED_OK && !journal_is_of(&device->journal, number, work.run))
        return PIPED_OUTCOME_UNKNOWN;
    if (status == PIPED_OK)
        journal_forget(&device->journal, number);
    /* A kernel tells of a failed write to its disk once, and calls the pages clean after that. */
    if (status == PIPED_IO || status == PIPED_NO_SPACE)
        journal_doubt(&device->journal);
    return status;
}

/* The peer that is there now may not have all that is to be flushed. */
static piped_status write_again(struct device *device) {
    /* A peer that restarts again and again meanwhile is given up in the end. */
    enum { TRIES = 8 };
    piped_status status = PIPED_OUTCOME_UNKNOWN;
    pthread_rwlock_wrlock(&device->order);
    nbdkit_debug("%s: what was not flushed is written again", device->target.place);
    for (int tries = 0; tries < TRIES && status == PIPED_OUTCOME_UNKNOWN; tries++) {
        /* The daemon says so once: from now on it is known here alone. */
        journal_doubt(&device->journal);
        if (journal_take_unkept(&device->journal)) {
            device->losses++;
            nbdkit_error("%s: what was written and not flushed may be lost: %s",
                         device->target.place,
                         options.replay == 0 ? "replay=0 keeps nothing" : "no memory to keep it");
        }
        status = target_look(&device->target);
        if (status == PIPED_OK)
            status = make_again(device);
        if (status == PIPED_OK)
            status = sync_all(device);
    }
    pthread_rwlock_unlock(&device->order);
    return status;
}

/* One flush serves all who came before it began. */
static piped_status flush(struct device *device, uint64_t *losses) {
    uint64_t begun = device->begun;
    pthread_mutex_lock(&device->flushing);
    if (device->ended <= begun) {
        device->begun++;
        piped_status status = sync_all(device);
        device->result = status == PIPED_OUTCOME_UNKNOWN ? write_again(device) : status;
        device->ended = device->begun;
    }
    piped_status status = device->result;
    if (losses != NULL)
        *losses = device->losses;
    pthread_mutex_unlock(&device->flushing);
    return status;
}

int connection_flush(struct connection *connection) {
    uint64_t losses;
    piped_status status = flush(connection->device, &losses);
    if (status == PIPED_OK && losses != connection->losses_told) {
        connection->losses_told = losses;
        return EIO;
    }
    return target_tell(&connection->device->target, status);
}

/* Asks for what changes nothing. */
static int ask(struct device *device, struct work *work) {
    pthread_rwlock_rdlock(&device->order);
    piped_status status = target_do(&device->target, work);
    int error = target_tell(&device->target, status);
    pthread_rwlock_unlock(&device->order);
    return error;
}

/* Makes a change, and keeps it until it is flushed. */
static int make(struct device *device, struct work *work) {
    bool keep = options.replay > 0;
    /* What cannot be flushed is not added to. */
    if (may_lose() && keep && journal_bytes() > options.replay) {
        piped_status status = flush(device, NULL);
        if (status != PIPED_OK)
            return target_tell(&device->target, status);
    }
    pthread_rwlock_rdlock(&device->order);
    piped_status status = target_do(&device->target, work);
    if (status == PIPED_OK && may_lose())
        journal_note(&device->journal, work, keep);
    int error = target_tell(&device->target, status);
    pthread_rwlock_unlock(&device->order);
    return error;
}

/* Does something in parts of `most` bytes. */
static int in_parts(struct device *device, struct work all, uint64_t most) {
    int error = 0;
    for (uint64_t done = 0, length; done < all.length && error == 0; done += length) {
        length = all.length - done < most ? all.length - done : most;
        struct work part = all;
        part.offset += done;
        part.length = length;
        if (all.what == WORK_READ)
            part.to = (char *)all.to + done;
        if (all.what == WORK_WRITE)
            part.from = (const char *)all.from + done;
        error = all.what == WORK_READ ? ask(device, &part) : make(device, &part);
    }
    return error;
}

int device_read(struct device *device, void *to, uint32_t count, uint64_t offset) {
    struct work work = {.what = WORK_READ, .offset = offset, .length = count, .to = to};
    return in_parts(device, work, PART_BYTES);
}

int device_write(struct device *device, const void *from, uint32_t count, uint64_t offset,
                 bool durable) {
    struct work work = {.what = WORK_WRITE, .offset = offset, .length = count, .from = from};
    work.flags = durable ? PIPED_DURABLE : 0;
    return in_parts(device, work, PART_BYTES);
}

int device_trim(struct device *device, uint32_t count, uint64_t offset) {
    struct work work = {.what = WORK_TRIM, .offset = offset, .length = count};
    return in_parts(device, work, TRIM_PART_BYTES);
}

/* Zeros without a byte written: holes, with room for them again if that is wanted. Room comes
 * first: where there is none, or the file system cannot, nothing has changed. */
static int zero_fast(struct device *device, uint32_t count, uint64_t offset, bool release) {
    struct work room = {.what = WORK_ALLOCATE, .offset = offset, .length = count};
    int error = release ? 0 : ask(device, &room);
    if (error == 0)
        error = device_trim(device, count, offset);
    return error == 0 && !release ? ask(device, &room) : error;
}

int device_zero(struct device *device, uint32_t count, uint64_t offset, bool release, bool fast) {
    if (fast)
        return zero_fast(device, count, offset, release);
    struct work work = {.what = WORK_ZERO, .offset = offset, .length = count};
    work.flags = release ? PIPED_RELEASE : 0;
    return in_parts(device, work, ZERO_PART_BYTES);
}

int device_cache(struct device *device, uint32_t count, uint64_t offset) {
    struct work work = {.what = WORK_CACHE, .offset = offset, .length = count};
    return ask(device, &work);
}

int device_extents(struct device *device, uint32_t count, uint64_t offset,
                   struct piped_extent *extents, size_t capacity, size_t *found) {
    struct work work = {
        .what = WORK_EXTENTS,
        .offset = offset,
        .length = count,
        .extents = extents,
        .capacity = capacity,
        .found = found,
    };
    return ask(device, &work);
}

/* The device of that name, made if there is none. NULL without memory. */
static struct device *device_of(const char *path, bool readonly) {
    pthread_mutex_lock(&devices_lock);
    struct device *device = devices;
    while (device != NULL && path != NULL && strcmp(device->target.path, path) != 0)
        device = device->next;
    if (device == NULL && (device = calloc(1, sizeof *device)) != NULL) {
        if (target_begin(&device->target, path, readonly)) {
            pthread_rwlockattr_t fair;
            pthread_rwlockattr_init(&fair);
            /* Requests that keep coming must not keep the journal from being written again. */
            pthread_rwlockattr_setkind_np(&fair, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
            pthread_rwlock_init(&device->order, &fair);
            pthread_rwlockattr_destroy(&fair);
            pthread_mutex_init(&device->opening, NULL);
            pthread_mutex_init(&device->flushing, NULL);
            journal_begin(&device->journal);
            device->next = devices;
            devices = device;
        } else {
            target_end(&device->target);
            free(device);
            device = NULL;
        }
    }
    if (device != NULL)
        device->users++;
    pthread_mutex_unlock(&devices_lock);
    return device;
}

/* A device that nobody has any more is forgotten, if nothing of it is left to be flushed: then it
 * waits for who opens it again. */
static void leave(struct device *device) {
    pthread_mutex_lock(&devices_lock);
    bool last = --device->users == 0 && journal_is_empty(&device->journal);
    if (last) {
        struct device **at = &devices;
        while (*at != device)
            at = &(*at)->next;
        *at = device->next;
    }
    pthread_mutex_unlock(&devices_lock);
    if (!last)
        return;
    journal_free(&device->journal);
    pthread_rwlock_destroy(&device->order);
    pthread_mutex_destroy(&device->opening);
    pthread_mutex_destroy(&device->flushing);
    target_end(&device->target);
    free(device);
}

/* Opens it for the first time: for writing, where that is allowed. */
static piped_status open_first(struct device *device) {
    struct work work = {.what = WORK_OPEN};
    piped_status status = target_do(&device->target, &work);
    bool is_denied = status == PIPED_DENIED || status == PIPED_READ_ONLY ||
                     status == PIPED_NOT_PERMITTED;
    if (is_denied && device->target.can_write) {
        nbdkit_debug("%s: read-only: %s", device->target.place, piped_status_text(status));
        device->target.can_write = false;
        status = target_do(&device->target, &work);
    }
    device->is_open = status == PIPED_OK;
    return status;
}

/* As it is now: another client may have made the file longer. */
static piped_status look_at(struct connection *connection) {
    struct device *device = connection->device;
    struct piped_file_info info;
    struct work work = {.what = WORK_STAT, .info = &info};
    if (options.region != NULL)
        return piped_handle_length(device->target.handle, &connection->size);
    piped_status status = target_do(&device->target, &work);
    if (status == PIPED_OK) {
        connection->size = info.length;
        connection->alignment = info.direct_offset;
    }
    return status;
}

int connection_open(struct connection *connection, const char *path, bool readonly) {
    struct device *device = device_of(path, readonly);
    if (device == NULL) {
        nbdkit_error("no memory for a device");
        return ENOMEM;
    }
    connection->device = device;
    pthread_mutex_lock(&device->opening);
    piped_status status = device->is_open ? PIPED_OK : open_first(device);
    if (status == PIPED_OK)
        status = look_at(connection);
    connection->can_write = device->target.can_write;
    int error = target_tell(&device->target, status);
    pthread_mutex_unlock(&device->opening);
    pthread_mutex_lock(&device->flushing);
    connection->losses_told = device->losses;
    pthread_mutex_unlock(&device->flushing);
    if (error != 0)
        leave(device);
    return error;
}

void connection_close(struct connection *connection) {
    struct device *device = connection->device;
    pthread_mutex_lock(&devices_lock);
    bool last = device->users == 1;
    pthread_mutex_unlock(&devices_lock);
    /* What a client has left unflushed is nobody's to flush after that. */
    if (last && !journal_is_empty(&device->journal))
        target_tell(&device->target, flush(device, NULL));
    leave(device);
}

const char *connection_place(const struct connection *connection) {
    return connection->device->target.place;
}
