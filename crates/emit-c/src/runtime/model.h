/* The data that phases work on. plan.c has the functions and tables of one model. */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "gguf.h"
#include "kernels.h"

/* A weight of the plan: all of a tensor, as `rows` rows of `inputs` elements. */
struct weight_place {
    size_t tensor, rows, inputs;
};

/* A layer of the cache: `width` elements per token, or one state per sequence. */
struct cache_layer {
    size_t width;
    int per_token;
};

/* The sizes and tables of a plan. */
struct plan {
    size_t vocab, hidden, rows, head_rows, arena_bytes, context;
    const struct tensor *tensors;
    size_t tensor_count;
    const struct weight_place *weights;
    size_t weight_count;
    const struct cache_layer *cache;
    size_t cache_layers;
    /* Elements of the buffers of struct scratch; `expanded` is per token of the context. */
    size_t line, head, expanded, query, sums, router, taken, experts;
    /* LongRoPE: contexts of more than rotation_context tokens use the long table. Otherwise both
     * are equal. */
    struct rotation rotation, rotation_long;
    size_t rotation_context;
};

struct model {
    struct file file;
    size_t context, position;
    struct weight *weights;
    unsigned char *arena;
    float *hidden; /* the residual stream of a step */
    float *logits; /* of the rows of the head */
    float **cache;
    struct scratch scratch;
    const struct rotation *rotation;
    void *memory; /* the allocation of all buffers */
};

/* A step of one sequence: `rows` tokens from position `first` on. */
struct step {
    const uint32_t *tokens;
    size_t rows, first;
    size_t wanted; /* in the head: the first row of the residual stream whose logits are wanted */
    int naive;     /* the attention path: expanded keys and values, otherwise latents */
};

extern const struct plan plan;
/* Whether a step of `rows` rows takes the naive attention path. */
int plan_naive(size_t rows);
/* From tokens through all layers, and from the residual stream to logits. */
void plan_layers(struct model *m, const struct step *s);
void plan_head(struct model *m, const struct step *s);

#endif
