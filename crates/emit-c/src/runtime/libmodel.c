#include "libmodel.h"
#include "model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "weights are read as little-endian numbers"
#endif

enum { ALIGN = 64 };

/* Maximum bytes of a buffer and of all buffers, so that sums of sizes do not overflow. */
static const size_t most_bytes = SIZE_MAX / 4;

/* Places buffers in one allocation. With `memory` NULL, it only counts the bytes to allocate. */
struct layout {
    unsigned char *memory;
    size_t bytes;
    int overflow;
};

static void *place(struct layout *l, size_t count, size_t size)
{
    void *at = l->memory ? l->memory + l->bytes : NULL;
    if (count > most_bytes / size || l->bytes > most_bytes - count * size) {
        l->overflow = 1;
        return NULL;
    }
    l->bytes = (l->bytes + count * size + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

static size_t times(struct layout *l, size_t a, size_t b)
{
    if (b && a > SIZE_MAX / b) {
        l->overflow = 1;
        return 0;
    }
    return a * b;
}

static void place_all(struct layout *l, struct model *m, struct tensor_place **tensors)
{
    struct scratch *s = &m->scratch;
    const size_t context = m->context;
    m->weights = place(l, plan.weight_count, sizeof *m->weights);
    m->cache = place(l, plan.cache_layers, sizeof *m->cache);
    *tensors = place(l, plan.tensor_count, sizeof **tensors);
    m->arena = place(l, plan.arena_bytes, 1);
    m->hidden = place(l, times(l, plan.rows, plan.hidden), sizeof(float));
    m->logits = place(l, times(l, plan.head_rows, plan.vocab), sizeof(float));
    s->line = place(l, plan.line, sizeof(float));
    s->head = place(l, plan.head, sizeof(float));
    s->expanded = place(l, times(l, plan.expanded, context), sizeof(float));
    s->query = place(l, plan.query, sizeof(float));
    s->scores = place(l, context, sizeof(real));
    s->sums = place(l, plan.sums, sizeof(real));
    s->router = place(l, plan.router, sizeof(double));
    s->taken = place(l, plan.taken > context ? plan.taken : context, 1);
    s->experts = place(l, plan.experts, sizeof(float));
    s->cosines = place(l, plan.rotation.pairs, sizeof(real));
    s->sines = place(l, plan.rotation.pairs, sizeof(real));
    for (size_t i = 0; i < plan.cache_layers; i++) {
        const size_t rows = plan.cache[i].per_token ? context : 1;
        float *cache = place(l, times(l, rows, plan.cache[i].width), sizeof(float));
        if (l->memory) m->cache[i] = cache;
    }
}

static struct model *refuse(struct model *m, char *error, size_t error_bytes, const char *path,
                            const char *problem)
{
    if (error_bytes) snprintf(error, error_bytes, "%s: %s", path, problem);
    model_close(m);
    return NULL;
}

struct model *model_open(const char *path, size_t context, char *error, size_t error_bytes)
{
    char problem[256];
    struct layout layout = {NULL, 0, 0};
    struct tensor_place *tensors;
    if (context == 0) context = plan.context < 4096 ? plan.context : 4096;
    if (context > plan.context)
        return refuse(NULL, error, error_bytes, path, "the context is longer than the model's");
    struct model *m = calloc(1, sizeof *m);
    if (!m) return refuse(NULL, error, error_bytes, path, "out of memory");
    const char *failed = file_open(&m->file, path);
    if (failed) return refuse(m, error, error_bytes, path, failed);
    m->context = context;
    place_all(&layout, m, &tensors);
    if (layout.overflow)
        return refuse(m, error, error_bytes, path, "the context needs more memory than can be addressed");
    m->memory = calloc(1, layout.bytes + ALIGN);
    if (!m->memory) return refuse(m, error, error_bytes, path, "the context does not fit in memory");
    layout = (struct layout){m->memory, 0, 0};
    layout.memory += (ALIGN - (uintptr_t)m->memory % ALIGN) % ALIGN;
    place_all(&layout, m, &tensors);
    if (gguf_find(&m->file, plan.tensors, plan.tensor_count, tensors, problem, sizeof problem) != 0)
        return refuse(m, error, error_bytes, path, problem);
    for (size_t i = 0; i < plan.weight_count; i++) {
        const struct weight_place *of = &plan.weights[i];
        const struct tensor_place at = tensors[of->tensor];
        const enum tensor_type type = (enum tensor_type)plan.tensors[of->tensor].type;
        if (at.tile_rows && of->inputs != plan.tensors[of->tensor].dimensions[0])
            return refuse(m, error, error_bytes, path, "a weight in tiles has rows of another length");
        m->weights[i] = (struct weight){at.data,    type,
                                        of->rows,   of->inputs,
                                        type_row_bytes(type, of->inputs), at.tile_rows,
                                        tiles_layout(type, of->inputs)};
    }
    m->rotation = context > plan.rotation_context ? &plan.rotation_long : &plan.rotation;
    model_reset(m);
    return m;
}

void model_close(struct model *m)
{
    if (!m) return;
    file_close(&m->file);
    free(m->memory);
    free(m);
}

void model_reset(struct model *m)
{
    m->position = 0;
    for (size_t i = 0; i < plan.cache_layers; i++)
        if (!plan.cache[i].per_token) memset(m->cache[i], 0, plan.cache[i].width * sizeof(float));
}

const char *model_step(struct model *m, const uint32_t *tokens, size_t count, float *logits)
{
    if (count == 0) return "a step needs at least one token";
    if (count > m->context - m->position) return "the step does not fit in the context";
    for (size_t i = 0; i < count; i++)
        if (tokens[i] >= plan.vocab) return "a token is not in the vocabulary";
    for (size_t done = 0; done < count;) {
        const size_t rows = count - done < plan.rows ? count - done : plan.rows;
        struct step s = {tokens + done, rows, m->position, 0, plan_naive(rows)};
        plan_layers(m, &s);
        m->position += rows;
        done += rows;
        if (!logits && done < count) continue;
        for (size_t row = logits ? 0 : rows - 1; row < rows;) {
            struct step head = s;
            head.wanted = row;
            head.rows = rows - row < plan.head_rows ? rows - row : plan.head_rows;
            plan_head(m, &head);
            const size_t elements = head.rows * plan.vocab;
            if (logits) {
                memcpy(logits, m->logits, elements * sizeof(float));
                logits += elements;
            }
            row += head.rows;
            /* model_logits returns the first row, so the last token's logits move there. */
            if (row == rows && done == count)
                memmove(m->logits, m->logits + (elements - plan.vocab), plan.vocab * sizeof(float));
        }
    }
    return NULL;
}

const float *model_logits(const struct model *m)
{
    return m->logits;
}

size_t model_position(const struct model *m)
{
    return m->position;
}

size_t model_context(const struct model *m)
{
    return m->context;
}
