#define _GNU_SOURCE
#include "device.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "journal.h"
#include "options.h"
#include "session.h"

/* What the daemon writes itself in one call, where the file system has no zeros of its own. */
#define ZERO_BYTES_MAX (UINT32_C(1) << 30)

/* From one try to the next while a daemon or peer is away. */
#define NAP_NS (20u * 1000 * 1000)

struct device {
    struct device *next;
    unsigned users;
    char *path;
    char *place;
    bool can_write;
    uint64_t size;
    uint32_t alignment;

    pthread_mutex_t lock;
    /* Under `lock`. NULL until it is needed. */
    piped_handle *handle;

    /* What a peer has that it may lose. */
    bool keeps;
    struct journal journal;
    /* Shared by all requests; held alone while the journal is written again. */
    pthread_rwlock_t order;
    /* Flushes come one after the other. */
    pthread_mutex_t flushing;
};

static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;
static struct device *devices;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static uint64_t end_of_patience(void) {
    return now_ns() + options.timeout_s * UINT64_C(1000000000);
}

/* One thing that is asked of piped. */
struct work {
    enum { NOTHING, READ, WRITE, SYNC, ZERO, TRIM, ALLOCATE, CACHE, EXTENTS } what;
    uint64_t offset;
    uint64_t length;
    /* Of a read, and of a write. */
    void *to;
    const void *from;
    /* PIPED_DURABLE, PIPED_RELEASE */
    uint32_t flags;
    struct piped_extent *extents;
    size_t capacity;
    size_t *found;
    /* With which of its daemons the session did it. */
    uint64_t generation;
};

static piped_status transfer(struct seat *seat, piped_handle *handle, const struct work *work,
                             uint64_t left_ns) {
    const struct piped_request_options how = {
        .size = sizeof how,
        .flags = PIPED_RESUBMIT | work->flags,
        .deadline_ns = left_ns,
    };
    void *data = NULL;
    piped_status status = seat_prepare(seat, work->length, &data);
    if (status != PIPED_OK)
        return status;
    struct piped_request request;
    if (work->what == WRITE) {
        memcpy(data, work->from, work->length);
        piped_prep_write(&request, handle, work->offset, seat->buffer);
    } else {
        piped_prep_read(&request, handle, work->offset, seat->buffer);
    }
    struct piped_result result = {.bytes = 0};
    status = piped_run(seat->queue, &request, &how, &result);
    if (status != PIPED_OK || work->what == WRITE)
        return status;
    if (result.bytes < work->length)
        return PIPED_RANGE;
    /* It has moved if the client went on with another daemon. */
    status = piped_buffer_data(seat->buffer, &data, NULL);
    if (status == PIPED_OK)
        memcpy(work->to, data, work->length);
    return status;
}

static piped_status attempt(struct seat *seat, piped_handle *handle, const struct work *work,
                            uint64_t left_ns) {
    const struct piped_request_options how = {.size = sizeof how, .deadline_ns = left_ns};
    if (work->what == READ || work->what == WRITE)
        return transfer(seat, handle, work, left_ns);
    void *data;
    piped_status status = seat_prepare(seat, 1, &data);
    if (status != PIPED_OK)
        return status;
    switch (work->what) {
    case SYNC:
        return piped_sync(seat->queue, handle, &how, NULL);
    case ZERO:
        return piped_zero(seat->queue, handle, work->offset, work->length, work->flags);
    case TRIM:
        return piped_trim(seat->queue, handle, work->offset, work->length);
    case ALLOCATE:
        return piped_allocate(seat->queue, handle, work->offset, work->length, PIPED_KEEP_LENGTH);
    case CACHE:
        return piped_advise(seat->queue, handle, work->offset, work->length,
                            PIPED_ADVICE_WILL_NEED);
    case EXTENTS:
        return piped_extents(seat->queue, handle, work->offset, work->length, work->extents,
                             work->capacity, work->found);
    default:
        return PIPED_OK;
    }
}

/* Whether it may go well later: a daemon or peer is away, or was. */
static bool is_passing(piped_status status) {
    switch (status) {
    case PIPED_BAD_HANDLE:
    case PIPED_BAD_BUFFER:
    case PIPED_CANCELLED:
    case PIPED_PEER_LOST:
    case PIPED_GONE:
    case PIPED_WOULD_BLOCK:
    case PIPED_OUTCOME_UNKNOWN:
    case PIPED_CLOSED:
    case PIPED_STALE:
    case PIPED_LOST:
    case PIPED_HANDLE_LOST:
    case PIPED_NO_ROOM:
    case PIPED_DISCONNECTED:
    case PIPED_TIMED_OUT:
    case PIPED_SYSTEM:
        return true;
    default:
        return false;
    }
}

