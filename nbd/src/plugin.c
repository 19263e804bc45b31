/* nbdkit-piped-plugin: files of piped's exports, and regions, as block devices over NBD. nbdkit
 * speaks the protocol and calls these functions, from as many threads as it likes. */

#define _GNU_SOURCE
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>
#include <piped.h>

#include "device.h"
#include "options.h"
#include "session.h"

#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL

/* More ranges than that are asked for again by the client. */
#define EXTENTS_MAX 256

/* What the device of a connection is asked for most cheaply at once, and at most. */
#define PREFERRED_BYTES 4096
#define MAXIMUM_BYTES (UINT32_C(32) << 20)

/* -1 for nbdkit, if there is an error. */
static int end(int error) {
    if (error == 0)
        return 0;
    errno = error;
    nbdkit_set_error(error);
    return -1;
}

static void plugin_dump(void) {
    uint32_t version = piped_version();
    printf("piped_version=%u.%u.%u\n", version >> 16, version >> 8 & 0xff, version & 0xff);
    printf("piped_replay=yes\n");
}

/* What is served is there, or made, before a client is let in. */
static piped_status look(piped_client *client, piped_queue *queue, void *context) {
    (void)context;
    piped_handle *handle = NULL;
    piped_status status;
    if (options.region != NULL) {
        status = piped_open_region(client, options.peer, options.region, PIPED_READ, &handle);
    } else if (options.path == NULL) {
        status = piped_open_directory(client, options.peer, options.export, "", PIPED_READ,
                                      &handle);
    } else {
        uint32_t flags = PIPED_READ;
        if (options.create > 0)
            flags |= PIPED_WRITE | PIPED_CREATE;
        status = piped_open_export(client, options.peer, options.export, options.path, flags,
                                   &handle);
        uint64_t length = 1;
        if (status == PIPED_OK && options.create > 0)
            status = piped_handle_length(handle, &length);
        /* Also a file that was made by one that was ended before it could say how long. */
        if (status == PIPED_OK && length == 0)
            status = piped_truncate(queue, handle, (uint64_t)options.create);
    }
    piped_handle_free(handle);
    return status;
}

static int plugin_get_ready(void) {
    piped_status status = session_try(look, NULL);
    if (status == PIPED_OK)
        return 0;
    char *place = options_place(options.path);
    nbdkit_error("%s: %s", place == NULL ? "piped" : place, piped_last_message());
    free(place);
    return -1;
}

/* The device's name, from the client if not from the command line. NULL: there is none. */
static const char *path_asked_for(void) {
    return options.path != NULL ? options.path : nbdkit_export_name();
}

static void *plugin_open(int readonly) {
    const char *path = options.region == NULL ? path_asked_for() : NULL;
    if (options.region == NULL && (path == NULL || *path == '\0')) {
        nbdkit_error("name a file of the export by the NBD export name: nbd://HOST/FILE");
        end(ENOENT);
        return NULL;
    }
    struct device *device = device_open(path, readonly);
    if (device == NULL)
        nbdkit_set_error(errno);
    return device;
}

static void plugin_close(void *device) {
    device_close(device);
}

static int64_t plugin_get_size(void *device) {
    return (int64_t)device_size(device);
}

static int plugin_block_size(void *device, uint32_t *minimum, uint32_t *preferred,
                             uint32_t *maximum) {
    uint32_t alignment = device_alignment(device);
    *minimum = 1;
    *preferred = alignment > PREFERRED_BYTES ? alignment : PREFERRED_BYTES;
    *maximum = MAXIMUM_BYTES;
    return 0;
}

static int plugin_can_write(void *device) {
    return device_can_write(device);
}

static int is_of_file(void *device) {
    return device_is_file(device);
}

static int plugin_can_fua(void *device) {
    return device_is_file(device) ? NBDKIT_FUA_NATIVE : NBDKIT_FUA_NONE;
}

/* A flush covers what all connections wrote: they share the device, and a sync is of the file. */
static int plugin_can_multi_conn(void *device) {
    (void)device;
    return 1;
}

static int plugin_is_rotational(void *device) {
    (void)device;
    return 0;
}

static int plugin_can_cache(void *device) {
    return device_is_file(device) ? NBDKIT_CACHE_NATIVE : NBDKIT_CACHE_NONE;
}

static int plugin_pread(void *device, void *to, uint32_t count, uint64_t offset, uint32_t flags) {
    (void)flags;
    return end(device_read(device, to, count, offset));
}

static int plugin_pwrite(void *device, const void *from, uint32_t count, uint64_t offset,
                         uint32_t flags) {
    return end(device_write(device, from, count, offset, (flags & NBDKIT_FLAG_FUA) != 0));
}

static int plugin_flush(void *device, uint32_t flags) {
    (void)flags;
    return end(device_flush(device));
}

static int flush_if(void *device, int error, uint32_t flags) {
    if (error == 0 && (flags & NBDKIT_FLAG_FUA) != 0)
        error = device_flush(device);
    return end(error);
}

