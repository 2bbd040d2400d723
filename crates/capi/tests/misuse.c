/* Errors of a caller, also from several threads and from a forked child. Prints failures. */
#include "check.h"
#include "latent.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* A call that must fail with this code and with these words in its message. */
#define REFUSED(code, words, call)                                                                       \
    do {                                                                                                 \
        latent_error *error = NULL;                                                                      \
        latent_status status = (call);                                                                   \
        if (status != (code) || latent_error_status(error) != (code) ||                                  \
            !strstr(latent_error_message(error), words)) {                                               \
            printf("line %d: code %d: %s\n", __LINE__, (int)status, latent_error_message(error));        \
            problems++;                                                                                  \
        }                                                                                                \
        latent_error_free(error);                                                                        \
    } while (0)

static void loading(const char *truncated) {
    latent_model *model = (latent_model *)&problems;
    REFUSED(LATENT_NOT_FOUND, "/no/such/model.gguf", latent_model_load("/no/such/model.gguf", NULL, &model, &error));
    CHECK(model == NULL);
    REFUSED(LATENT_NOT_FOUND, "latent pull hf:o/n", latent_model_load("hf:o/n", NULL, &model, &error));
    REFUSED(LATENT_BAD_FILE, truncated, latent_model_load(truncated, NULL, &model, &error));
    REFUSED(LATENT_INVALID_ARGUMENT, "path is not UTF-8", latent_model_load("\xff", NULL, &model, &error));
    REFUSED(LATENT_INVALID_ARGUMENT, "model is NULL", latent_model_load(NULL, NULL, NULL, &error));
    latent_load_options options = {sizeof(latent_load_options)};
    options.cache_type = "int7";
    REFUSED(LATENT_INVALID_ARGUMENT, "int8", latent_model_load(NULL, &options, &model, &error));
    options.cache_type = NULL;
    options.sparse_attention = "half";
    REFUSED(LATENT_INVALID_ARGUMENT, "half", latent_model_load(NULL, &options, &model, &error));
    options.size = 3;
    REFUSED(LATENT_INVALID_ARGUMENT, "sizeof", latent_model_load(NULL, &options, &model, &error));
    /* A program compiled with a later header sets a field that this library does not know. */
    struct {
        latent_load_options known;
        uint64_t later;
    } grown = {{sizeof(latent_load_options)}, 0};
    grown.known.size = sizeof grown;
    grown.known.ctx_size = 64;
    latent_error *none = NULL;
    CHECK(latent_model_load(NULL, &grown.known, &model, &none) == LATENT_OK && none == NULL);
    CHECK(latent_model_context(model) == 64);
    latent_model_free(model);
    grown.later = 1;
    REFUSED(LATENT_INVALID_ARGUMENT, "newer liblatent", latent_model_load(NULL, &grown.known, &model, &error));
}

