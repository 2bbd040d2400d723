#include "kernels.h"

#include <math.h>
#include <string.h>

#ifdef MODEL_REFERENCE
#define EXP exp
#else
#define EXP expf
#endif

/* ---- Weight formats ---- */

static float bits_to_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint16_t u16_at(const uint8_t *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

/* Converts a half without branches, so that compilers vectorize loops over halves. */
static float half(uint16_t h)
{
    const uint32_t w = (uint32_t)h << 16, sign = w & 0x80000000u, twice = w + w;
    const float normal = bits_to_float((twice >> 4) + (0xe0u << 23)) * 0x1p-112f;
    const float subnormal = bits_to_float((twice >> 17) | (126u << 23)) - 0.5f;
    uint32_t bits;
    memcpy(&bits, twice < (1u << 27) ? &subnormal : &normal, sizeof bits);
    return bits_to_float(sign | bits);
}

static float half_at(const uint8_t *at)
{
    return half(u16_at(at));
}

struct type_block {
    size_t elements, bytes;
};

static struct type_block type_block(enum tensor_type type)
{
    switch (type) {
    case TYPE_F32: return (struct type_block){1, 4};
    case TYPE_F16: return (struct type_block){1, 2};
    case TYPE_BF16: return (struct type_block){1, 2};
    case TYPE_Q4_0: return (struct type_block){32, 18};
    case TYPE_Q4_1: return (struct type_block){32, 20};
    case TYPE_Q5_0: return (struct type_block){32, 22};
    case TYPE_Q5_1: return (struct type_block){32, 24};
    case TYPE_Q8_0: return (struct type_block){32, 34};
    case TYPE_Q2_K: return (struct type_block){256, 84};
    case TYPE_Q3_K: return (struct type_block){256, 110};
    case TYPE_Q4_K: return (struct type_block){256, 144};
    case TYPE_Q5_K: return (struct type_block){256, 176};
    case TYPE_Q6_K: return (struct type_block){256, 210};
    case TYPE_IQ4_NL: return (struct type_block){32, 18};
    case TYPE_IQ4_XS: return (struct type_block){256, 136};
    case TYPE_MXFP4: return (struct type_block){32, 17};
    }
    return (struct type_block){0, 0};
}

const char *type_name(enum tensor_type type)
{
    switch (type) {
    case TYPE_F32: return "F32";
    case TYPE_F16: return "F16";
    case TYPE_BF16: return "BF16";
    case TYPE_Q4_0: return "Q4_0";
    case TYPE_Q4_1: return "Q4_1";
    case TYPE_Q5_0: return "Q5_0";
    case TYPE_Q5_1: return "Q5_1";
    case TYPE_Q8_0: return "Q8_0";
    case TYPE_Q2_K: return "Q2_K";
    case TYPE_Q3_K: return "Q3_K";
    case TYPE_Q4_K: return "Q4_K";
    case TYPE_Q5_K: return "Q5_K";
    case TYPE_Q6_K: return "Q6_K";
    case TYPE_IQ4_NL: return "IQ4_NL";
    case TYPE_IQ4_XS: return "IQ4_XS";
    case TYPE_MXFP4: return "MXFP4";
    }
    return "";
}

size_t type_row_bytes(enum tensor_type type, size_t inputs)
{
    const struct type_block block = type_block(type);
    if (block.elements == 0 || inputs % block.elements != 0) return 0;
    const size_t blocks = inputs / block.elements;
    return blocks > SIZE_MAX / block.bytes ? 0 : blocks * block.bytes;
}

/* Q4_0, weight = d · (quant − 8): quant i in the low half of byte i, quant i + 16 in the high
 * half. */
static void decode_q4_0(const uint8_t *restrict b, float *restrict out)
{
    const float d = half_at(b);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)((b[2 + i] & 15) - 8);
        out[i + 16] = d * (float)((b[2 + i] >> 4) - 8);
    }
}

/* Q4_1, weight = d · quant + m. */
static void decode_q4_1(const uint8_t *restrict b, float *restrict out)
{
    const float d = half_at(b), m = half_at(b + 2);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)(b[4 + i] & 15) + m;
        out[i + 16] = d * (float)(b[4 + i] >> 4) + m;
    }
}

/* Q5_0 and Q5_1: like Q4_0 and Q4_1. Bit i of a 32-bit word is the fifth bit of quant i. */
static void decode_q5(const uint8_t *restrict word, const uint8_t *restrict b, float d, float m,
                      float *restrict out)
{
    const uint32_t fifths =
        (uint32_t)word[0] | (uint32_t)word[1] << 8 | (uint32_t)word[2] << 16 | (uint32_t)word[3] << 24;
    for (int i = 0; i < 16; i++) {
        const int low = (b[i] & 15) | (int)(fifths >> i & 1) << 4;
        const int high = b[i] >> 4 | (int)(fifths >> (i + 16) & 1) << 4;
        out[i] = d * (float)low + m;
        out[i + 16] = d * (float)high + m;
    }
}

static void decode_q5_0(const uint8_t *restrict b, float *restrict out)
{
    const float d = half_at(b);
    const uint8_t *word = b + 2;
    const uint32_t fifths =
        (uint32_t)word[0] | (uint32_t)word[1] << 8 | (uint32_t)word[2] << 16 | (uint32_t)word[3] << 24;
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)(((b[6 + i] & 15) | (int)(fifths >> i & 1) << 4) - 16);
        out[i + 16] = d * (float)((b[6 + i] >> 4 | (int)(fifths >> (i + 16) & 1) << 4) - 16);
    }
}

