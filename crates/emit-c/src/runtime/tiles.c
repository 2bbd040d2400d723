#include "tiles.h"

#include <string.h>

enum { ALIGN = 64, MAX_FIELDS = 4, UNBLOCKED = 32 };

/* The planes of a tile. Each has one kind of field of all blocks, block after block. */
enum plane { QUANTS, UPPER, SCALES, BLOCK_SCALES };

/* A field of a block: units interleaved over sixteen rows, or scales and bits that packing has
 * rearranged. */
enum field_kind { NONE, UNITS, BITS, K_SCALES, Q3_SCALES, IQ4_SCALES };
struct field {
    enum field_kind kind;
    enum plane plane;
    uint8_t from, size, count;
};

struct format {
    size_t elements; /* per block */
    struct field fields[MAX_FIELDS];
};

static const struct format *format_of(enum tensor_type type)
{
    static const struct format
        q4_0 = {32, {{UNITS, BLOCK_SCALES, 0, 2, 1}, {UNITS, QUANTS, 2, 4, 4}}},
        q4_1 = {32, {{UNITS, BLOCK_SCALES, 0, 2, 2}, {UNITS, QUANTS, 4, 4, 4}}},
        q5_0 = {32, {{UNITS, BLOCK_SCALES, 0, 2, 1}, {BITS, UPPER, 2, 4, 1}, {UNITS, QUANTS, 6, 4, 4}}},
        q5_1 = {32, {{UNITS, BLOCK_SCALES, 0, 2, 2}, {BITS, UPPER, 4, 4, 1}, {UNITS, QUANTS, 8, 4, 4}}},
        q8_0 = {32, {{UNITS, BLOCK_SCALES, 0, 2, 1}, {UNITS, QUANTS, 2, 4, 8}}},
        q2_k = {256, {{UNITS, SCALES, 0, 1, 16}, {UNITS, QUANTS, 16, 4, 16}, {UNITS, BLOCK_SCALES, 80, 2, 2}}},
        q3_k = {256,
                {{UNITS, UPPER, 0, 4, 8}, {UNITS, QUANTS, 32, 4, 16}, {Q3_SCALES, SCALES, 96, 1, 16},
                 {UNITS, BLOCK_SCALES, 108, 2, 1}}},
        q4_k = {256, {{UNITS, BLOCK_SCALES, 0, 2, 2}, {K_SCALES, SCALES, 4, 1, 16}, {UNITS, QUANTS, 16, 4, 32}}},
        q5_k = {256,
                {{UNITS, BLOCK_SCALES, 0, 2, 2}, {K_SCALES, SCALES, 4, 1, 16}, {UNITS, UPPER, 16, 4, 8},
                 {UNITS, QUANTS, 48, 4, 32}}},
        q6_k = {256,
                {{UNITS, QUANTS, 0, 4, 32}, {UNITS, UPPER, 128, 4, 16}, {UNITS, SCALES, 192, 1, 16},
                 {UNITS, BLOCK_SCALES, 208, 2, 1}}},
        iq4_xs = {256, {{UNITS, BLOCK_SCALES, 0, 2, 1}, {IQ4_SCALES, SCALES, 2, 1, 8}, {UNITS, QUANTS, 8, 4, 32}}},
        mxfp4 = {32, {{UNITS, BLOCK_SCALES, 0, 1, 1}, {UNITS, QUANTS, 1, 4, 4}}},
        bf16 = {UNBLOCKED, {{UNITS, QUANTS, 0, 4, UNBLOCKED / 2}}},
        f16 = {UNBLOCKED, {{UNITS, QUANTS, 0, 2, UNBLOCKED}}};
    switch (type) {
    case TYPE_F32: return NULL;
    case TYPE_F16: return &f16;
    case TYPE_BF16: return &bf16;
    case TYPE_Q4_0: return &q4_0;
    case TYPE_Q4_1: return &q4_1;
    case TYPE_Q5_0: return &q5_0;
    case TYPE_Q5_1: return &q5_1;
    case TYPE_Q8_0: return &q8_0;
    case TYPE_Q2_K: return &q2_k;
    case TYPE_Q3_K: return &q3_k;
    case TYPE_Q4_K: return &q4_k;
    case TYPE_Q5_K: return &q5_k;
    case TYPE_Q6_K: return &q6_k;
    case TYPE_IQ4_NL: return &q4_0;
    case TYPE_IQ4_XS: return &iq4_xs;
    case TYPE_MXFP4: return &mxfp4;
    }
    return NULL;
}

