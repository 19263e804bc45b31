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

/* The directory that has the name of a path, which ends before the last slash. */
static piped_status sync_directory(piped_client *client, piped_queue *queue, const char *path) {
    const char *slash = strrchr(path, '/');
    char *directory = strndup(path, slash == NULL ? 0 : (size_t)(slash - path));
    piped_handle *handle = NULL;
    piped_status status = PIPED_SYSTEM;
    if (directory != NULL)
        status = piped_open_directory(client, options.peer, options.export, directory, PIPED_READ,
                                      &handle);
    if (status == PIPED_OK)
        status = piped_sync_range(queue, handle, 0, 0, 0);
    piped_handle_free(handle);
    free(directory);
    return status;
}

/* Makes the file, so that it outlives its node's next power failure as it is. */
static piped_status make_file(piped_client *client, piped_queue *queue) {
    piped_handle *handle = NULL;
    uint64_t length = 0;
    piped_status status =
        piped_open_export(client, options.peer, options.export, options.path,
                          PIPED_READ | PIPED_WRITE | PIPED_CREATE, &handle);
    if (status == PIPED_OK)
        status = piped_handle_length(handle, &length);
    /* One that was made and got no length is made still. */
    if (status == PIPED_OK && length == 0) {
        status = piped_truncate(queue, handle, (uint64_t)options.create);
        if (status == PIPED_OK)
            status = piped_sync_range(queue, handle, 0, 0, 0);
        if (status == PIPED_OK)
            status = sync_directory(client, queue, options.path);
    } else if (status == PIPED_OK && length != (uint64_t)options.create) {
        nbdkit_debug("the file is there, and has %llu bytes", (unsigned long long)length);
    }
    piped_handle_free(handle);
    return status;
}

/* What is served is there before a client is let in. */
static piped_status look(piped_client *client, piped_queue *queue) {
    if (options.create > 0)
        return make_file(client, queue);
    piped_handle *handle = NULL;
    piped_status status;
    if (options.region != NULL)
        status = piped_open_region(client, options.peer, options.region, PIPED_READ, &handle);
    else if (options.path == NULL)
        status =
            piped_open_directory(client, options.peer, options.export, "", PIPED_READ, &handle);
    else
        status = piped_open_export(client, options.peer, options.export, options.path, PIPED_READ,
                                   &handle);
    piped_handle_free(handle);
    return status;
}

static int plugin_get_ready(void) {
    piped_status status = session_try(look);
    if (status == PIPED_OK)
        return 0;
    char *place = options_place(options.path);
    nbdkit_error("%s: %s", place == NULL ? "piped" : place, piped_last_message());
    free(place);
    return -1;
}

/* Whether a client's name for a file is its only one but for links: names that differ are other
 * devices, and two devices of one file would know nothing of each other's writes. */
static bool is_plain(const char *path) {
    for (const char *part = path;;) {
        size_t length = strcspn(part, "/");
        if (length == 0 || (length == 1 && part[0] == '.') ||
            (length == 2 && part[0] == '.' && part[1] == '.'))
            return false;
        if (part[length] == '\0')
            return true;
        part += length + 1;
    }
}

static void *plugin_open(int readonly) {
    const char *path = options.path != NULL ? options.path : nbdkit_export_name();
    if (options.region != NULL) {
        path = NULL;
    } else if (path == NULL || !is_plain(path)) {
        nbdkit_error("no file of the export is called \"%s\": name one by the NBD export name, as "
                     "in nbd://HOST/FILE, without . and .. and double slashes",
                     path == NULL ? "" : path);
        end(ENOENT);
        return NULL;
    }
    struct connection *connection = calloc(1, sizeof *connection);
    int error = connection == NULL ? ENOMEM : connection_open(connection, path, readonly);
    if (error == 0)
        return connection;
    free(connection);
    end(error);
    return NULL;
}

static void plugin_close(void *handle) {
    connection_close(handle);
    free(handle);
}

static int64_t plugin_get_size(void *handle) {
    const struct connection *connection = handle;
    return (int64_t)connection->size;
}

static int plugin_block_size(void *handle, uint32_t *minimum, uint32_t *preferred,
                             uint32_t *maximum) {
    const struct connection *connection = handle;
    uint32_t alignment = connection->alignment;
    *minimum = 1;
    *preferred = alignment > PREFERRED_BYTES ? alignment : PREFERRED_BYTES;
    *maximum = MAXIMUM_BYTES;
    return 0;
}

static int plugin_can_write(void *handle) {
    const struct connection *connection = handle;
    return connection->can_write;
}

static int is_file(void *handle) {
    (void)handle;
    return options.region == NULL;
}

static int plugin_can_fua(void *handle) {
    return is_file(handle) ? NBDKIT_FUA_NATIVE : NBDKIT_FUA_NONE;
}

