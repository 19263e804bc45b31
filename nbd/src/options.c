#define _GNU_SOURCE
#include "options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>
#include <piped.h>

#define QUEUES_MAX 256

struct options options = {
    .queues = 16,
    .class = PIPED_CLASS_DEFAULT,
    .create = -1,
    .timeout_s = 60,
    .replay = UINT64_C(64) << 20,
};

const char options_help[] =
    "[place=][PEER:]EXPORT[/PATH]  What is served. Without PATH: the file that\n"
    "                              the client names by the NBD export name.\n"
    "peer=NAME export=NAME path=PATH  The same, one by one.\n"
    "region=NAME      A region instead of a file; with peer= that of a peer.\n"
    "socket=PATH      The daemon's client socket (/run/piped/client.sock).\n"
    "queues=N         Requests at once, of all clients together (16); the daemon's\n"
    "                 client.queues_max is the most.\n"
    "class=latency|bulk  How urgent requests are (the daemon's default).\n"
    "weight=N         Share among clients of the same class, 1 to 255 (1).\n"
    "create=SIZE      Make the file with this size if it is not there.\n"
    "timeout=SECONDS  How long requests wait for a daemon or peer that is\n"
    "                 away, 1 to 3600 (60).\n"
    "replay=SIZE      Writes to a peer that are kept until they are flushed, and\n"
    "                 written again if the peer may have lost them; 0: none (64M).";

/* [PEER:]EXPORT[/PATH] */
static int set_place(const char *place) {
    const char *slash = strchr(place, '/');
    const char *colon = strchr(place, ':');
    if (options.export != NULL || options.peer != NULL || options.path != NULL) {
        nbdkit_error("place=%s: what is served is named twice", place);
        return -1;
    }
    if (colon == place) {
        nbdkit_error("place=%s: no peer is named; without one, leave the colon out", place);
        return -1;
    }
    if (colon != NULL && (slash == NULL || colon < slash)) {
        options.peer = nbdkit_strndup_intern(place, (size_t)(colon - place));
        if (options.peer == NULL)
            return -1;
        place = colon + 1;
    }
    size_t length = slash == NULL ? strlen(place) : (size_t)(slash - place);
    if (length == 0) {
        nbdkit_error("place: no export is named; it is [PEER:]EXPORT[/PATH]");
        return -1;
    }
    options.export = nbdkit_strndup_intern(place, length);
    if (options.export == NULL)
        return -1;
    options.path = slash != NULL && slash[1] != '\0' ? slash + 1 : NULL;
    return 0;
}

static int set_unsigned(const char *key, const char *value, unsigned most, unsigned *to) {
    if (nbdkit_parse_unsigned(key, value, to) == -1)
        return -1;
    if (*to < 1 || *to > most) {
        nbdkit_error("%s must be from 1 to %u, not %s", key, most, value);
        return -1;
    }
    return 0;
}

int options_set(const char *key, const char *value) {
    const struct {
        const char *key;
        const char **to;
    } texts[] = {
        {"socket", &options.socket}, {"peer", &options.peer},     {"export", &options.export},
        {"path", &options.path},     {"region", &options.region},
    };
    for (size_t at = 0; at < sizeof texts / sizeof *texts; at++) {
        if (strcmp(key, texts[at].key) != 0)
            continue;
        if (*value == '\0' || *texts[at].to != NULL) {
            nbdkit_error("%s %s", key, *value == '\0' ? "is empty" : "is given twice");
            return -1;
        }
        /* nbdkit changes its directory when it goes to the background. */
        *texts[at].to = value;
        if (texts[at].to == &options.socket)
            options.socket = nbdkit_absolute_path(value);
        return *texts[at].to == NULL ? -1 : 0;
    }
    if (strcmp(key, "place") == 0)
        return set_place(value);
    if (strcmp(key, "queues") == 0)
        return set_unsigned(key, value, QUEUES_MAX, &options.queues);
    if (strcmp(key, "weight") == 0)
        return set_unsigned(key, value, 255, &options.weight);
    if (strcmp(key, "timeout") == 0)
        return set_unsigned(key, value, 3600, &options.timeout_s);
    if (strcmp(key, "create") == 0) {
        options.create = nbdkit_parse_size(value);
        if (options.create == 0)
            nbdkit_error("create: a disk of 0 bytes is of no use");
        return options.create > 0 ? 0 : -1;
    }
    if (strcmp(key, "replay") == 0) {
        int64_t replay = nbdkit_parse_size(value);
        options.replay = (uint64_t)replay;
        return replay < 0 ? -1 : 0;
    }
    if (strcmp(key, "class") == 0) {
        if (strcmp(value, "latency") == 0)
            options.class = PIPED_CLASS_LATENCY;
        else if (strcmp(value, "bulk") == 0)
            options.class = PIPED_CLASS_BULK;
        else {
            nbdkit_error("class must be latency or bulk, not %s", value);
            return -1;
        }
        return 0;
    }
    nbdkit_error("unknown parameter %s; see nbdkit piped --help", key);
    return -1;
}

int options_check(void) {
    if (options.region != NULL && options.export != NULL) {
        nbdkit_error("an export and region=%s: there can be only one of them", options.region);
        return -1;
    }
    if (options.region == NULL && options.export == NULL) {
        nbdkit_error("nothing to serve: give [PEER:]EXPORT/PATH, or region=NAME");
        return -1;
    }
    if (options.path != NULL && options.export == NULL) {
        nbdkit_error("path=%s without export=", options.path);
        return -1;
    }
    if (options.create != -1 && options.path == NULL) {
        nbdkit_error("create= makes one file: name it by path= or EXPORT/PATH");
        return -1;
    }
    return 0;
}

char *options_place(const char *path) {
    const char *peer = options.peer == NULL ? "" : options.peer;
    const char *colon = options.peer == NULL ? "" : ":";
    char *place = NULL;
    int length = options.region != NULL
                     ? asprintf(&place, "%s%sregion %s", peer, colon, options.region)
                     : asprintf(&place, "%s%s%s/%s", peer, colon, options.export,
                                path == NULL ? "" : path);
    return length < 0 ? NULL : place;
}
