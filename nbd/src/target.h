/* The file or region behind a device, and single things that are asked of it. */

#ifndef PIPED_NBD_TARGET_H
#define PIPED_NBD_TARGET_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <piped.h>

struct target {
    /* Below the export; NULL for a region. */
    char *path;
    /* As pipectl writes it. */
    char *place;
    /* Cleared at the first open, where the export cannot be written. */
    bool can_write;

    pthread_mutex_t lock;
    /* Under `lock`. NULL until it is needed. */
    piped_handle *handle;
    /* Which file that is: the name may come to stand for another. 0: none was open yet. */
    uint64_t inode;
    bool is_another;
    /* In which run that was looked at. */
    uint64_t seen_run;
    /* Counts the daemons and handles there were: one knows nothing of what was written by way of
     * those before it. */
    uint64_t run;
    uint64_t generation;
};

/* One thing that is asked for. */
struct work {
    enum what {
        WORK_OPEN,
        WORK_STAT,
        WORK_READ,
        WORK_WRITE,
        WORK_SYNC,
        WORK_ZERO,
        WORK_TRIM,
        WORK_ALLOCATE,
        WORK_CACHE,
        WORK_EXTENTS,
    } what;
    uint64_t offset;
    uint64_t length;
    /* PIPED_DURABLE of a write, PIPED_RELEASE of a zero. */
    uint32_t flags;
    /* Of a read, of a write. */
    void *to;
    const void *from;
    struct piped_file_info *info;
    struct piped_extent *extents;
    size_t capacity;
    size_t *found;
    /* By which run it was done, or an earlier one. */
    uint64_t run;
};

/* `path` is NULL for a region. False without memory. */
bool target_begin(struct target *target, const char *path, bool readonly);
void target_end(struct target *target);

/* Does it, again and again while a daemon or peer is away, for `timeout=` at most. Reads change
 * nothing, and what is written twice is written, so what became of a try does not matter. A sync
 * ends with PIPED_OUTCOME_UNKNOWN if what it covers may have been written in another run. */
piped_status target_do(struct target *target, struct work *work);

/* Whether the name stands for the same file still: handles are opened again by name, in silence.
 * PIPED_FOREIGN if not; then nothing more is done. */
piped_status target_look(struct target *target);

/* An error number for NBD, after words for nbdkit's log. 0 for PIPED_OK. */
int target_tell(const struct target *target, piped_status status);

#endif