/* Q8_0, weight = d · quant. */
static void decode_q8_0(const uint8_t *restrict b, float *restrict out)
{
    const float d = half_at(b);
    for (int i = 0; i < 32; i++) out[i] = d * (float)(int8_t)b[2 + i];
}

/* The 6-bit scales and minima of the eight groups of a Q4_K or Q5_K block, from 12 bytes. */
static void k_scales(const uint8_t *restrict p, float d, float dmin, float scale[8], float min[8])
{
    for (int i = 0; i < 4; i++) {
        scale[i] = d * (float)(p[i] & 63);
        min[i] = dmin * (float)(p[i + 4] & 63);
        scale[i + 4] = d * (float)((p[i + 8] & 15) | (p[i] >> 6) << 4);
        min[i + 4] = dmin * (float)(p[i + 8] >> 4 | (p[i + 4] >> 6) << 4);
    }
}

/* Q4_K: eight groups of 32, weight = d · scale · quant − dmin · min. */
static void decode_q4_k(const uint8_t *restrict b, float *restrict out)
{
    float scale[8], min[8];
    k_scales(b + 4, half_at(b), half_at(b + 2), scale, min);
    for (int g = 0; g < 4; g++) {
        const uint8_t *quants = b + 16 + 32 * g;
        float *low = out + 64 * g, *high = low + 32;
        for (int i = 0; i < 32; i++) low[i] = scale[2 * g] * (float)(quants[i] & 15) - min[2 * g];
        for (int i = 0; i < 32; i++) high[i] = scale[2 * g + 1] * (float)(quants[i] >> 4) - min[2 * g + 1];
    }
}

/* Q5_K: like Q4_K. Bit g of byte i is the fifth bit of quant i of group g. */
static void decode_q5_k(const uint8_t *restrict b, float *restrict out)
{
    float scale[8], min[8];
    k_scales(b + 4, half_at(b), half_at(b + 2), scale, min);
    for (int g = 0; g < 8; g++) {
        const uint8_t *quants = b + 48 + g / 2 * 32, *fifths = b + 16;
        const int shift = g % 2 * 4;
        for (int i = 0; i < 32; i++) {
            const int quant = (quants[i] >> shift & 15) | (fifths[i] >> g & 1) << 4;
            out[32 * g + i] = scale[g] * (float)quant - min[g];
        }
    }
}

/* Q6_K: sixteen groups of 16, weight = d · scale · (quant − 32). */
static void decode_q6_k(const uint8_t *restrict b, float *restrict out)
{
    const float d = half_at(b + 208);
    for (int g = 0; g < 16; g++) {
        const float scale = d * (float)(int8_t)b[192 + g];
        const int part = g / 8, line = g % 8 / 2, start = g % 2 * 16;
        const uint8_t *low = b + part * 64 + line % 2 * 32 + start, *high = b + 128 + part * 32 + start;
        const int low_shift = line / 2 * 4, high_shift = line * 2;
        for (int i = 0; i < 16; i++) {
            const int quant = (low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4;
            out[16 * g + i] = scale * (float)(quant - 32);
        }
    }
}

/* Q2_K: sixteen groups of 16, weight = d · scale · quant − dmin · min. */
static void decode_q2_k(const uint8_t *restrict b, float *restrict out)
{
    const float d = half_at(b + 80), dmin = half_at(b + 82);
    for (int g = 0; g < 16; g++) {
        const float scale = d * (float)(b[g] & 15), min = dmin * (float)(b[g] >> 4);
        const uint8_t *quants = b + 16 + g / 8 * 32 + g % 2 * 16;
        const int shift = g % 8 / 2 * 2;
        for (int i = 0; i < 16; i++) out[16 * g + i] = scale * (float)(quants[i] >> shift & 3) - min;
    }
}

/* Q3_K: sixteen groups of 16, weight = d · (scale − 32) · (quant − 4). */
static void decode_q3_k(const uint8_t *restrict b, float *restrict out)
{
    const float d = half_at(b + 108);
    const uint8_t *packed = b + 96;
    for (int g = 0; g < 16; g++) {
        const int low = g < 8 ? packed[g] & 15 : packed[g - 8] >> 4;
        const int high = packed[8 + g % 4] >> (2 * (g / 4)) & 3;
        const float scale = d * (float)((low | high << 4) - 32);
        const uint8_t *thirds = b + g % 2 * 16, *quants = b + 32 + g / 8 * 32 + g % 2 * 16;
        const int shift = g % 8 / 2 * 2, bit = g / 2;
        for (int i = 0; i < 16; i++) {
            const int quant = (quants[i] >> shift & 3) | (thirds[i] >> bit & 1) << 2;
            out[16 * g + i] = scale * (float)(quant - 4);
        }
    }
}

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
/* Twice the value of each 4-bit float, so that all entries are integers. */
static const int8_t e2m1_doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static void decode_table(const uint8_t *restrict quants, const int8_t *restrict values, float d,
                         float *restrict out)
{
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)values[quants[i] & 15];
        out[i + 16] = d * (float)values[quants[i] >> 4];
    }
}

/* IQ4_XS: eight groups of 32, weight = d · (scale − 32) · value of the quant. */
static void decode_iq4_xs(const uint8_t *restrict b, float *restrict out)
{
    const float d = half_at(b);
    const int upper = u16_at(b + 2);
    for (int g = 0; g < 8; g++) {
        const int scale = (b[4 + g / 2] >> (g % 2 * 4) & 15) | (upper >> (2 * g) & 3) << 4;
        decode_table(b + 8 + 16 * g, iq4_values, d * (float)(scale - 32), out + 32 * g);
    }
}

