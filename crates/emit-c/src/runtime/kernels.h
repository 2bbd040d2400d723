/* The loops that the phases of plan.c call. With -DMODEL_REFERENCE every sum is a double, element
 * by element. Otherwise sums have lanes, which compilers vectorize. */
#ifndef MODEL_KERNELS_H
#define MODEL_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "tiles.h"

#ifdef MODEL_REFERENCE
typedef double real;
#else
typedef float real;
#endif

/* A weight of the mapped file: rows of `inputs` elements, all matrices one after another. If
 * `tile_rows` is not 0, the matrices have that many rows each and are stored in tiles. */
struct weight {
    const uint8_t *data;
    enum tensor_type type;
    size_t rows;
    size_t inputs;
    size_t row_bytes;
    size_t tile_rows;
    struct tiles tiles;
};

/* A value: rows × heads × width elements of f32, with the distances of rows and heads in
 * elements. */
struct value {
    float *at;
    size_t row;
    size_t head;
};

/* Cosine and sine of each pair follow from position · frequency; both are multiplied by
 * magnitude. */
struct rotation {
    const double *frequencies;
    size_t pairs;
    double magnitude;
    int halves; /* pairs are (i, i + n/2) instead of (2i, 2i + 1) */
};

/* Sizes of multi-head latent attention. */
struct attention {
    size_t heads, kv_lora, nope, rope, v;
    double scale;              /* factor on the scores */
    double temperature;        /* scores · (1 + temperature · ln(1 + ⌊position / length⌋)); 0: none */
    size_t temperature_length;
    size_t topk;               /* tokens that a row attends to; 0: all */
};

/* W_UK and W_UV: joined in kv_b, or k_b (transposed) and v_b; all NULL if the cache is expanded. */
struct kv_weights {
    const struct weight *kv_b, *k_b, *v_b;
};

/* A mixture of experts. */
enum gating { GATING_SOFTMAX, GATING_SIGMOID, GATING_SOFTMAX_OF_SELECTED, GATING_SQRT_SOFTPLUS };
struct router {
    size_t experts, used;
    enum gating gating;
    size_t groups, groups_used;
    int group_top_two; /* a group's score is the sum of its best two experts, otherwise its best one */
    int mask_zero;     /* experts of other groups get the score 0, otherwise −∞ */
    int normalise;
    double norm_floor, scale;
};

/* Buffers that an operation uses only while it runs. */
struct scratch {
    float *line;    /* a decoded row of a weight */
    float *head;    /* W_UK and W_UV of a head, decoded: (nope + v) × kv_lora */
    float *expanded; /* keys and values of a head: context × (nope + rope + v) */
    float *query;   /* a head's query */
    real *scores;   /* one per token of the context */
    real *sums;     /* one per element of a row */
    double *router; /* scores, selection scores, group scores, and selected weights */
    unsigned char *taken; /* whether each expert, group or token is selected */
    float *experts; /* gate and up of the rows of an expert */
    real *cosines, *sines; /* of each pair at a position */
};

/* Row `row` of a weight in f32: in `line`, or in the file itself. */
const float *weight_row(const struct weight *w, size_t row, float *line);
/* Bytes of a row of `inputs` elements; 0 if that is not a whole number of blocks. */
size_t type_row_bytes(enum tensor_type type, size_t inputs);

void op_embed(struct value y, const struct weight *w, const uint32_t *tokens, size_t rows, double factor,
              float *line);
void op_rms_norm(struct value y, struct value x, const struct weight *w, size_t heads, size_t rows,
                 double epsilon, float *line);
void op_linear(struct value y, struct value x, const struct weight *w, size_t rows, float *line);
void op_bias(struct value y, struct value x, const struct weight *w, size_t rows, float *line);
void op_concat(struct value y, struct value a, struct value b, size_t a_width, size_t b_width, size_t rows);
void op_rope(struct value y, struct value x, size_t heads, size_t width, size_t rows, size_t first,
             const struct rotation *by, const struct scratch *s);
void op_silu(struct value y, struct value x, size_t width, size_t rows);
void op_silu_mul(struct value y, struct value gate, struct value up, size_t width, size_t rows);
void op_relu2(struct value y, struct value x, size_t width, size_t rows);
void op_sigmoid_mul(struct value y, struct value x, struct value gate, int per_head, size_t heads,
                    size_t width, size_t rows);
void op_add(struct value y, struct value base, struct value term, size_t width, size_t rows, double factor);
void op_scale(struct value y, struct value x, size_t width, size_t rows, double factor);
void op_copy_rows(struct value y, struct value x, size_t width, size_t rows);

void op_latent_store(float *cache, size_t width, struct value latent, struct value k_rope,
                     const struct attention *a, size_t rows, size_t first);
void op_kv_lora_decompress(struct value k_nope, struct value v, struct value latent,
                           const struct kv_weights *w, const struct attention *a, size_t rows,
                           const struct scratch *s);
void op_partial_rope_concat(struct value key, struct value k_nope, struct value k_rope,
                            const struct attention *a, size_t rows);
void op_key_value_store(float *cache, size_t width, struct value key, struct value v,
                        const struct attention *a, size_t rows, size_t first);
void op_absorb_k(struct value y, struct value q_nope, struct value q_rope, const struct kv_weights *w,
                 const struct attention *a, size_t rows, const struct scratch *s);
void op_attend_latent(struct value y, struct value q, const float *cache, size_t width, int separate,
                      const uint32_t *selected, const struct attention *a, size_t rows, size_t first,
                      const struct scratch *s);
void op_absorb_v(struct value y, struct value mix, const struct kv_weights *w, const struct attention *a,
                 size_t rows, const struct scratch *s);
void op_attend_expanded(struct value y, struct value q_nope, struct value q_rope, const float *cache,
                        size_t width, const uint32_t *selected, const struct kv_weights *w,
                        const struct attention *a, size_t rows, size_t first, const struct scratch *s);

void op_index_store(float *cache, size_t width, struct value k, const struct weight *norm,
                    const struct weight *bias, double epsilon, size_t rope, const struct rotation *by,
                    size_t rows, size_t first, const struct scratch *s);
void op_index_select(uint32_t *selected, struct value q, struct value weights, const float *cache,
                     size_t heads, size_t width, size_t rope, size_t topk, const struct rotation *by,
                     size_t rows, size_t first, const struct scratch *s);

void op_route(uint32_t *ids, float *weights, struct value logits, const struct weight *bias,
              const struct router *r, size_t rows, const struct scratch *s);
void op_expert_mlp(struct value y, struct value x, const uint32_t *ids, const float *weights,
                   const struct weight *gate, const struct weight *up, const struct weight *gate_up,
                   const struct weight *down, size_t experts, size_t used, size_t ffn, size_t rows,
                   const struct scratch *s);

void op_short_conv(float *state, size_t past, size_t channels, size_t part, struct value y, struct value x,
                   const struct weight *w, size_t rows, const struct scratch *s);
void op_l2_norm(struct value y, struct value x, size_t heads, size_t width, size_t rows, double factor);
void op_log_decay(struct value y, struct value x, const struct weight *rate, const struct weight *bias,
                  int logarithm, const double *bound, size_t heads, size_t width, size_t rows,
                  const struct scratch *s);
void op_delta_rule(float *state, struct value y, struct value q, struct value k, struct value v,
                   struct value decay, struct value beta, size_t heads, size_t width, size_t rows,
                   const struct scratch *s);
void op_gated_norm(struct value y, struct value x, struct value gate, const struct weight *w, size_t heads,
                   size_t width, size_t rows, double epsilon, const struct scratch *s);

#endif