static void arguments(const latent_model *model) {
    latent_tokens tokens = {NULL, 0};
    REFUSED(LATENT_INVALID_ARGUMENT, "model is NULL", latent_tokenize(NULL, "a", 1, 0, 0, &tokens, &error));
    REFUSED(LATENT_INVALID_ARGUMENT, "text is NULL", latent_tokenize(model, NULL, 1, 0, 0, &tokens, &error));
    REFUSED(LATENT_INVALID_ARGUMENT, "byte 1 of 2", latent_tokenize(model, "a\xc3", 2, 0, 0, &tokens, &error));
    REFUSED(LATENT_INVALID_ARGUMENT, "exceed the address space", latent_tokenize(model, "a", SIZE_MAX, 0, 0, &tokens, &error));
    REFUSED(LATENT_INVALID_ARGUMENT, "tokens is NULL", latent_tokenize(model, "a", 1, 0, 0, NULL, &error));
    /* The error may be NULL. */
    CHECK(latent_tokenize(model, NULL, 1, 0, 0, &tokens, NULL) == LATENT_INVALID_ARGUMENT);
    CHECK(latent_tokenize(model, NULL, 0, 0, 0, &tokens, NULL) == LATENT_OK && tokens.length == 0);
    latent_tokens_free(&tokens);
    latent_tokens_free(&tokens);
    latent_tokens_free(NULL);
    latent_string_free(NULL);
    latent_model_free(NULL);
    latent_error_free(NULL);
    CHECK(latent_error_status(NULL) == LATENT_OK && latent_model_vocab_size(NULL) == 0);

    latent_string text = {NULL, 0};
    const uint32_t out_of_range[] = {1, 4000000000u};
    REFUSED(LATENT_INVALID_ARGUMENT, "4000000000", latent_detokenize(model, out_of_range, 2, 0, &text, &error));
    REFUSED(LATENT_INVALID_ARGUMENT, "4000000000",
            latent_generate(model, out_of_range, 2, NULL, NULL, NULL, NULL, NULL, &error));
    REFUSED(LATENT_INVALID_ARGUMENT, "no tokens", latent_generate(model, NULL, 0, NULL, NULL, NULL, NULL, NULL, &error));
    uint32_t *long_prompt = (uint32_t *)calloc(5000, sizeof(uint32_t));
    REFUSED(LATENT_TOO_LONG, "5000", latent_generate(model, long_prompt, 5000, NULL, NULL, NULL, NULL, NULL, &error));
    free(long_prompt);

    latent_generate_options options;
    REFUSED(LATENT_INVALID_ARGUMENT, "sizeof", latent_generate_options_init(model, &options, 7, &error));
    CHECK(latent_generate_options_init(model, &options, sizeof options, NULL) == LATENT_OK);
    CHECK(options.size == sizeof options && options.max_tokens == -1 && options.temperature >= 0);
    const uint32_t prompt[] = {1, 2, 3};
    options.temperature = NAN;
    REFUSED(LATENT_INVALID_ARGUMENT, "temperature is NaN",
            latent_generate(model, prompt, 3, &options, NULL, NULL, NULL, NULL, &error));
    options.temperature = 0;
    options.max_tokens = -2;
    REFUSED(LATENT_INVALID_ARGUMENT, "max_tokens is -2",
            latent_generate(model, prompt, 3, &options, NULL, NULL, NULL, NULL, &error));
    options.max_tokens = 1;
    options.stop_count = 1;
    REFUSED(LATENT_INVALID_ARGUMENT, "stop is NULL",
            latent_generate(model, prompt, 3, &options, NULL, NULL, NULL, NULL, &error));
    options.stop_count = 0;
    const latent_logit_bias bias = {4000000000u, 1};
    options.logit_bias = &bias;
    options.logit_bias_count = 1;
    REFUSED(LATENT_INVALID_ARGUMENT, "logit bias", latent_generate(model, prompt, 3, &options, NULL, NULL, NULL, NULL, &error));

    float few[3];
    REFUSED(LATENT_INVALID_ARGUMENT, "room for 3", latent_logits(model, prompt, 3, false, few, 3, &error));
    REFUSED(LATENT_INVALID_ARGUMENT, "room for 3", latent_embed(model, "a", 1, few, 3, &error));
    REFUSED(LATENT_INVALID_ARGUMENT, "messages is not JSON", latent_render_chat(model, "[", 1, NULL, 0, &text, NULL, &error));
    REFUSED(LATENT_INVALID_ARGUMENT, "has no role", latent_render_chat(model, "[{}]", 4, NULL, 0, &text, NULL, &error));
}

struct stopping {
    int heard, most;
};

static bool stop_early(void *user_data, const latent_event *event) {
    struct stopping *stopping = (struct stopping *)user_data;
    CHECK(event->size >= sizeof *event && event->text[event->text_length] == 0);
    stopping->heard += event->kind == LATENT_EVENT_TOKEN;
    return stopping->heard < stopping->most;
}

static void *generate(void *argument) {
    const latent_model *model = (const latent_model *)argument;
    const uint32_t prompt[] = {1, 20, 30};
    latent_generate_options options;
    latent_generate_options_init(model, &options, sizeof options, NULL);
    options.temperature = 0;
    options.max_tokens = 16;
    latent_string text = {NULL, 0};
    latent_answer answer;
    answer.size = sizeof answer;
    struct stopping stopping = {0, 5};
    CHECK(latent_generate(model, prompt, 3, &options, stop_early, &stopping, &answer, &text, NULL) == LATENT_OK);
    CHECK(stopping.heard == 5 && answer.completion_tokens == 5 && answer.stop == LATENT_STOP_CALLER);
    CHECK(answer.prompt_tokens == 3 && strlen(text.data) == text.length);
    latent_string_free(&text);
    latent_string whole = {NULL, 0};
    CHECK(latent_generate(model, prompt, 3, &options, NULL, NULL, NULL, &whole, NULL) == LATENT_OK);
    return whole.data;
}

static void threads(const latent_model *model) {
    pthread_t handles[4];
    for (int i = 0; i < 4; i++) {
        pthread_create(&handles[i], NULL, generate, (void *)model);
    }
    char *texts[4];
    for (int i = 0; i < 4; i++) {
        pthread_join(handles[i], (void **)&texts[i]);
        CHECK(strcmp(texts[0], texts[i]) == 0);
    }
    for (int i = 0; i < 4; i++) {
        latent_string string = {texts[i], strlen(texts[i])};
        latent_string_free(&string);
    }
}