/* MXFP4: weight = 2^(e − 127) · 4-bit float. The table has doubled values, so the scale is
 * halved. */
static void decode_mxfp4(const uint8_t *restrict b, float *restrict out)
{
    const uint32_t e = b[0];
    const uint32_t bits = e < 2 ? 0x00200000u * (1 + (e & 1)) : (e - 1) << 23;
    decode_table(b + 1, e2m1_doubled, bits_to_float(bits), out);
}

static void decode_block(enum tensor_type type, const uint8_t *restrict b, float *restrict out)
{
    switch (type) {
    case TYPE_F32: memcpy(out, b, 4); break;
    case TYPE_F16: *out = half_at(b); break;
    case TYPE_BF16: *out = bits_to_float((uint32_t)u16_at(b) << 16); break;
    case TYPE_Q4_0: decode_q4_0(b, out); break;
    case TYPE_Q4_1: decode_q4_1(b, out); break;
    case TYPE_Q5_0: decode_q5_0(b, out); break;
    case TYPE_Q5_1: decode_q5(b + 4, b + 8, half_at(b), half_at(b + 2), out); break;
    case TYPE_Q8_0: decode_q8_0(b, out); break;
    case TYPE_Q2_K: decode_q2_k(b, out); break;
    case TYPE_Q3_K: decode_q3_k(b, out); break;
    case TYPE_Q4_K: decode_q4_k(b, out); break;
    case TYPE_Q5_K: decode_q5_k(b, out); break;
    case TYPE_Q6_K: decode_q6_k(b, out); break;
    case TYPE_IQ4_NL: decode_table(b + 2, iq4_values, half_at(b), out); break;
    case TYPE_IQ4_XS: decode_iq4_xs(b, out); break;
    case TYPE_MXFP4: decode_mxfp4(b, out); break;
    }
}

/* Decodes a row of a weight in tiles, block by block. */
static const float *tiled_row(const struct weight *w, size_t row, float *line)
{
    const size_t matrix = row / w->tile_rows, r = row % w->tile_rows;
    const size_t tiles = (w->tile_rows + TILE_ROWS - 1) / TILE_ROWS, elements = w->tiles.elements;
    const uint8_t *tile = w->data + (matrix * tiles + r / TILE_ROWS) * w->tiles.bytes;
    for (size_t b = 0; b < w->tiles.blocks; b++) {
        uint8_t block[MAX_BLOCK_BYTES];
        float *out = line + b * elements;
        tile_block(&w->tiles, w->type, tile, r % TILE_ROWS, b, block);
        const size_t left = w->inputs - b * elements, count = left < elements ? left : elements;
        if (w->type == TYPE_F16)
            for (size_t i = 0; i < count; i++) out[i] = half_at(block + 2 * i);
        else if (w->type == TYPE_BF16)
            for (size_t i = 0; i < count; i++) out[i] = bits_to_float((uint32_t)u16_at(block + 2 * i) << 16);
        else decode_block(w->type, block, out);
    }
    return line;
}

const float *weight_row(const struct weight *w, size_t row, float *line)
{
    if (w->tile_rows) return tiled_row(w, row, line);
    const uint8_t *data = w->data + row * w->row_bytes;
    switch (w->type) {
    case TYPE_F32:
        if ((uintptr_t)data % sizeof(float) == 0) return (const float *)(const void *)data;
        memcpy(line, data, w->inputs * sizeof(float));
        return line;
    case TYPE_F16:
        for (size_t i = 0; i < w->inputs; i++) line[i] = half_at(data + 2 * i);
        return line;
    case TYPE_BF16:
        for (size_t i = 0; i < w->inputs; i++) line[i] = bits_to_float((uint32_t)u16_at(data + 2 * i) << 16);
        return line;
    default: {
        const struct type_block block = type_block(w->type);
        for (size_t i = 0; i < w->inputs / block.elements; i++)
            decode_block(w->type, data + i * block.bytes, line + i * block.elements);
        return line;
    }
    }
}

/* ---- Sums ---- */

#ifdef MODEL_REFERENCE

static float dot(const float *a, const float *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return (float)sum;
}

#else

enum { LANES = 32 };

/* LANES independent sums, each over every LANES-th element. C compilers may not reorder one float
 * sum, but they vectorize independent ones. */
static float dot(const float *restrict a, const float *restrict b, size_t n)
{
    float lane[LANES] = {0};
    float rest = 0;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t j = 0; j < LANES; j++) lane[j] += a[i + j] * b[i + j];
    for (; i < n; i++) rest += a[i] * b[i];
    for (size_t width = LANES / 2; width > 0; width /= 2)
        for (size_t j = 0; j < width; j++) lane[j] += lane[j + width];
    return lane[0] + rest;
}

#endif

/* sums += factor · x */
static void add_scaled(real *restrict sums, real factor, const float *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++) sums[i] += factor * (real)x[i];
}

static void clear(real *sums, size_t n)
{
    for (size_t i = 0; i < n; i++) sums[i] = 0;
}

static float *row_of(struct value x, size_t row)
{
    return x.at + row * x.row;
}

static float *head_of(struct value x, size_t row, size_t head)
{
    return x.at + row * x.row + head * x.head;
}

static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static float silu(float x)
{
    return x / (1.0f + expf(-x));
}

/* y = x / √(mean x² + ε) · w */
static void rms_norm(float *y, const float *x, const float *w, size_t n, double epsilon)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    const double factor = 1.0 / sqrt(sum / (double)n + epsilon);
    for (size_t i = 0; i < n; i++) y[i] = (float)((double)x[i] * factor) * w[i];
}

