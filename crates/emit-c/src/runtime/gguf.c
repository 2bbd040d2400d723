#if defined(__unix__) || (defined(__APPLE__) && defined(__MACH__))
#define _POSIX_C_SOURCE 200809L
#define HAVE_MMAP 1
#endif

#include "gguf.h"
#include "kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef HAVE_MMAP
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

const char *file_open(struct file *file, const char *path)
{
    struct stat state;
    const char *problem = NULL;
    const int descriptor = open(path, O_RDONLY);
    if (descriptor < 0) return "cannot be opened";
    if (fstat(descriptor, &state) != 0 || !S_ISREG(state.st_mode)) problem = "is not a regular file";
    else if (state.st_size <= 0) problem = "is empty";
    else if ((uintmax_t)state.st_size > SIZE_MAX) problem = "is larger than the address space";
    if (!problem) {
        void *data = mmap(NULL, (size_t)state.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
        if (data == MAP_FAILED) problem = "cannot be mapped";
        else *file = (struct file){data, (size_t)state.st_size, 1};
    }
    close(descriptor);
    return problem;
}

#else

const char *file_open(struct file *file, const char *path)
{
    FILE *in = fopen(path, "rb");
    if (!in) return "cannot be opened";
    uint8_t *data = NULL;
    size_t bytes = 0, capacity = 0;
    const char *problem = NULL;
    for (;;) {
        if (bytes == capacity) {
            capacity = capacity ? capacity * 2 : 1 << 20;
            uint8_t *larger = capacity > bytes ? realloc(data, capacity) : NULL;
            if (!larger) {
                problem = "does not fit in memory";
                break;
            }
            data = larger;
        }
        const size_t got = fread(data + bytes, 1, capacity - bytes, in);
        if (got == 0) {
            if (ferror(in)) problem = "cannot be read";
            break;
        }
        bytes += got;
    }
    fclose(in);
    if (!problem && bytes == 0) problem = "is empty";
    if (problem) free(data);
    else *file = (struct file){data, bytes, 0};
    return problem;
}

#endif

void file_close(struct file *file)
{
    if (!file->data) return;
#ifdef HAVE_MMAP
    if (file->mapped) munmap((void *)(uintptr_t)file->data, file->bytes);
#endif
    if (!file->mapped) free((void *)(uintptr_t)file->data);
    file->data = NULL;
}

/* The unread part of the header. Every read checks `left`, because counts and lengths come from the
 * file. */
struct cursor {
    const uint8_t *at;
    size_t left;
};

static int skip(struct cursor *c, uint64_t bytes)
{
    if (bytes > c->left) return 0;
    c->at += (size_t)bytes;
    c->left -= (size_t)bytes;
    return 1;
}

static int read_number(struct cursor *c, size_t bytes, uint64_t *number)
{
    const uint8_t *at = c->at;
    if (!skip(c, bytes)) return 0;
    *number = 0;
    for (size_t i = 0; i < bytes; i++) *number |= (uint64_t)at[i] << (8 * i);
    return 1;
}

static int read_string(struct cursor *c, const uint8_t **text, uint64_t *bytes)
{
    if (!read_number(c, 8, bytes)) return 0;
    *text = c->at;
    return skip(c, *bytes);
}

enum { GGUF_U8 = 0, GGUF_U32 = 4, GGUF_STRING = 8, GGUF_U64 = 10, GGUF_I8_TENSOR = 24, GGUF_ARRAY = 9,
       GGUF_TYPES = 13, MAX_NESTING = 4 };

/* Skips a metadata value of this type. Arrays may nest, so the depth of the recursion is
 * limited. */
static int skip_value(struct cursor *c, uint64_t type, int depth)
{
    static const uint8_t size[GGUF_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    const uint8_t *text;
    uint64_t bytes, element, count;
    if (type >= GGUF_TYPES) return 0;
    if (type == GGUF_STRING) return read_string(c, &text, &bytes);
    if (type != GGUF_ARRAY) return skip(c, size[type]);
    if (depth == MAX_NESTING || !read_number(c, 4, &element) || !read_number(c, 8, &count)) return 0;
    if (element >= GGUF_TYPES || count > c->left) return 0;
    if (size[element]) return count <= c->left / size[element] && skip(c, count * size[element]);
    for (uint64_t i = 0; i < count; i++)
        if (!skip_value(c, element, depth + 1)) return 0;
    return 1;
}

static int compare(const uint8_t *a, uint64_t a_bytes, const char *b, size_t b_bytes)
{
    const size_t shorter = a_bytes < b_bytes ? (size_t)a_bytes : b_bytes;
    const int order = memcmp(a, b, shorter);
    return order ? order : (a_bytes > b_bytes) - (a_bytes < b_bytes);
}

/* The index of the tensor of this name, or `count`. The plan's tensors are sorted by name. */
static size_t find(const struct tensor *tensors, size_t count, const uint8_t *name, uint64_t bytes)
{
    size_t low = 0, high = count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = compare(name, bytes, tensors[middle].name, tensors[middle].name_bytes);
        if (order == 0) return middle;
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return count;
}

/* Bytes of a tensor; 0 if the number overflows or a row is not a whole number of blocks. */
static uint64_t tensor_bytes(const struct tensor *t)
{
    if (t->dimensions[0] > SIZE_MAX) return 0;
    uint64_t bytes = type_row_bytes((enum tensor_type)t->type, (size_t)t->dimensions[0]);
    for (int i = 1; i < MAX_DIMENSIONS; i++) {
        if (t->dimensions[i] == 0 || bytes > UINT64_MAX / t->dimensions[i]) return 0;
        bytes *= t->dimensions[i];
    }
    return bytes;
}

static int fail(char *error, size_t bytes, const char *problem)
{
    snprintf(error, bytes, "%s", problem);
    return -1;
}

/* The metadata arrays in which a packed file states type, shape and layout of each tensor. Its list
 * of tensors states I8 for all of them. */
enum form_array { FORM_TYPES, FORM_DIMENSIONS, FORM_SHAPES, FORM_TILE_ROWS, FORM_ARRAYS };
struct forms {
    struct cursor at[FORM_ARRAYS];
    int found[FORM_ARRAYS];
};

/* Remembers one of these arrays. `value` is the position after the key's type. Returns 0 if the
 * array has another element type or length. */
static int note_form(struct forms *forms, const uint8_t *name, uint64_t bytes, uint64_t type, struct cursor value,
                     uint64_t tensors)
{
    static const char *const keys[FORM_ARRAYS] = {"latent.tensor.types", "latent.tensor.dimensions",
                                                  "latent.tensor.shapes", "latent.tensor.tile_rows"};
    static const uint64_t elements[FORM_ARRAYS] = {GGUF_STRING, GGUF_U8, GGUF_U64, GGUF_U64};
    for (int i = 0; i < FORM_ARRAYS; i++) {
        uint64_t element, count;
        if (compare(name, bytes, keys[i], strlen(keys[i])) != 0) continue;
        if (type != GGUF_ARRAY || !read_number(&value, 4, &element) || !read_number(&value, 8, &count)) return 0;
        if (element != elements[i] || (i != FORM_SHAPES && count != tensors)) return 0;
        if (i == FORM_SHAPES && count > value.left / 8) return 0;
        if (i == FORM_SHAPES) value.left = (size_t)count * 8;
        forms->at[i] = value;
        forms->found[i] = 1;
    }
    return 1;
}

/* Type, dimensions (innermost first) and tile rows of the next tensor. The arrays have the order of
 * the list. */
static int next_form(struct forms *forms, const uint8_t **type, uint64_t *type_bytes,
                     uint64_t dimensions[MAX_DIMENSIONS], int *known, uint64_t *tile_rows)
{
    uint64_t count, dimension;
    if (!read_string(&forms->at[FORM_TYPES], type, type_bytes)) return 0;
    if (!read_number(&forms->at[FORM_DIMENSIONS], 1, &count)) return 0;
    for (int d = 0; d < MAX_DIMENSIONS; d++) dimensions[d] = 1;
    *known = count <= MAX_DIMENSIONS;
    for (uint64_t d = count; d > 0; d--) {
        if (!read_number(&forms->at[FORM_SHAPES], 8, &dimension)) return 0;
        if (d <= MAX_DIMENSIONS) dimensions[d - 1] = dimension;
    }
    return read_number(&forms->at[FORM_TILE_ROWS], 8, tile_rows);
}

/* The GGUF part of a file: the whole file, or everything after the first page of a packed file. */
static const char *gguf_part(const struct file *file, struct cursor *part, int *packed)
{
    enum { PAGE = 4096, VERSION = 2 };
    struct cursor c = {file->data, file->bytes};
    uint64_t version, bytes;
    *part = c;
    *packed = c.left >= 8 && memcmp(c.at, "LATENTPK", 8) == 0;
    if (!*packed) return NULL;
    if (!skip(&c, 8) || !read_number(&c, 8, &version) || !read_number(&c, 8, &bytes)) return "the packed file is truncated";
    if (version != VERSION) return "unsupported version of packed files: pack the model again";
    if (bytes != file->bytes || !skip(part, PAGE)) return "the packed file is incomplete";
    return NULL;
}

/* Whether a tensor has the type that the plan expects. GGUF files state an id, packed files a
 * name. */
static int same_type(const struct tensor *t, int packed, uint64_t id, const uint8_t *name, uint64_t bytes)
{
    if (!packed) return id == t->type;
    const char *expected = type_name((enum tensor_type)t->type);
    return id == GGUF_I8_TENSOR && compare(name, bytes, expected, strlen(expected)) == 0;
}

/* Writes a shape such as [512, 16], without the dimensions of 1 that a tensor lacks. */
static void print_shape(const uint64_t *dimensions, char *text, size_t bytes)
{
    int last = MAX_DIMENSIONS - 1;
    while (last > 0 && dimensions[last] == 1) last--;
    size_t used = 0;
    for (int i = 0; i <= last && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%llu%s", i ? ", " : "[", (unsigned long long)dimensions[i],
                                 i == last ? "]" : "");
}

/* Bytes of a tensor in tiles; 0 if the format has no tiles or the number overflows. */
static uint64_t tiled_bytes(const struct tensor *t, uint64_t tile_rows)
{
    uint64_t rows = 1;
    for (int i = 1; i < MAX_DIMENSIONS; i++) {
        if (t->dimensions[i] == 0 || rows > UINT64_MAX / t->dimensions[i]) return 0;
        rows *= t->dimensions[i];
    }
    if (t->dimensions[0] > SIZE_MAX || tile_rows > SIZE_MAX) return 0;
    const struct tiles tiles = tiles_layout((enum tensor_type)t->type, (size_t)t->dimensions[0]);
    return tiles_bytes(&tiles, rows, tile_rows);
}

int gguf_find(const struct file *file, const struct tensor *tensors, size_t count, struct tensor_place *places,
              char *error, size_t error_bytes)
{
    struct cursor c, whole;
    struct forms forms = {{{NULL, 0}}, {0}};
    int packed;
    uint64_t version, tensor_count, key_count, alignment = 32;
    const char *broken = gguf_part(file, &whole, &packed);
    if (broken) return fail(error, error_bytes, broken);
    c = whole;
    if (c.left < 4 || memcmp(c.at, "GGUF", 4) != 0 || !skip(&c, 4)) return fail(error, error_bytes, "not a GGUF file");
    if (!read_number(&c, 4, &version) || !read_number(&c, 8, &tensor_count) || !read_number(&c, 8, &key_count))
        return fail(error, error_bytes, "the GGUF header is truncated");
    if (version != 2 && version != 3) return fail(error, error_bytes, "unsupported GGUF version: expected 2 or 3");
    for (uint64_t i = 0; i < key_count; i++) {
        static const char key[] = "general.alignment";
        const uint8_t *name;
        uint64_t bytes, type;
        if (!read_string(&c, &name, &bytes) || !read_number(&c, 4, &type))
            return fail(error, error_bytes, "the GGUF metadata is truncated");
        const struct cursor value = c;
        if (!skip_value(&c, type, 0)) return fail(error, error_bytes, "the GGUF metadata is broken");
        if (packed && !note_form(&forms, name, bytes, type, value, tensor_count))
            return fail(error, error_bytes, "the packed file's forms of tensors are broken");
        if (type == GGUF_U32 && compare(name, bytes, key, sizeof key - 1) == 0) {
            struct cursor at = value;
            if (!read_number(&at, 4, &alignment) || alignment == 0)
                return fail(error, error_bytes, "general.alignment is 0");
        }
    }
    for (int i = 0; packed && i < FORM_ARRAYS; i++)
        if (!forms.found[i]) return fail(error, error_bytes, "the packed file has no forms of tensors");
    for (size_t i = 0; i < count; i++) places[i] = (struct tensor_place){NULL, 0};
    /* Offsets are relative to the aligned end of the list of tensors. The first pass finds that
     * end, and the second one resolves them. */
    struct cursor list = c;
    uint64_t start = 0;
    for (int pass = 0; pass < 2; pass++) {
        c = list;
        for (uint64_t i = 0; i < tensor_count; i++) {
            const uint8_t *name;
            uint64_t bytes, dimension_count, dimensions[MAX_DIMENSIONS] = {1, 1, 1, 1}, type, offset;
            int known = 1;
            if (!read_string(&c, &name, &bytes) || !read_number(&c, 4, &dimension_count))
                return fail(error, error_bytes, "the list of tensors is truncated");
            for (uint64_t d = 0; d < dimension_count; d++) {
                uint64_t dimension;
                if (!read_number(&c, 8, &dimension)) return fail(error, error_bytes, "the list of tensors is truncated");
                if (d < MAX_DIMENSIONS) dimensions[d] = dimension;
                else known = known && dimension == 1;
            }
            if (!read_number(&c, 4, &type) || !read_number(&c, 8, &offset))
                return fail(error, error_bytes, "the list of tensors is truncated");
            if (pass == 0) continue;
            const uint8_t *type_text = NULL;
            uint64_t type_bytes = 0, tile_rows = 0;
            const uint64_t stored = dimensions[0];
            if (packed && !next_form(&forms, &type_text, &type_bytes, dimensions, &known, &tile_rows))
                return fail(error, error_bytes, "the packed file's forms of tensors are truncated");
            const size_t index = find(tensors, count, name, bytes);
            if (index == count) continue;
            const struct tensor *t = &tensors[index];
            const char *problem = NULL;
            const uint64_t size = tile_rows ? tiled_bytes(t, tile_rows) : tensor_bytes(t);
            if (!same_type(t, packed, type, type_text, type_bytes)) {
                snprintf(error, error_bytes, "tensor %s has an unexpected type, expected %s", t->name,
                         type_name((enum tensor_type)t->type));
                return -1;
            }
            if (!known || memcmp(dimensions, t->dimensions, sizeof dimensions) != 0) {
                char found[96], expected[96];
                print_shape(dimensions, found, sizeof found);
                print_shape(t->dimensions, expected, sizeof expected);
                snprintf(error, error_bytes, "tensor %s has shape %s, expected %s", t->name, found, expected);
                return -1;
            }
            if (places[index].data) problem = "occurs twice";
            else if (size == 0 || (packed && size != stored)) problem = "has an unexpected size";
            else if (offset > whole.left - start || size > whole.left - start - offset) problem = "extends past the end of the file";
            if (problem) {
                snprintf(error, error_bytes, "tensor %s %s", t->name, problem);
                return -1;
            }
            places[index] = (struct tensor_place){whole.at + start + offset, (size_t)tile_rows};
        }
        const uint64_t header = whole.left - c.left, rest = header % alignment;
        start = rest ? header + (alignment - rest) : header;
        if (start < header || start > whole.left) start = whole.left;
    }
    for (size_t i = 0; i < count; i++)
        if (!places[i].data) {
            snprintf(error, error_bytes, "tensor %s is missing", tensors[i].name);
            return -1;
        }
    return 0;
}