static void values(const latent_model *model) {
    const size_t vocab = latent_model_vocab_size(model), hidden = latent_model_hidden_size(model);
    const uint32_t tokens[] = {1, 20, 30};
    float *all = (float *)malloc(3 * vocab * sizeof(float)), *last = (float *)malloc(vocab * sizeof(float));
    CHECK(latent_logits(model, tokens, 3, true, all, 3 * vocab, NULL) == LATENT_OK);
    CHECK(latent_logits(model, tokens, 3, false, last, vocab, NULL) == LATENT_OK);
    CHECK(memcmp(all + 2 * vocab, last, vocab * sizeof(float)) == 0);
    float *embedding = (float *)malloc(hidden * sizeof(float)), length = 0;
    CHECK(latent_embed(model, "a fox", 5, embedding, hidden, NULL) == LATENT_OK);
    for (size_t i = 0; i < hidden; i++) {
        length += embedding[i] * embedding[i];
    }
    CHECK(fabsf(length - 1) < 1e-4f);
    free(all);
    free(last);
    free(embedding);
}

enum { GROUPS = 2, COLUMNS = 5, INPUTS = 64 };

static void *multiply(void *gemm) {
    static const uint32_t words[INPUTS / 8 * COLUMNS];
    static const uint16_t scales[GROUPS * COLUMNS];
    static const float x[2 * INPUTS];
    float y[2 * COLUMNS] = {1};
    latent_weight weight = {sizeof(latent_weight)};
    weight.k = INPUTS, weight.n = COLUMNS, weight.group = INPUTS / GROUPS;
    weight.words = words, weight.words_count = INPUTS / 8 * COLUMNS;
    weight.scales = scales, weight.scales_count = GROUPS * COLUMNS;
    for (int i = 0; i < 100; i++) {
        CHECK(latent_gemm_multiply((latent_gemm *)gemm, &weight, x, 2 * INPUTS, LATENT_INPUT_F32, 2, y, 2 * COLUMNS, NULL, NULL) == LATENT_OK);
    }
    CHECK(y[0] == 0);
    return NULL;
}