/* ---- Rows ---- */

void op_embed(struct value y, const struct weight *w, const uint32_t *tokens, size_t rows, double factor,
              float *line)
{
    for (size_t r = 0; r < rows; r++) {
        const float *row = weight_row(w, tokens[r], line);
        float *out = row_of(y, r);
        for (size_t i = 0; i < w->inputs; i++) out[i] = row[i] * (float)factor;
    }
}

void op_rms_norm(struct value y, struct value x, const struct weight *w, size_t heads, size_t rows,
                 double epsilon, float *line)
{
    const float *weight = weight_row(w, 0, line);
    for (size_t r = 0; r < rows; r++)
        for (size_t h = 0; h < heads; h++)
            rms_norm(head_of(y, r, h), head_of(x, r, h), weight, w->inputs, epsilon);
}

void op_linear(struct value y, struct value x, const struct weight *w, size_t rows, float *line)
{
    for (size_t o = 0; o < w->rows; o++) {
        const float *row = weight_row(w, o, line);
        for (size_t r = 0; r < rows; r++) row_of(y, r)[o] = dot(row, row_of(x, r), w->inputs);
    }
}

void op_bias(struct value y, struct value x, const struct weight *w, size_t rows, float *line)
{
    const float *bias = weight_row(w, 0, line);
    for (size_t r = 0; r < rows; r++) {
        const float *in = row_of(x, r);
        float *out = row_of(y, r);
        for (size_t i = 0; i < w->inputs; i++) out[i] = in[i] + bias[i];
    }
}

void op_concat(struct value y, struct value a, struct value b, size_t a_width, size_t b_width, size_t rows)
{
    for (size_t r = 0; r < rows; r++) {
        memcpy(row_of(y, r), row_of(a, r), a_width * sizeof(float));
        memcpy(row_of(y, r) + a_width, row_of(b, r), b_width * sizeof(float));
    }
}

void op_silu(struct value y, struct value x, size_t width, size_t rows)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < width; i++) row_of(y, r)[i] = silu(row_of(x, r)[i]);
}

void op_silu_mul(struct value y, struct value gate, struct value up, size_t width, size_t rows)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < width; i++) row_of(y, r)[i] = silu(row_of(gate, r)[i]) * row_of(up, r)[i];
}

void op_relu2(struct value y, struct value x, size_t width, size_t rows)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < width; i++) {
            const float positive = row_of(x, r)[i] > 0 ? row_of(x, r)[i] : 0;
            row_of(y, r)[i] = positive * positive;
        }
}

void op_sigmoid_mul(struct value y, struct value x, struct value gate, int per_head, size_t heads,
                    size_t width, size_t rows)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t h = 0; h < heads; h++)
            for (size_t i = 0; i < width; i++) {
                const float by = head_of(gate, r, h)[per_head ? 0 : i];
                head_of(y, r, h)[i] = head_of(x, r, h)[i] * sigmoid(by);
            }
}

void op_add(struct value y, struct value base, struct value term, size_t width, size_t rows, double factor)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < width; i++)
            row_of(y, r)[i] = row_of(base, r)[i] + (float)factor * row_of(term, r)[i];
}

void op_scale(struct value y, struct value x, size_t width, size_t rows, double factor)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < width; i++) row_of(y, r)[i] = (float)factor * row_of(x, r)[i];
}

void op_copy_rows(struct value y, struct value x, size_t width, size_t rows)
{
    for (size_t r = 0; r < rows; r++) memcpy(row_of(y, r), row_of(x, r), width * sizeof(float));
}

/* ---- Rotation by position ---- */

/* The angles are doubles: at long contexts, a float product would lose the low bits of the
 * angle. */
static void angles(const struct rotation *by, size_t position, const struct scratch *s)
{
    for (size_t i = 0; i < by->pairs; i++) {
        const double angle = (double)position * by->frequencies[i];
        s->cosines[i] = (real)(cos(angle) * by->magnitude);
        s->sines[i] = (real)(sin(angle) * by->magnitude);
    }
}

/* (a, b) ← (a·cos θ − b·sin θ, a·sin θ + b·cos θ) */
static void rotate(float *x, size_t n, const struct rotation *by, const struct scratch *s)
{
    for (size_t i = 0; i < by->pairs && i < n / 2; i++) {
        float *a = by->halves ? x + i : x + 2 * i, *b = by->halves ? x + i + n / 2 : x + 2 * i + 1;
        const real first = *a, second = *b;
        *a = (float)(first * s->cosines[i] - second * s->sines[i]);
        *b = (float)(first * s->sines[i] + second * s->cosines[i]);
    }
}

void op_rope(struct value y, struct value x, size_t heads, size_t width, size_t rows, size_t first,
             const struct rotation *by, const struct scratch *s)
{
    for (size_t r = 0; r < rows; r++) {
        angles(by, first + r, s);
        for (size_t h = 0; h < heads; h++) {
            float *out = head_of(y, r, h);
            memmove(out, head_of(x, r, h), width * sizeof(float));
            rotate(out, width, by, s);
        }
    }
}

/* ---- Multi-head latent attention ---- */

/* Decodes W_UK (nope × kv_lora) and W_UV (v × kv_lora) of a head into s->head. `k_b` is stored
 * transposed. */