/* A flush covers what all connections wrote: they share the device, and a sync is of the file. */
static int plugin_can_multi_conn(void *handle) {
    (void)handle;
    return 1;
}

static int plugin_is_rotational(void *handle) {
    (void)handle;
    return 0;
}

static int plugin_can_cache(void *handle) {
    return is_file(handle) ? NBDKIT_CACHE_NATIVE : NBDKIT_CACHE_NONE;
}

static struct device *device_of(void *handle) {
    struct connection *connection = handle;
    return connection->device;
}

static int plugin_pread(void *handle, void *to, uint32_t count, uint64_t offset, uint32_t flags) {
    (void)flags;
    return end(device_read(device_of(handle), to, count, offset));
}

static int plugin_pwrite(void *handle, const void *from, uint32_t count, uint64_t offset,
                         uint32_t flags) {
    bool durable = (flags & NBDKIT_FLAG_FUA) != 0;
    return end(device_write(device_of(handle), from, count, offset, durable));
}

static int plugin_flush(void *handle, uint32_t flags) {
    (void)flags;
    return end(connection_flush(handle));
}

static int flush_if(void *handle, int error, uint32_t flags) {
    if (error == 0 && (flags & NBDKIT_FLAG_FUA) != 0)
        error = connection_flush(handle);
    return end(error);
}

static int plugin_trim(void *handle, uint32_t count, uint64_t offset, uint32_t flags) {
    int error = device_trim(device_of(handle), count, offset);
    /* It is advice: a file system may be unable to take it. */
    return flush_if(handle, error == EOPNOTSUPP ? 0 : error, flags);
}

static int plugin_zero(void *handle, uint32_t count, uint64_t offset, uint32_t flags) {
    bool release = (flags & NBDKIT_FLAG_MAY_TRIM) != 0;
    bool fast = (flags & NBDKIT_FLAG_FAST_ZERO) != 0;
    return flush_if(handle, device_zero(device_of(handle), count, offset, release, fast), flags);
}

static int plugin_cache(void *handle, uint32_t count, uint64_t offset, uint32_t flags) {
    (void)flags;
    return end(device_cache(device_of(handle), count, offset));
}

static uint32_t type_of(const struct piped_extent *extent) {
    switch (extent->kind) {
    case PIPED_EXTENT_HOLE:
        return NBDKIT_EXTENT_HOLE | NBDKIT_EXTENT_ZERO;
    case PIPED_EXTENT_ZERO:
        return NBDKIT_EXTENT_ZERO;
    default:
        return 0;
    }
}

static int plugin_extents(void *handle, uint32_t count, uint64_t offset, uint32_t flags,
                          struct nbdkit_extents *extents) {
    struct piped_extent found[EXTENTS_MAX];
    size_t all = 0;
    size_t capacity = (flags & NBDKIT_FLAG_REQ_ONE) != 0 ? 1 : EXTENTS_MAX;
    int error = device_extents(device_of(handle), count, offset, found, capacity, &all);
    if (error != 0)
        return end(error);
    for (size_t at = 0; at < all; at++) {
        if (nbdkit_add_extent(extents, found[at].offset, found[at].length, type_of(&found[at])) ==
            -1)
            return -1;
    }
    return 0;
}

/* The files of the export, where the client chooses among them. */
static piped_status list_files(piped_queue *queue, struct nbdkit_exports *exports) {
    piped_handle *directory = NULL;
    piped_list *names = NULL;
    piped_status status = piped_open_directory(session_client(), options.peer, options.export, "",
                                               PIPED_READ, &directory);
    if (status == PIPED_OK)
        status = piped_list_open(directory, "", 0, &names);
    struct piped_name name = {.name = ""};
    while (status == PIPED_OK && name.name != NULL) {
        status = piped_list_next(names, queue, &name);
        /* A name that NBD cannot have is left out. */
        if (status == PIPED_OK && name.name != NULL && name.kind == PIPED_KIND_FILE)
            nbdkit_add_export(exports, name.name, NULL);
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
    piped_status status;
    struct seat *seat = seat_take(&status);
    if (seat != NULL) {
        status = seat_queue(seat);
        if (status == PIPED_OK)
            status = list_files(seat->queue, exports);
        seat_give_back(seat);
    }
    if (status != PIPED_OK)
        nbdkit_error("%s", piped_last_message());
    return status == PIPED_OK ? 0 : -1;
}

static const char *plugin_default_export(int readonly, int is_tls) {
    (void)readonly;
    (void)is_tls;
    return options.region != NULL || options.path != NULL ? "" : NULL;
}

static const char *plugin_export_description(void *handle) {
    return nbdkit_printf_intern("%s", connection_place(handle));
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
    .can_flush = is_file,
    .can_fua = plugin_can_fua,
    .can_trim = is_file,
    .can_zero = is_file,
    .can_fast_zero = is_file,
    .can_extents = is_file,
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
