/* A file or region that is served: what NBD can ask of it, done by piped.
 *
 * A daemon or peer that is away is waited for: every function tries again until it is done, or
 * the time of `timeout=` is over. Each returns 0 or an error number, and has told nbdkit why. */

#ifndef PIPED_NBD_DEVICE_H
#define PIPED_NBD_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <piped.h>

struct device;

/* A device of this name, which all connections share; `path` is NULL for a region. NULL with
 * nbdkit's error set. */
struct device *device_open(const char *path, bool readonly);
void device_close(struct device *device);

const char *device_place(const struct device *device);
uint64_t device_size(const struct device *device);
bool device_can_write(const struct device *device);
bool device_is_file(const struct device *device);
/* What offsets and lengths are multiples of that go past the page cache; 0: none do. */
uint32_t device_alignment(const struct device *device);

int device_read(struct device *device, void *to, uint32_t count, uint64_t offset);
int device_write(struct device *device, const void *from, uint32_t count, uint64_t offset,
                 bool durable);
/* Brings what any connection had written before the call to stable storage. */
int device_flush(struct device *device);
/* `release`: the room may be given up. `fast`: EOPNOTSUPP where zeros would be written. */
int device_zero(struct device *device, uint32_t count, uint64_t offset, bool release, bool fast);
int device_trim(struct device *device, uint32_t count, uint64_t offset);
/* Reads ahead into the page cache of the node that has the file. */
int device_cache(struct device *device, uint32_t count, uint64_t offset);
/* Up to `capacity` ranges from `offset` on. */
int device_extents(struct device *device, uint32_t count, uint64_t offset,
                   struct piped_extent *extents, size_t capacity, size_t *found);

#endif