/* Whether the handle is of no use any more. */
static bool is_of_handle(piped_status status) {
    return status == PIPED_BAD_HANDLE || status == PIPED_GONE || status == PIPED_STALE ||
           status == PIPED_HANDLE_LOST;
}

static piped_status open_handle(const struct device *device, piped_handle **handle) {
    uint32_t flags = PIPED_READ | (device->can_write ? PIPED_WRITE : 0);
    if (options.region != NULL)
        return piped_open_region(session_client(), options.peer, options.region, flags, handle);
    return piped_open_export(session_client(), options.peer, options.export, device->path, flags,
                             handle);
}

static piped_status handle_of(struct device *device, piped_handle **handle) {
    piped_status status = PIPED_OK;
    pthread_mutex_lock(&device->lock);
    if (device->handle == NULL)
        status = open_handle(device, &device->handle);
    *handle = device->handle;
    pthread_mutex_unlock(&device->lock);
    return status;
}

static void drop_handle(struct device *device, const piped_handle *handle) {
    pthread_mutex_lock(&device->lock);
    if (device->handle == handle) {
        piped_handle_free(device->handle);
        device->handle = NULL;
    }
    pthread_mutex_unlock(&device->lock);
}

static piped_status try_once(struct device *device, struct seat *seat, struct work *work,
                             uint64_t left_ns) {
    piped_handle *handle = NULL;
    work->generation = session_generation();
    piped_status status = handle_of(device, &handle);
    if (status == PIPED_OK) {
        status = attempt(seat, handle, work, left_ns);
        if (status != PIPED_OK)
            seat_mend(seat);
        if (is_of_handle(status))
            drop_handle(device, handle);
    }
    return status;
}

/* Tries until it is done, fails for good, or the time is over. */
static piped_status do_work(struct device *device, struct work *work, uint64_t end_ns) {
    for (;;) {
        piped_status status;
        struct seat *seat = seat_take(&status);
        uint64_t now = now_ns();
        if (seat != NULL) {
            status = try_once(device, seat, work, end_ns > now ? end_ns - now : 1);
            if (is_passing(status))
                session_reconnect();
            seat_give_back(seat);
        }
        /* What became of a change does not matter: it is made again. A sync is another thing. */
        if (!is_passing(status) || (work->what == SYNC && status == PIPED_OUTCOME_UNKNOWN))
            return status;
        if (now_ns() >= end_ns || nbdkit_nanosleep(0, NAP_NS) == -1)
            return status;
    }
}

/* An error number for NBD, and words for nbdkit's log. */
static int tell(const struct device *device, piped_status status) {
    if (status == PIPED_OK)
        return 0;
    int error = piped_status_errno(status);
    /* A disk does not say that a peer is away. */
    if (error == 0 || is_passing(status) || status == PIPED_DEADLINE_EXCEEDED)
        error = EIO;
    const char *why = piped_last_message();
    if (status == PIPED_RANGE)
        why = "the file has become shorter";
    nbdkit_error("%s: %s", device->place, *why == '\0' ? piped_status_text(status) : why);
    return error;
}

static piped_status replay_all(struct device *device, uint64_t end_ns) {
    piped_status status = PIPED_OK;
    /* Nobody adds any meanwhile, or forgets them. */
    for (struct entry *entry = device->journal.first; entry != NULL && status == PIPED_OK;
         entry = entry->next) {
        struct work work = {
            .offset = entry->offset,
            .length = entry->length,
            .from = entry->data,
            .flags = entry->flags,
        };
        work.what = entry->change == CHANGE_WRITE  ? WRITE
                    : entry->change == CHANGE_ZERO ? ZERO
                                                   : TRIM;
        status = do_work(device, &work, end_ns);
        entry->generation = work.generation;
    }
    return status;
}

/* Syncs, and says whether that covers all changes up to now. The daemon says
 * PIPED_OUTCOME_UNKNOWN when another run of the peer took them; one that has restarted itself does
 * not know what the one before wrote. */
