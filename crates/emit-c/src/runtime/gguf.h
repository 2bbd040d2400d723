/* Reads a GGUF or packed file. Every count, length and offset is checked before it is used. */
#ifndef MODEL_GGUF_H
#define MODEL_GGUF_H

#include <stddef.h>
#include <stdint.h>

enum { MAX_DIMENSIONS = 4 };

/* A tensor that the plan reads: name, type (an id of GGUF) and dimensions, innermost first. */
struct tensor {
    const char *name;
    size_t name_bytes;
    uint32_t type;
    uint64_t dimensions[MAX_DIMENSIONS]; /* 1 for dimensions that a tensor lacks */
};

/* The start of a tensor. `tile_rows` is the number of rows of each matrix in tiles, or 0 for rows
 * as in GGUF. */
struct tensor_place {
    const uint8_t *data;
    size_t tile_rows;
};

/* A file in memory, mapped if the system supports it. */
struct file {
    const uint8_t *data;
    size_t bytes;
    int mapped;
};

/* Maps or reads a file. Returns NULL, or the problem. */
const char *file_open(struct file *file, const char *path);
void file_close(struct file *file);

/* Finds `count` tensors, sorted by name, in a GGUF file or in a file of `latent pack`, and checks
 * type, dimensions and that their bytes are in the file. Returns 0, or writes what is wrong. */
int gguf_find(const struct file *file, const struct tensor *tensors, size_t count, struct tensor_place *places,
              char *error, size_t error_bytes);

#endif
