/* Tiles of packed files: sixteen rows of a matrix, interleaved field by field. */
#ifndef MODEL_TILES_H
#define MODEL_TILES_H

#include <stddef.h>
#include <stdint.h>

#include "types.h"

enum { TILE_ROWS = 16, TILE_PLANES = 4, MAX_BLOCK_BYTES = 210 };

/* The layout of tiles of a format and row length. */
struct tiles {
    size_t blocks;             /* per row; the last one may be partial if a format has no blocks */
    size_t elements;           /* per block */
    size_t starts[TILE_PLANES];
    size_t bytes;              /* of a tile; 0: the format has no tiles */
};

/* The layout for rows of `inputs` elements. */
struct tiles tiles_layout(enum tensor_type type, size_t inputs);
/* Bytes of `rows` rows in matrices of `tile_rows` rows each; 0 if the format has no tiles, the rows
 * are not whole matrices, or the number overflows. */
uint64_t tiles_bytes(const struct tiles *t, uint64_t rows, uint64_t tile_rows);
/* Block b of row r of a tile, as GGUF files store it. */
void tile_block(const struct tiles *t, enum tensor_type type, const uint8_t *tile, size_t r, size_t b,
                uint8_t block[MAX_BLOCK_BYTES]);

#endif
