/* What the examples do about errors: say why, and end. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>

#include "piped.h"

static inline void check_at(const char *call, piped_status status) {
    if (status != PIPED_OK) {
        fprintf(stderr, "%s: %s (status %d)\n", call, piped_last_message(), (int)status);
        exit(EXIT_FAILURE);
    }
}

#define CHECK(call) check_at(#call, (call))

/* The bytes of a buffer that no request has. */
static inline void *bytes_of(piped_buffer *buffer) {
    void *data = NULL;
    CHECK(piped_buffer_data(buffer, &data, NULL));
    return data;
}

#endif