static int plugin_trim(void *device, uint32_t count, uint64_t offset, uint32_t flags) {
    int error = device_trim(device, count, offset);
    /* It is advice: a file system may be unable to take it. */
    return flush_if(device, error == EOPNOTSUPP ? 0 : error, flags);
}

static int plugin_zero(void *device, uint32_t count, uint64_t offset, uint32_t flags) {
    bool release = (flags & NBDKIT_FLAG_MAY_TRIM) != 0;
    bool fast = (flags & NBDKIT_FLAG_FAST_ZERO) != 0;
    return flush_if(device, device_zero(device, count, offset, release, fast), flags);
}

static int plugin_cache(void *device, uint32_t count, uint64_t offset, uint32_t flags) {
    (void)flags;
    return end(device_cache(device, count, offset));
}

static int plugin_extents(void *device, uint32_t count, uint64_t offset, uint32_t flags,
                          struct nbdkit_extents *extents) {
    struct piped_extent found[EXTENTS_MAX];
    size_t all = 0;
    size_t capacity = (flags & NBDKIT_FLAG_REQ_ONE) != 0 ? 1 : EXTENTS_MAX;
    int error = device_extents(device, count, offset, found, capacity, &all);
    if (error != 0)
        return end(error);
    for (size_t at = 0; at < all; at++) {
        uint32_t type = found[at].kind == PIPED_EXTENT_HOLE ? NBDKIT_EXTENT_HOLE | NBDKIT_EXTENT_ZERO
                        : found[at].kind == PIPED_EXTENT_ZERO ? NBDKIT_EXTENT_ZERO
                                                              : 0;
        if (nbdkit_add_extent(extents, found[at].offset, found[at].length, type) == -1)
            return -1;
    }
    return 0;
}

/* The files of the export, where the client chooses among them. */
static piped_status list_files(piped_client *client, piped_queue *queue, void *exports) {
    piped_handle *directory = NULL;
    piped_list *names = NULL;
    piped_status status = piped_open_directory(client, options.peer, options.export, "",
                                               PIPED_READ, &directory);
    if (status == PIPED_OK)
        status = piped_list_open(directory, "", 0, &names);
    struct piped_name name = {.name = ""};
    while (status == PIPED_OK && name.name != NULL) {
        status = piped_list_next(names, queue, &name);
        if (status == PIPED_OK && name.name != NULL && name.kind == PIPED_KIND_FILE &&
            nbdkit_add_export(exports, name.name, NULL) == -1)
            status = PIPED_SYSTEM;
    }
    piped_list_free(names);
    piped_handle_free(directory);
    return status;
}

static int plugin_list_exports(int readonly, int is_tls, struct nbdkit_exports *exports) {
    (void)readonly;
    (void)is_tls;
    if (options.region != NULL || options.path != NULL) {
        char *place = options_place(options.path);
        int added = nbdkit_add_export(exports, "", place);
        free(place);
        return added;
    }
    if (session_try(list_files, exports) == PIPED_OK)
        return 0;
    nbdkit_error("%s", piped_last_message());
    return -1;
}

static const char *plugin_default_export(int readonly, int is_tls) {
    (void)readonly;
    (void)is_tls;
    return options.region != NULL || options.path != NULL ? "" : NULL;
}

static const char *plugin_export_description(void *device) {
    return nbdkit_printf_intern("%s", device_place(device));
}

static struct nbdkit_plugin plugin = {
    .name = "piped",
    .longname = "nbdkit piped plugin",
    .version = PIPED_NBD_VERSION,
    .description = "Files of piped's exports, here and at peers, as block devices.",
    .unload = session_end,
    .dump_plugin = plugin_dump,
    .config = options_set,
    .config_complete = options_check,
    .config_help = options_help,
    .magic_config_key = "place",
    .get_ready = plugin_get_ready,
    .list_exports = plugin_list_exports,
    .default_export = plugin_default_export,
    .export_description = plugin_export_description,
    .open = plugin_open,
    .close = plugin_close,
    .get_size = plugin_get_size,
    .block_size = plugin_block_size,
    .can_write = plugin_can_write,
    .can_flush = is_of_file,
    .can_fua = plugin_can_fua,
    .can_trim = is_of_file,
    .can_zero = is_of_file,
    .can_fast_zero = is_of_file,
    .can_extents = is_of_file,
    .can_cache = plugin_can_cache,
    .can_multi_conn = plugin_can_multi_conn,
    .is_rotational = plugin_is_rotational,
    .pread = plugin_pread,
    .pwrite = plugin_pwrite,
    .flush = plugin_flush,
    .trim = plugin_trim,
    .zero = plugin_zero,
    .cache = plugin_cache,
    .extents = plugin_extents,
    .errno_is_preserved = 1,
};

NBDKIT_REGISTER_PLUGIN(plugin)