static void head_weights(const struct kv_weights *w, const struct attention *a, size_t head,
                         const struct scratch *s)
{
    float *uk = s->head, *uv = s->head + a->nope * a->kv_lora;
    const size_t bytes = a->kv_lora * sizeof(float);
    if (w->kv_b) {
        const size_t from = head * (a->nope + a->v);
        for (size_t i = 0; i < a->nope + a->v; i++)
            memcpy(uk + i * a->kv_lora, weight_row(w->kv_b, from + i, s->line), bytes);
        return;
    }
    for (size_t i = 0; w->k_b && i < a->kv_lora; i++) {
        const float *row = weight_row(w->k_b, head * a->kv_lora + i, s->line);
        for (size_t k = 0; k < a->nope; k++) uk[k * a->kv_lora + i] = row[k];
    }
    for (size_t i = 0; w->v_b && i < a->v; i++)
        memcpy(uv + i * a->kv_lora, weight_row(w->v_b, head * a->v + i, s->line), bytes);
}

/* k_nope = W_UK c and value = W_UV c of the head whose weights are decoded. */
static void kv_lora_decompress(float *k_nope, float *value, const float *c, const struct attention *a,
                               const struct scratch *s)
{
    const float *uk = s->head, *uv = s->head + a->nope * a->kv_lora;
    for (size_t i = 0; i < a->nope; i++) k_nope[i] = dot(uk + i * a->kv_lora, c, a->kv_lora);
    for (size_t i = 0; i < a->v; i++) value[i] = dot(uv + i * a->kv_lora, c, a->kv_lora);
}

/* key = [content | rotated]. The content is a head's key without position, a query, or the
 * latent. */
static void partial_rope_concat(float *key, const float *content, size_t width, const float *rotated,
                                size_t rope)
{
    if (key != content) memcpy(key, content, width * sizeof(float));
    if (rope) memcpy(key + width, rotated, rope * sizeof(float));
}

void op_latent_store(float *cache, size_t width, struct value latent, struct value k_rope,
                     const struct attention *a, size_t rows, size_t first)
{
    for (size_t r = 0; r < rows; r++)
        partial_rope_concat(cache + (first + r) * width, row_of(latent, r), a->kv_lora,
                            a->rope ? row_of(k_rope, r) : NULL, a->rope);
}

void op_kv_lora_decompress(struct value k_nope, struct value v, struct value latent,
                           const struct kv_weights *w, const struct attention *a, size_t rows,
                           const struct scratch *s)
{
    for (size_t h = 0; h < a->heads; h++) {
        head_weights(w, a, h, s);
        for (size_t r = 0; r < rows; r++)
            kv_lora_decompress(head_of(k_nope, r, h), head_of(v, r, h), row_of(latent, r), a, s);
    }
}

void op_partial_rope_concat(struct value key, struct value k_nope, struct value k_rope,
                            const struct attention *a, size_t rows)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t h = 0; h < a->heads; h++)
            partial_rope_concat(head_of(key, r, h), head_of(k_nope, r, h), a->nope, row_of(k_rope, r), a->rope);
}

void op_key_value_store(float *cache, size_t width, struct value key, struct value v,
                        const struct attention *a, size_t rows, size_t first)
{
    const size_t key_width = a->nope + a->rope;
    for (size_t r = 0; r < rows; r++)
        for (size_t h = 0; h < a->heads; h++) {
            float *row = cache + (first + r) * width + h * (key_width + a->v);
            memcpy(row, head_of(key, r, h), key_width * sizeof(float));
            memcpy(row + key_width, head_of(v, r, h), a->v * sizeof(float));
        }
}

void op_absorb_k(struct value y, struct value q_nope, struct value q_rope, const struct kv_weights *w,
                 const struct attention *a, size_t rows, const struct scratch *s)
{
    for (size_t h = 0; h < a->heads; h++) {
        if (w->k_b) {
            for (size_t i = 0; i < a->kv_lora; i++) {
                const float *row = weight_row(w->k_b, h * a->kv_lora + i, s->line);
                for (size_t r = 0; r < rows; r++)
                    head_of(y, r, h)[i] = dot(row, head_of(q_nope, r, h), a->nope);
            }
        } else {
            head_weights(w, a, h, s);
            for (size_t r = 0; r < rows; r++) {
                const float *q = head_of(q_nope, r, h);
                float *out = head_of(y, r, h);
                clear(s->sums, a->kv_lora);
                for (size_t k = 0; k < a->nope; k++)
                    add_scaled(s->sums, (real)q[k], s->head + k * a->kv_lora, a->kv_lora);
                for (size_t i = 0; i < a->kv_lora; i++) out[i] = (float)s->sums[i];
            }
        }
        for (size_t r = 0; a->rope && r < rows; r++)
            memcpy(head_of(y, r, h) + a->kv_lora, head_of(q_rope, r, h), a->rope * sizeof(float));
    }
}

/* Factor on the scores of a query. */
static real score_scale(const struct attention *a, size_t position)
{
    if (a->temperature_length == 0) return (real)a->scale;
    return (real)(a->scale * (1.0 + a->temperature * log((double)(position / a->temperature_length) + 1.0)));
}

/* scores ← e^(scale · score − max) / sum. Without the maximum, large scores would overflow. */
static void softmax(real *scores, size_t n, real scale)
{
    real max = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++) {
        scores[i] *= scale;
        max = scores[i] > max ? scores[i] : max;
    }
    for (size_t i = 0; i < n; i++) {
        scores[i] = EXP(scores[i] - max);
        sum += scores[i];
    }
    for (size_t i = 0; i < n; i++) scores[i] /= sum;
}

/* The number of tokens that a row attends to: all up to its own position, or the selected ones. Up
 * to topk tokens, nothing was selected, and `*selected` becomes NULL. */
