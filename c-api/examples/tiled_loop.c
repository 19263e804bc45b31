/* One process of a tiled loop: tiled_loop SOCKET NAME GRID_X GRID_Y X Y NODE...
 *
 * A[i][j][k] = f(A[i-1][j][k], A[i][j-1][k], A[i][j][k-1]), cut along i and j over GRID_X * GRID_Y
 * processes, of which this is the one at (X, Y). A NODE for each, those with the same Y together,
 * says where it is, as this node's configuration calls it; "-" is this node. All processes are
 * started at about the same time. Each checks its part. */

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

/* Points of a process along i and j, and of all along k. */
enum { WIDE_I = 5, WIDE_J = 7, DEPTH = 3000 };

/* Any function would do that depends on all of it. */
static uint32_t next(uint32_t before_i, uint32_t before_j, uint32_t before_k) {
    const uint32_t mixed = before_i * 0x9e3779b1u ^ before_j * 0x85ebca6bu ^ before_k;
    return (mixed ^ mixed >> 15) * 0xc2b2ae35u + 1;
}

/* The last row of points of this process. */
struct column {
    uint32_t points[WIDE_I][WIDE_J];
    uint64_t sum;
};

static void compute(void *context, struct piped_tile *tile) {
    struct column *column = context;
    const uint32_t *before_x = tile->before_x, *before_y = tile->before_y;
    uint32_t *after_x = tile->after_x, *after_y = tile->after_y;
    for (uint64_t row = 0; row < tile->end - tile->first; row++) {
        for (size_t i = 0; i < WIDE_I; i++) {
            for (size_t j = 0; j < WIDE_J; j++) {
                const uint32_t edge_i = before_x ? before_x[row * WIDE_J + j] : 0;
                const uint32_t edge_j = before_y ? before_y[row * WIDE_I + i] : 0;
                uint32_t *point = &column->points[i][j];
                *point = next(i > 0 ? column->points[i - 1][j] : edge_i,
                              j > 0 ? column->points[i][j - 1] : edge_j, *point);
                column->sum += *point;
                if (after_x && i == WIDE_I - 1)
                    after_x[row * WIDE_J + j] = *point;
                if (after_y && j == WIDE_J - 1)
                    after_y[row * WIDE_I + i] = *point;
            }
        }
    }
}

/* What one process would compute of the part at (x, y): its sum. */
static uint64_t sequential(size_t grid_x, size_t grid_y, size_t x, size_t y) {
    const size_t wide_i = grid_x * WIDE_I, wide_j = grid_y * WIDE_J;
    uint32_t *points = calloc(wide_i * wide_j, sizeof *points);
    uint64_t sum = 0;
    for (size_t row = 0; points && row < DEPTH; row++) {
        for (size_t i = 0; i < wide_i; i++) {
            for (size_t j = 0; j < wide_j; j++) {
                uint32_t *point = &points[i * wide_j + j];
                *point = next(i > 0 ? point[-(ptrdiff_t)wide_j] : 0, j > 0 ? point[-1] : 0, *point);
                sum += i / WIDE_I == x && j / WIDE_J == y ? *point : 0;
            }
        }
    }
    free(points);
    return sum;
}

int main(int argc, char **argv) {
    const uint32_t grid_x = argc > 4 ? (uint32_t)atoi(argv[3]) : 0;
    const uint32_t grid_y = grid_x ? (uint32_t)atoi(argv[4]) : 0;
    if (grid_x < 1 || grid_x > 64 || grid_y < 1 || grid_y > 64 ||
        argc != 7 + (int)(grid_x * grid_y)) {
        fprintf(stderr, "usage: tiled_loop SOCKET NAME GRID_X GRID_Y X Y NODE...\n");
        return 64;
    }
    const char **nodes = (const char **)argv + 7;
    for (uint32_t at = 0; at < grid_x * grid_y; at++)
        nodes[at] = strcmp(nodes[at], "-") ? nodes[at] : NULL;
    const struct piped_tiles_options options = {
        .size = sizeof options,
        .grid_x = grid_x,
        .grid_y = grid_y,
        .at_x = (uint32_t)atoi(argv[5]),
        .at_y = (uint32_t)atoi(argv[6]),
        .edge_x = WIDE_J * sizeof(uint32_t),
        .edge_y = WIDE_I * sizeof(uint32_t),
    };
    piped_client *client = NULL;
    piped_tiles *tiles = NULL;
    struct column column = {.sum = 0};
    struct piped_tiles_report report;
    CHECK(piped_connect(argv[1], NULL, &client));
    CHECK(piped_tiles_open(client, argv[2], &options, nodes, &tiles));
    CHECK(piped_tiles_run(tiles, DEPTH, 0, PIPED_OVERLAPPING, compute, &column, &report));
    piped_tiles_free(tiles);
    piped_client_free(client);
    if (column.sum != sequential(grid_x, grid_y, options.at_x, options.at_y)) {
        fprintf(stderr, "another result than one process has\n");
        return 1;
    }
    printf("(%" PRIu32 ", %" PRIu32 "): %d rows are right\n", options.at_x, options.at_y, DEPTH);
    return 0;
}
