/* A file or region that is served: what NBD can ask of it, done by piped.
 *
 * A daemon or peer that is away is waited for. Functions return 0 or an error number, and have
 * told nbdkit why. */

#ifndef PIPED_NBD_DEVICE_H
#define PIPED_NBD_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <piped.h>

/* What a connection has: a device, which all connections of that name share. */
struct device;
struct connection {
    struct device *device;
    uint64_t size;
    /* What offsets and lengths are multiples of that go past the page cache; 0: none do. */
    uint32_t alignment;
    bool can_write;
    /* Losses that the client was told of. */
    uint64_t losses_told;
};

/* `path` is NULL for a region. */
int connection_open(struct connection *connection, const char *path, bool readonly);
void connection_close(struct connection *connection);

/* As pipectl writes it. */
const char *connection_place(const struct connection *connection);

int device_read(struct device *device, void *to, uint32_t count, uint64_t offset);
int device_write(struct device *device, const void *from, uint32_t count, uint64_t offset,
                 bool durable);
/* `release`: the room may be given up. `fast`: EOPNOTSUPP where zeros would be written. */
int device_zero(struct device *device, uint32_t count, uint64_t offset, bool release, bool fast);
int device_trim(struct device *device, uint32_t count, uint64_t offset);
/* Reads ahead into the page cache of the node that has the file. */
int device_cache(struct device *device, uint32_t count, uint64_t offset);
/* Up to `capacity` ranges from `offset` on. */
int device_extents(struct device *device, uint32_t count, uint64_t offset,
                   struct piped_extent *extents, size_t capacity, size_t *found);

/* Brings what any connection had written before the call to stable storage. EIO once for each
 * connection when something was lost. */
int connection_flush(struct connection *connection);

#endif