static size_t tokens_seen(const struct attention *a, const uint32_t **selected, size_t row, size_t position)
{
    if (*selected && position >= a->topk) {
        *selected += row * a->topk;
        return a->topk;
    }
    *selected = NULL;
    return position + 1;
}

/* Attention of one query. Keys have `key_width` elements, and values start `value` elements after
 * the start of a key. With `apart`, the dot products of the first `apart` and of the other elements
 * are summed separately. */
static void attend(float *out, const float *q, const float *keys, size_t stride, size_t key_width,
                   size_t apart, size_t value, size_t value_width, const uint32_t *selected, size_t seen,
                   real scale, const struct scratch *s)
{
    for (size_t i = 0; i < seen; i++) {
        const float *key = keys + (selected ? selected[i] : i) * stride;
        s->scores[i] = apart == 0 ? dot(q, key, key_width)
                                  : dot(q, key, apart) + dot(q + apart, key + apart, key_width - apart);
    }
    softmax(s->scores, seen, scale);
    clear(s->sums, value_width);
    for (size_t i = 0; i < seen; i++)
        add_scaled(s->sums, s->scores[i], keys + (selected ? selected[i] : i) * stride + value, value_width);
    for (size_t i = 0; i < value_width; i++) out[i] = (float)s->sums[i];
}

void op_attend_latent(struct value y, struct value q, const float *cache, size_t width, int separate,
                      const uint32_t *selected, const struct attention *a, size_t rows, size_t first,
                      const struct scratch *s)
{
    for (size_t r = 0; r < rows; r++) {
        const uint32_t *chosen = selected;
        const size_t seen = tokens_seen(a, &chosen, r, first + r);
        const real scale = score_scale(a, first + r);
        for (size_t h = 0; h < a->heads; h++)
            attend(head_of(y, r, h), head_of(q, r, h), cache, width, a->kv_lora + a->rope,
                   separate ? a->kv_lora : 0, 0, a->kv_lora, chosen, seen, scale, s);
    }
}

void op_absorb_v(struct value y, struct value mix, const struct kv_weights *w, const struct attention *a,
                 size_t rows, const struct scratch *s)
{
    for (size_t h = 0; h < a->heads; h++)
        for (size_t i = 0; i < a->v; i++) {
            const float *row = w->kv_b
                                   ? weight_row(w->kv_b, h * (a->nope + a->v) + a->nope + i, s->line)
                                   : weight_row(w->v_b, h * a->v + i, s->line);
            for (size_t r = 0; r < rows; r++) head_of(y, r, h)[i] = dot(row, head_of(mix, r, h), a->kv_lora);
        }
}

void op_attend_expanded(struct value y, struct value q_nope, struct value q_rope, const float *cache,
                        size_t width, const uint32_t *selected, const struct kv_weights *w,
                        const struct attention *a, size_t rows, size_t first, const struct scratch *s)
{
    const size_t each = a->nope + a->rope + a->v, key = a->nope + a->rope;
    const int expanded = !w->kv_b && !w->v_b;
    for (size_t h = 0; h < a->heads; h++) {
        const float *keys = cache + h * each;
        size_t stride = width;
        if (!expanded) {
            head_weights(w, a, h, s);
            for (size_t t = 0; t < first + rows; t++) {
                const float *row = cache + t * width;
                float *out = s->expanded + t * each;
                kv_lora_decompress(out, out + key, row, a, s);
                partial_rope_concat(out, out, a->nope, row + a->kv_lora, a->rope);
            }
            keys = s->expanded;
            stride = each;
        }
        for (size_t r = 0; r < rows; r++) {
            const uint32_t *chosen = selected;
            const size_t seen = tokens_seen(a, &chosen, r, first + r);
            partial_rope_concat(s->query, head_of(q_nope, r, h), a->nope,
                                a->rope ? head_of(q_rope, r, h) : NULL, a->rope);
            attend(head_of(y, r, h), s->query, keys, stride, key, 0, key, a->v, chosen, seen,
                   score_scale(a, first + r), s);
        }
    }
}

/* ---- The indexer of sparse attention ---- */

void op_index_store(float *cache, size_t width, struct value k, const struct weight *norm,
                    const struct weight *bias, double epsilon, size_t rope, const struct rotation *by,
                    size_t rows, size_t first, const struct scratch *s)
{
    for (size_t r = 0; r < rows; r++) {
        const float *x = row_of(k, r);
        float *out = cache + (first + r) * width;
        double mean = 0, variance = 0;
        for (size_t i = 0; i < width; i++) mean += (double)x[i];
        mean /= (double)width;
        for (size_t i = 0; i < width; i++) variance += ((double)x[i] - mean) * ((double)x[i] - mean);
        const double factor = 1.0 / sqrt(variance / (double)width + epsilon);
        const float *w = weight_row(norm, 0, s->line);
        for (size_t i = 0; i < width; i++) out[i] = (float)(((double)x[i] - mean) * factor) * w[i];
        const float *b = weight_row(bias, 0, s->line);
        for (size_t i = 0; i < width; i++) out[i] += b[i];
        angles(by, first + r, s);
        rotate(out, rope, by, s);
    }
}