static piped_status sync_all(struct device *device, uint64_t end_ns) {
    struct work work = {.what = SYNC};
    uint64_t number = journal_now(&device->journal);
    piped_status status = do_work(device, &work, end_ns);
    if (status == PIPED_OK && !journal_is_of(&device->journal, number, work.generation))
        status = PIPED_OUTCOME_UNKNOWN;
    if (status == PIPED_OK)
        journal_forget(&device->journal, number);
    return status;
}

/* Some of what is to be synced was taken by another run of the peer: it is written again. */
static piped_status write_again(struct device *device, uint64_t end_ns) {
    piped_status status = PIPED_OUTCOME_UNKNOWN;
    pthread_rwlock_wrlock(&device->order);
    if (device->keeps && !device->journal.has_gap) {
        nbdkit_debug("%s: what was not flushed is written again", device->place);
        while (status == PIPED_OUTCOME_UNKNOWN && now_ns() < end_ns) {
            status = replay_all(device, end_ns);
            if (status == PIPED_OK)
                status = sync_all(device, end_ns);
        }
    }
    /* It is told once: the next flush vouches for what is written from now on. */
    if (status != PIPED_OK)
        journal_forget(&device->journal, UINT64_MAX);
    pthread_rwlock_unlock(&device->order);
    return status;
}

/* Under `flushing`. */
static piped_status flush(struct device *device) {
    uint64_t end_ns = end_of_patience();
    piped_status status = sync_all(device, end_ns);
    return status == PIPED_OUTCOME_UNKNOWN ? write_again(device, end_ns) : status;
}

int device_flush(struct device *device) {
    pthread_mutex_lock(&device->flushing);
    piped_status status = flush(device);
    pthread_mutex_unlock(&device->flushing);
    return tell(device, status);
}

/* More is kept than may be. */
static piped_status make_room(struct device *device) {
    piped_status status = PIPED_OK;
    pthread_mutex_lock(&device->flushing);
    if (journal_bytes(&device->journal) > options.replay)
        status = flush(device);
    pthread_mutex_unlock(&device->flushing);
    return status;
}

/* Asks for what changes nothing. */
static int ask(struct device *device, struct work *work) {
    pthread_rwlock_rdlock(&device->order);
    piped_status status = do_work(device, work, end_of_patience());
    pthread_rwlock_unlock(&device->order);
    return tell(device, status);
}

/* Makes a change, and keeps it until it is flushed. */
static int make(struct device *device, struct work *work, enum change change) {
    pthread_rwlock_rdlock(&device->order);
    piped_status status = do_work(device, work, end_of_patience());
    if (status == PIPED_OK && device->keeps) {
        const struct entry entry = {
            .generation = work->generation,
            .offset = work->offset,
            .length = work->length,
            .change = change,
            .flags = work->flags & ~(uint32_t)(change == CHANGE_WRITE ? PIPED_DURABLE : 0),
        };
        bool durable = change == CHANGE_WRITE && (work->flags & PIPED_DURABLE) != 0;
        journal_note(&device->journal, &entry, work->from, durable);
    }
    pthread_rwlock_unlock(&device->order);
    if (status == PIPED_OK && device->keeps && journal_bytes(&device->journal) > options.replay)
        status = make_room(device);
    return tell(device, status);
}

int device_read(struct device *device, void *to, uint32_t count, uint64_t offset) {
    int error = 0;
    for (uint32_t done = 0; done < count && error == 0;) {
        uint32_t part = count - done < SEAT_BYTES_MAX ? count - done : SEAT_BYTES_MAX;
        struct work work = {
            .what = READ, .to = (char *)to + done, .offset = offset + done, .length = part};
        error = ask(device, &work);
        done += part;
    }
    return error;
}

int device_write(struct device *device, const void *from, uint32_t count, uint64_t offset,
                 bool durable) {
    int error = 0;
    for (uint32_t done = 0; done < count && error == 0;) {
        uint32_t part = count - done < SEAT_BYTES_MAX ? count - done : SEAT_BYTES_MAX;
        struct work work = {
            .what = WRITE,
            .from = (const char *)from + done,
            .offset = offset + done,
            .length = part,
            .flags = durable ? PIPED_DURABLE : 0,
        };
        error = make(device, &work, CHANGE_WRITE);
        done += part;
    }
    return error;
}

int device_trim(struct device *device, uint32_t count, uint64_t offset) {
    struct work work = {.what = TRIM, .offset = offset, .length = count};
    return make(device, &work, CHANGE_TRIM);
}