static void products(void) {
    latent_gemm *gemm = NULL;
    REFUSED(LATENT_INVALID_ARGUMENT, "gemm is NULL", latent_gemm_new(1, NULL, &error));
    REFUSED(LATENT_INVALID_ARGUMENT, "5000 threads", latent_gemm_new(5000, &gemm, &error));
    CHECK(latent_gemm_new(2, &gemm, NULL) == LATENT_OK);
    const float dense[INPUTS * COLUMNS] = {1, -7};
    uint32_t words[INPUTS / 8 * COLUMNS];
    uint16_t scales[GROUPS * COLUMNS];
    uint8_t zeros[GROUPS * COLUMNS];
    const size_t count = INPUTS * COLUMNS, groups = GROUPS * COLUMNS;
    REFUSED(LATENT_INVALID_ARGUMENT, "K is 60, which is not a multiple of 8",
            latent_gemm_pack(LATENT_FP4, 60, COLUMNS, 30, dense, 300, words, 35, scales, groups, NULL, 0, &error));
    REFUSED(LATENT_INVALID_ARGUMENT, "not a multiple of the group size 48",
            latent_gemm_pack(LATENT_FP4, INPUTS, COLUMNS, 48, dense, count, words, 40, scales, groups, NULL, 0, &error));
    REFUSED(LATENT_INVALID_ARGUMENT, "words has room for 39",
            latent_gemm_pack(LATENT_FP4, INPUTS, COLUMNS, 32, dense, count, words, 39, scales, groups, NULL, 0, &error));
    REFUSED(LATENT_INVALID_ARGUMENT, "zeros has room for 0 elements, expected 2 rows of 5",
            latent_gemm_pack(LATENT_INT4, INPUTS, COLUMNS, 32, dense, count, words, 40, scales, groups, NULL, 0, &error));
    REFUSED(LATENT_INVALID_ARGUMENT, "quant_type is 9",
            latent_gemm_pack(9, INPUTS, COLUMNS, 32, dense, count, words, 40, scales, groups, NULL, 0, &error));
    CHECK(latent_gemm_pack(LATENT_INT4, INPUTS, COLUMNS, 32, dense, count, words, 40, scales, groups, zeros, groups, NULL) == LATENT_OK);
    latent_weight weight = {sizeof(latent_weight)};
    weight.quant_type = LATENT_INT4;
    weight.k = INPUTS, weight.n = COLUMNS, weight.group = 32;
    weight.words = words, weight.words_count = 40;
    weight.scales = scales, weight.scales_count = groups - 1;
    float y[COLUMNS], x[INPUTS] = {1}, values[INPUTS * COLUMNS];
    const latent_gemm_options striped = {sizeof(latent_gemm_options), NULL, NULL, NULL, 9};
    REFUSED(LATENT_INVALID_ARGUMENT, "the scales [2, 5] has 10 elements, but 9",
            latent_gemm_multiply(gemm, &weight, x, INPUTS, LATENT_INPUT_F32, 1, y, COLUMNS, NULL, &error));
    weight.scales_count = groups;
    REFUSED(LATENT_INVALID_ARGUMENT, "int4 weights take zero points", latent_gemm_dequantize(gemm, &weight, values, count, &error));
    weight.zeros = zeros, weight.zeros_count = groups;
    CHECK(latent_gemm_dequantize(gemm, &weight, values, count, NULL) == LATENT_OK);
    CHECK(fabsf(values[0] - 1) < 0.01f && fabsf(values[1] + 7) < 0.01f && values[2] == 0);
    CHECK(latent_gemm_multiply(gemm, &weight, x, INPUTS, LATENT_INPUT_F32, 1, y, COLUMNS, NULL, NULL) == LATENT_OK);
    CHECK(fabsf(y[0] - 1) < 0.01f && fabsf(y[1] + 7) < 0.01f);
    REFUSED(LATENT_INVALID_ARGUMENT, "parallel factor is 9; it must be from 1 to K / 8 = 8",
            latent_gemm_multiply(gemm, &weight, x, INPUTS, LATENT_INPUT_F32, 1, y, COLUMNS, &striped, &error));
    REFUSED(LATENT_INVALID_ARGUMENT, "the input [2, 64] has 128 elements, but 64",
            latent_gemm_multiply(gemm, &weight, x, INPUTS, LATENT_INPUT_F32, 2, y, COLUMNS, NULL, &error));
    REFUSED(LATENT_INVALID_ARGUMENT, "x_type is 3",
            latent_gemm_multiply(gemm, &weight, x, INPUTS, 3, 1, y, COLUMNS, NULL, &error));
    REFUSED(LATENT_INVALID_ARGUMENT, "x is NULL",
            latent_gemm_multiply(gemm, &weight, NULL, INPUTS, LATENT_INPUT_F16, 1, y, COLUMNS, NULL, &error));
    weight.scale_type = LATENT_SCALES_E4M3;
    REFUSED(LATENT_INVALID_ARGUMENT, "tensor_scale is 0", latent_gemm_dequantize(gemm, &weight, values, count, &error));
    REFUSED(LATENT_INVALID_ARGUMENT, "weight is NULL", latent_gemm_dequantize(gemm, NULL, values, count, &error));

    pthread_t handles[3];
    for (int i = 0; i < 3; i++) {
        pthread_create(&handles[i], NULL, multiply, gemm);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(handles[i], NULL);
    }
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        problems = 0;
        weight.scale_type = LATENT_SCALES_F16;
        REFUSED(LATENT_FORKED, "started the threads", latent_gemm_dequantize(gemm, &weight, values, count, &error));
        latent_gemm_free(gemm);
        fflush(stdout);
        _exit(problems);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    latent_gemm_free(gemm);
    latent_gemm_free(NULL);
}

/* In a child process, calls that need threads fail, but it can process text and free the model. */
static void child(latent_model *model) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        problems = 0;
        const uint32_t prompt[] = {1, 20, 30};
        latent_tokens tokens = {NULL, 0};
        REFUSED(LATENT_FORKED, "forked", latent_generate(model, prompt, 3, NULL, NULL, NULL, NULL, NULL, &error));
        REFUSED(LATENT_FORKED, "forked", latent_embed(model, "a", 1, (float *)malloc(1 << 16), latent_model_hidden_size(model), &error));
        CHECK(latent_tokenize(model, "a fox", 5, 0, 0, &tokens, NULL) == LATENT_OK && tokens.length > 0);
        latent_model_free(model);
        fflush(stdout);
        _exit(problems);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        return 2;
    }
    loading(argv[1]);
    latent_load_options options = {sizeof(latent_load_options)};
    options.ctx_size = 256;
    options.threads = 2;
    /* Exact precision: logits do not depend on the batch. */
    options.precision = "exact";
    /* No effect on a model without an indexer. */
    options.sparse_attention = "off";
    latent_model *model = NULL;
    if (latent_model_load(NULL, &options, &model, NULL) != LATENT_OK) {
        return 2;
    }
    latent_string json = {NULL, 0};
    CHECK(latent_model_describe(model, &json, NULL) == LATENT_OK && strstr(json.data, "\"context\":256"));
    latent_string_free(&json);
    arguments(model);
    threads(model);
    values(model);
    products();
    child(model);
    latent_model_free(model);
    return problems != 0;
}