void op_index_select(uint32_t *selected, struct value q, struct value weights, const float *cache,
                     size_t heads, size_t width, size_t rope, size_t topk, const struct rotation *by,
                     size_t rows, size_t first, const struct scratch *s)
{
    for (size_t r = 0; r < rows; r++) {
        const size_t position = first + r;
        uint32_t *out = selected + r * topk;
        if (position < topk) {
            for (size_t i = 0; i < topk; i++) out[i] = 0; /* Not read: the row attends to all tokens. */
            continue;
        }
        angles(by, position, s);
        clear(s->scores, position + 1);
        for (size_t h = 0; h < heads; h++) {
            memcpy(s->query, head_of(q, r, h), width * sizeof(float));
            rotate(s->query, rope, by, s);
            const float weight = row_of(weights, r)[h];
            for (size_t t = 0; t <= position; t++) {
                const float score = dot(s->query, cache + t * width, width);
                s->scores[t] += (real)(weight * (score > 0 ? score : 0));
            }
        }
        /* Selects the largest scores, of equal ones the earliest, and writes them in the order of
         * positions. */
        memset(s->taken, 0, position + 1);
        for (size_t i = 0; i < topk; i++) {
            size_t best = position + 1;
            for (size_t t = 0; t <= position; t++)
                if (!s->taken[t] && (best > position || s->scores[t] > s->scores[best])) best = t;
            s->taken[best] = 1;
        }
        for (size_t t = 0, i = 0; t <= position; t++)
            if (s->taken[t]) out[i++] = (uint32_t)t;
    }
}

/* ---- Experts ---- */

/* The index of the largest element that is not taken yet; of equal ones the first. */
static size_t largest(const double *x, const unsigned char *taken, size_t n)
{
    size_t best = n;
    for (size_t i = 0; i < n; i++)
        if (!taken[i] && (best == n || x[i] > x[best])) best = i;
    return best;
}

static void softmax_double(double *x, size_t n)
{
    double max = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
    for (size_t i = 0; i < n; i++) sum += x[i] = exp(x[i] - max);
    for (size_t i = 0; i < n; i++) x[i] /= sum;
}

/* Excludes the experts of all groups but the best: their scores become −∞, or 0 in families whose
 * code masks so. */
static void keep_best_groups(double *choice, double *judged, const struct router *r, unsigned char *taken)
{
    const size_t size = r->experts / r->groups;
    for (size_t g = 0; g < r->groups; g++) {
        const double *group = choice + g * size;
        memset(taken, 0, size);
        const size_t best = largest(group, taken, size);
        judged[g] = group[best];
        taken[best] = 1;
        const size_t second = largest(group, taken, size);
        if (r->group_top_two && second < size) judged[g] += group[second];
    }
    memset(taken, 0, r->groups);
    for (size_t i = 0; i < r->groups_used; i++) taken[largest(judged, taken, r->groups)] = 1;
    for (size_t g = 0; g < r->groups; g++)
        for (size_t i = 0; !taken[g] && i < size; i++) choice[g * size + i] = r->mask_zero ? 0 : -INFINITY;
}

void op_route(uint32_t *ids, float *weights, struct value logits, const struct weight *bias,
              const struct router *r, size_t rows, const struct scratch *s)
{
    double *scores = s->router, *choice = scores + r->experts, *judged = choice + r->experts,
           *mix = judged + r->groups;
    for (size_t row = 0; row < rows; row++) {
        const float *in = row_of(logits, row);
        for (size_t e = 0; e < r->experts; e++) {
            const double x = (double)in[e];
            switch (r->gating) {
            case GATING_SOFTMAX:
            case GATING_SOFTMAX_OF_SELECTED: scores[e] = x; break;
            case GATING_SIGMOID: scores[e] = 1.0 / (1.0 + exp(-x)); break;
            case GATING_SQRT_SOFTPLUS: scores[e] = sqrt((x > 0 ? x : 0) + log1p(exp(-fabs(x)))); break;
            }
        }
        if (r->gating == GATING_SOFTMAX) softmax_double(scores, r->experts);
        /* The bias takes part in the selection only and not in the weights. */
        const float *b = bias ? weight_row(bias, 0, s->line) : NULL;
        for (size_t e = 0; e < r->experts; e++) choice[e] = scores[e] + (b ? (double)b[e] : 0.0);
        if (r->groups > 1 && r->groups_used < r->groups) keep_best_groups(choice, judged, r, s->taken);
        memset(s->taken, 0, r->experts);
        double sum = 0;
        for (size_t i = 0; i < r->used; i++) {
            const size_t best = largest(choice, s->taken, r->experts);
            s->taken[best] = 1;
            ids[row * r->used + i] = (uint32_t)best;
            mix[i] = scores[best];
        }
        if (r->gating == GATING_SOFTMAX_OF_SELECTED) softmax_double(mix, r->used);
        for (size_t i = 0; i < r->used; i++) sum += mix[i];
        if (!r->normalise) sum = 1.0;
        else if (!(sum > r->norm_floor)) sum = r->norm_floor;
        for (size_t i = 0; i < r->used; i++) weights[row * r->used + i] = (float)(mix[i] / sum * r->scale);
    }
}