int device_zero(struct device *device, uint32_t count, uint64_t offset, bool release, bool fast) {
    if (fast) {
        /* Neither of these writes: where the file system can do neither, it is told. */
        struct work work = {.what = ALLOCATE, .offset = offset, .length = count};
        int error = device_trim(device, count, offset);
        return error == 0 && !release ? ask(device, &work) : error;
    }
    int error = 0;
    for (uint32_t done = 0; done < count && error == 0;) {
        uint32_t part = count - done < ZERO_BYTES_MAX ? count - done : ZERO_BYTES_MAX;
        struct work work = {
            .what = ZERO,
            .offset = offset + done,
            .length = part,
            .flags = release ? PIPED_RELEASE : 0,
        };
        error = make(device, &work, CHANGE_ZERO);
        done += part;
    }
    return error;
}

int device_cache(struct device *device, uint32_t count, uint64_t offset) {
    struct work work = {.what = CACHE, .offset = offset, .length = count};
    return ask(device, &work);
}

int device_extents(struct device *device, uint32_t count, uint64_t offset,
                   struct piped_extent *extents, size_t capacity, size_t *found) {
    struct work work = {
        .what = EXTENTS,
        .offset = offset,
        .length = count,
        .extents = extents,
        .capacity = capacity,
        .found = found,
    };
    return ask(device, &work);
}

/* Opens it for the first time: for writing, where that is allowed. */
static piped_status look(struct device *device) {
    for (;;) {
        struct work work = {.what = NOTHING};
        piped_status status = do_work(device, &work, end_of_patience());
        bool is_denied = status == PIPED_DENIED || status == PIPED_READ_ONLY ||
                         status == PIPED_NOT_PERMITTED;
        if (!is_denied || !device->can_write) {
            if (status == PIPED_OK)
                status = piped_handle_length(device->handle, &device->size);
            if (status == PIPED_OK)
                status = piped_handle_direct_alignment(device->handle, &device->alignment);
            return status;
        }
        device->can_write = false;
    }
}

static void forget(struct device *device) {
    piped_handle_free(device->handle);
    journal_free(&device->journal);
    pthread_rwlock_destroy(&device->order);
    pthread_mutex_destroy(&device->flushing);
    pthread_mutex_destroy(&device->lock);
    free(device->place);
    free(device->path);
    free(device);
}

static struct device *make_device(const char *path, bool readonly) {
    struct device *device = calloc(1, sizeof *device);
    if (device == NULL)
        return NULL;
    pthread_rwlockattr_t fair;
    pthread_rwlockattr_init(&fair);
    /* Requests that keep coming must not keep the journal from being written again. */
    pthread_rwlockattr_setkind_np(&fair, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&device->order, &fair);
    pthread_rwlockattr_destroy(&fair);
    pthread_mutex_init(&device->flushing, NULL);
    pthread_mutex_init(&device->lock, NULL);
    journal_begin(&device->journal);
    device->can_write = !readonly;
    device->keeps = device_is_file(device) && options.peer != NULL && options.replay > 0;
    device->path = path == NULL ? NULL : strdup(path);
    device->place = options_place(path);
    if (device->place == NULL || (path != NULL && device->path == NULL)) {
        forget(device);
        return NULL;
    }
    return device;
}

struct device *device_open(const char *path, bool readonly) {
    pthread_mutex_lock(&devices_lock);
    struct device *device = devices;
    while (device != NULL && path != NULL && strcmp(device->path, path) != 0)
        device = device->next;
    if (device == NULL && (device = make_device(path, readonly)) != NULL) {
        piped_status status = look(device);
        if (status == PIPED_OK) {
            device->next = devices;
            devices = device;
        } else {
            errno = tell(device, status);
            forget(device);
            device = NULL;
        }
    }
    if (device != NULL)
        device->users++;
    pthread_mutex_unlock(&devices_lock);
    return device;
}

void device_close(struct device *device) {
    pthread_mutex_lock(&devices_lock);
    if (--device->users == 0) {
        struct device **at = &devices;
        while (*at != device)
            at = &(*at)->next;
        *at = device->next;
        forget(device);
    }
    pthread_mutex_unlock(&devices_lock);
}

const char *device_place(const struct device *device) {
    return device->place;
}

uint64_t device_size(const struct device *device) {
    return device->size;
}

bool device_can_write(const struct device *device) {
    return device->can_write;
}

bool device_is_file(const struct device *device) {
    (void)device;
    return options.region == NULL;
}

uint32_t device_alignment(const struct device *device) {
    return device->alignment;
}
