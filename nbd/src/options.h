/* Parameters of the plugin: what is served, through which daemon, and how. */

#ifndef PIPED_NBD_OPTIONS_H
#define PIPED_NBD_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

struct options {
    /* The daemon's client socket; NULL: as libpiped finds it. */
    const char *socket;
    /* The node that has the export or region; NULL: this one. */
    const char *peer;
    /* The export; NULL: a region is served. */
    const char *export;
    /* The file below the export; NULL: the client names it, by the NBD export name. */
    const char *path;
    const char *region;
    /* Requests at once. */
    unsigned queues;
    /* enum piped_class */
    unsigned class;
    unsigned weight;
    /* The size of a file that is not there yet; -1: it has to be there. */
    int64_t create;
    /* How long a request waits for a daemon or peer that is away. */
    unsigned timeout_s;
    /* Bytes of writes that are kept until a flush, to be written again by a peer that lost them. */
    uint64_t replay;
};

/* There is one process for what nbdkit serves, and so one set of parameters. */
extern struct options options;

extern const char options_help[];

/* A parameter of the command line. 0, or -1 with nbdkit's error set. */
int options_set(const char *key, const char *value);

/* All parameters were given: whether they fit together. 0, or -1. */
int options_check(void);

/* What is served, as pipectl writes places: PEER:EXPORT/PATH. `path` may be NULL. To be freed;
 * NULL without memory. */
char *options_place(const char *path);

#endif