void op_expert_mlp(struct value y, struct value x, const uint32_t *ids, const float *weights,
                   const struct weight *gate, const struct weight *up, const struct weight *gate_up,
                   const struct weight *down, size_t experts, size_t used, size_t ffn, size_t rows,
                   const struct scratch *s)
{
    const size_t hidden = down->rows / experts;
    for (size_t r = 0; r < rows; r++) memset(row_of(y, r), 0, hidden * sizeof(float));
    for (size_t e = 0; e < experts; e++) {
        int reached = 0;
        for (size_t i = 0; i < rows * used; i++) reached |= ids[i] == e;
        if (!reached) continue;
        /* Gate and up are two tensors, or one tensor with the outputs of gate followed by those of
         * up. */
        for (size_t o = 0; o < 2 * ffn; o++) {
            const float *row = gate_up ? weight_row(gate_up, e * 2 * ffn + o, s->line)
                                       : weight_row(o < ffn ? gate : up, e * ffn + o % ffn, s->line);
            for (size_t i = 0; i < rows * used; i++) {
                if (ids[i] != e) continue;
                float *into = s->experts + i / used * ffn + o % ffn;
                const float product = dot(row, row_of(x, i / used), (gate_up ? gate_up : gate)->inputs);
                *into = o < ffn ? silu(product) : *into * product;
            }
        }
        for (size_t o = 0; o < hidden; o++) {
            const float *row = weight_row(down, e * hidden + o, s->line);
            for (size_t i = 0; i < rows * used; i++) {
                if (ids[i] != e) continue;
                row_of(y, i / used)[o] += weights[i] * dot(row, s->experts + i / used * ffn, ffn);
            }
        }
    }
}

/* ---- Kimi Delta Attention ---- */

/* y[t] = silu(Σ w[j] · x[t − past + j]). `state` has the last `past` inputs, the oldest first. */
void op_short_conv(float *state, size_t past, size_t channels, size_t part, struct value y, struct value x,
                   const struct weight *w, size_t rows, const struct scratch *s)
{
    float *seen = state + part * past * channels;
    for (size_t r = 0; r < rows; r++) {
        const float *now = row_of(x, r);
        float *out = row_of(y, r);
        for (size_t c = 0; c < channels; c++) {
            const float *taps = weight_row(w, c, s->line);
            double sum = (double)taps[past] * (double)now[c];
            for (size_t j = 0; j < past; j++) sum += (double)taps[j] * (double)seen[j * channels + c];
            out[c] = silu((float)sum);
        }
        if (past == 0) continue;
        memmove(seen, seen + channels, (past - 1) * channels * sizeof(float));
        memcpy(seen + (past - 1) * channels, now, channels * sizeof(float));
    }
}

void op_l2_norm(struct value y, struct value x, size_t heads, size_t width, size_t rows, double factor)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t h = 0; h < heads; h++) {
            const float *in = head_of(x, r, h);
            float *out = head_of(y, r, h);
            double sum = 0;
            for (size_t i = 0; i < width; i++) sum += (double)in[i] * (double)in[i];
            const double by = factor / sqrt(sum + 1e-6);
            for (size_t i = 0; i < width; i++) out[i] = (float)((double)in[i] * by);
        }
}

/* −a · softplus(z + bias), or bound · σ(a · (z + bias)). Softplus is written as max(z, 0) +
 * log1p(e^−|z|), which does not overflow. */
void op_log_decay(struct value y, struct value x, const struct weight *rate, const struct weight *bias,
                  int logarithm, const double *bound, size_t heads, size_t width, size_t rows,
                  const struct scratch *s)
{
    for (size_t h = 0; h < heads; h++) {
        const double stored = (double)weight_row(rate, 0, s->line)[h];
        const double a = logarithm ? exp(stored) : fabs(stored);
        const float *b = weight_row(bias, 0, s->line) + h * width;
        for (size_t r = 0; r < rows; r++) {
            const float *in = head_of(x, r, h);
            float *out = head_of(y, r, h);
            for (size_t i = 0; i < width; i++) {
                const double z = (double)in[i] + (double)b[i];
                out[i] = (float)(bound ? *bound / (1.0 + exp(-a * z))
                                       : -a * ((z > 0 ? z : 0) + log1p(exp(-fabs(z)))));
            }
        }
    }
}

/* S ← diag(e^g) S; u = σ(β) · (v − Sᵀk); S ← S + k uᵀ; o = Sᵀq. Rows one after another, because
 * each one reads the state that the previous one wrote. */
void op_delta_rule(float *state, struct value y, struct value q, struct value k, struct value v,
                   struct value decay, struct value beta, size_t heads, size_t width, size_t rows,
                   const struct scratch *s)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t h = 0; h < heads; h++) {
            float *S = state + h * width * width, *out = head_of(y, r, h);
            const float *query = head_of(q, r, h), *key = head_of(k, r, h), *value = head_of(v, r, h);
            const float b = sigmoid(row_of(beta, r)[h]);
            clear(s->sums, width);
            for (size_t i = 0; i < width; i++) {
                const float fade = expf(head_of(decay, r, h)[i]);
                for (size_t j = 0; j < width; j++) S[i * width + j] *= fade;
                add_scaled(s->sums, (real)key[i], S + i * width, width);
            }
            for (size_t j = 0; j < width; j++) s->query[j] = b * (value[j] - (float)s->sums[j]);
            clear(s->sums, width);
            for (size_t i = 0; i < width; i++) {
                for (size_t j = 0; j < width; j++) S[i * width + j] += key[i] * s->query[j];
                add_scaled(s->sums, (real)query[i], S + i * width, width);
            }
            for (size_t j = 0; j < width; j++) out[j] = (float)s->sums[j];
        }
}

void op_gated_norm(struct value y, struct value x, struct value gate, const struct weight *w, size_t heads,
                   size_t width, size_t rows, double epsilon, const struct scratch *s)
{
    const float *weight = weight_row(w, 0, s->line);
    for (size_t r = 0; r < rows; r++)
        for (size_t h = 0; h < heads; h++) {
            float *out = head_of(y, r, h);
            rms_norm(out, head_of(x, r, h), weight, width, epsilon);
            for (size_t i = 0; i < width; i++) out[i] *= sigmoid(head_of(gate, r, h)[i]);
        }
}