struct tiles tiles_layout(enum tensor_type type, size_t inputs)
{
    struct tiles t = {0, 0, {0, 0, 0, 0}, 0};
    const struct format *format = format_of(type);
    if (!format || inputs == 0 || inputs > SIZE_MAX / 64) return t;
    t.elements = format->elements;
    t.blocks = (inputs + format->elements - 1) / format->elements;
    for (int plane = 0; plane < TILE_PLANES; plane++) {
        size_t block = 0;
        for (int f = 0; f < MAX_FIELDS; f++) {
            const struct field *field = &format->fields[f];
            if (field->kind != NONE && (int)field->plane == plane) block += (size_t)field->size * field->count;
        }
        t.starts[plane] = t.bytes;
        t.bytes += (t.blocks * TILE_ROWS * block + ALIGN - 1) / ALIGN * ALIGN;
    }
    return t;
}

uint64_t tiles_bytes(const struct tiles *t, uint64_t rows, uint64_t tile_rows)
{
    if (t->bytes == 0 || tile_rows == 0 || rows % tile_rows != 0) return 0;
    const uint64_t tiles = rows / tile_rows * (tile_rows / TILE_ROWS + (tile_rows % TILE_ROWS != 0));
    return tiles > UINT64_MAX / t->bytes ? 0 : tiles * t->bytes;
}

/* Packs the scales and minima of Q4_K and Q5_K, one byte each in tiles, to 6 bits as in GGUF. */
static void pack_k_scales(const uint8_t bytes[16], uint8_t out[12])
{
    const uint8_t *scales = bytes, *minima = bytes + 8;
    for (int i = 0; i < 4; i++) {
        out[i] = (uint8_t)(scales[i] | scales[i + 4] >> 4 << 6);
        out[i + 4] = (uint8_t)(minima[i] | minima[i + 4] >> 4 << 6);
        out[i + 8] = (uint8_t)((scales[i + 4] & 15) | (minima[i + 4] & 15) << 4);
    }
}

/* Packs the scales of Q3_K, a signed byte each in tiles, to 6 bits as in GGUF. */
static void pack_q3_scales(const uint8_t bytes[16], uint8_t out[12])
{
    memset(out, 0, 12);
    for (int i = 0; i < 16; i++) {
        const unsigned bits = (bytes[i] + 32u) & 63u;
        out[i % 8] = (uint8_t)(out[i % 8] | (bits & 15u) << (4 * (i / 8)));
        out[8 + i % 4] = (uint8_t)(out[8 + i % 4] | bits >> 4 << (2 * (i / 4)));
    }
}

/* Packs the scales of IQ4_XS, a signed byte each in tiles, to 6 bits as in GGUF: two bytes of upper
 * bits, then four bytes of lower bits. */
static void pack_iq4_scales(const uint8_t bytes[8], uint8_t out[6])
{
    memset(out, 0, 6);
    for (int i = 0; i < 8; i++) {
        const unsigned bits = (bytes[i] + 32u) & 63u;
        out[i / 4] = (uint8_t)(out[i / 4] | bits >> 4 << (i % 4 * 2));
        out[2 + i / 2] = (uint8_t)(out[2 + i / 2] | (bits & 15u) << (i % 2 * 4));
    }
}

void tile_block(const struct tiles *t, enum tensor_type type, const uint8_t *tile, size_t r, size_t b,
                uint8_t block[MAX_BLOCK_BYTES])
{
    const struct format *format = format_of(type);
    for (int f = 0; f < MAX_FIELDS; f++) {
        const struct field *field = &format->fields[f];
        const size_t size = field->size, count = field->count;
        const uint8_t *units = tile + t->starts[field->plane] + (b * count * TILE_ROWS + r) * size;
        uint8_t scales[16], *out = block + field->from;
        if (field->kind == NONE) break;
        if (field->kind == BITS) {
            /* Eight vectors of 64 bits, each with four bits of every row. */
            const uint8_t *bits = tile + t->starts[UPPER] + b * 64 + r / 2;
            for (int i = 0; i < 4; i++) {
                const unsigned low = bits[16 * i] >> (r % 2 * 4) & 15u, high = bits[16 * i + 8] >> (r % 2 * 4) & 15u;
                out[i] = (uint8_t)(low | high << 4);
            }
            continue;
        }
        if (field->kind == UNITS) {
            for (size_t u = 0; u < count; u++) memcpy(out + u * size, units + u * TILE_ROWS * size, size);
            continue;
        }
        for (size_t u = 0; u < count; u++) scales[u] = units[u * TILE_ROWS];
        if (field->kind == K_SCALES) pack_k_scales(scales, out);
        else if (field->kind == Q3_SCALES) pack_q3_scales(scales, out);
        else pack_iq4_scales(scales, out);
    }
}
