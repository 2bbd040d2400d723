/* NULL for each pointer of each function, sizes that overflow, calls from callbacks, threads that
   share a model, and forks during an answer. Prints failures. */
#include "check.h"
#include "latent.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* A call that must fail as an error of the caller, with a message, also if `error` is NULL. */
#define WRONG(call)                                                                                  \
    do {                                                                                             \
        latent_error *taken = NULL;                                                                  \
        latent_error **error = &taken;                                                               \
        latent_status status = (call);                                                               \
        if (status != LATENT_INVALID_ARGUMENT && status != LATENT_OUT_OF_MEMORY) {                   \
            printf("line %d: code %d: %s\n", __LINE__, (int)status, latent_error_message(taken));    \
            problems++;                                                                              \
        }                                                                                            \
        CHECK(latent_error_status(taken) == status && strlen(latent_error_message(taken)) > 5);      \
        latent_error_free(taken);                                                                    \
        error = NULL;                                                                                \
        CHECK((call) == status);                                                                     \
    } while (0)

static const char HELLO[] = "[{\"role\": \"user\", \"content\": \"Hello\"}]";
static const uint32_t PROMPT[] = {1, 20, 30};

static void nulls(const latent_model *model) {
    latent_tokens tokens = {NULL, 0};
    latent_string text = {NULL, 0};
    latent_generate_options options;
    float few[4];
    WRONG(latent_model_load(NULL, NULL, NULL, error));
    WRONG(latent_model_describe(NULL, &text, error));
    WRONG(latent_model_describe(model, NULL, error));
    CHECK(latent_model_vocab_size(NULL) == 0 && latent_model_context(NULL) == 0 && latent_model_hidden_size(NULL) == 0);
    WRONG(latent_tokenize(NULL, "a", 1, 0, 0, &tokens, error));
    WRONG(latent_tokenize(model, NULL, 1, 0, 0, &tokens, error));
    WRONG(latent_tokenize(model, "a", 1, 0, 0, NULL, error));
    WRONG(latent_detokenize(NULL, PROMPT, 3, 0, &text, error));
    WRONG(latent_detokenize(model, NULL, 3, 0, &text, error));
    WRONG(latent_detokenize(model, PROMPT, 3, 0, NULL, error));
    WRONG(latent_generate_options_init(NULL, &options, sizeof options, error));
    WRONG(latent_generate_options_init(model, NULL, sizeof options, error));
    WRONG(latent_generate(NULL, PROMPT, 3, NULL, NULL, NULL, NULL, NULL, error));
    WRONG(latent_generate(model, NULL, 3, NULL, NULL, NULL, NULL, NULL, error));
    WRONG(latent_render_chat(NULL, HELLO, strlen(HELLO), NULL, 0, &text, NULL, error));
    WRONG(latent_render_chat(model, NULL, 4, NULL, 0, &text, NULL, error));
    WRONG(latent_render_chat(model, HELLO, strlen(HELLO), NULL, 4, &text, NULL, error));
    WRONG(latent_chat(NULL, HELLO, strlen(HELLO), NULL, 0, NULL, NULL, NULL, NULL, NULL, error));
    WRONG(latent_chat(model, NULL, 4, NULL, 0, NULL, NULL, NULL, NULL, NULL, error));
    WRONG(latent_chat(model, HELLO, strlen(HELLO), NULL, 4, NULL, NULL, NULL, NULL, NULL, error));
    WRONG(latent_logits(NULL, PROMPT, 3, 0, few, 4, error));
    WRONG(latent_logits(model, NULL, 3, 0, few, 4, error));
    WRONG(latent_logits(model, PROMPT, 3, 0, NULL, latent_model_vocab_size(model), error));
    WRONG(latent_embed(NULL, "a", 1, few, 4, error));
    WRONG(latent_embed(model, NULL, 1, few, 4, error));
    WRONG(latent_embed(model, "a", 1, NULL, latent_model_hidden_size(model), error));
    WRONG(latent_gemm_new(1, NULL, error));
    /* Refused calls must not set their outputs. */
    CHECK(tokens.data == NULL && text.data == NULL);
    /* Every output may be NULL. */
    CHECK(latent_render_chat(model, HELLO, strlen(HELLO), NULL, 0, NULL, NULL, NULL) == LATENT_OK);
    options.size = 0;
    CHECK(latent_generate_options_init(model, &options, sizeof options, NULL) == LATENT_OK);
    options.max_tokens = 1;
    CHECK(latent_generate(model, PROMPT, 3, &options, NULL, NULL, NULL, NULL, NULL) == LATENT_OK);
    CHECK(latent_chat(model, HELLO, strlen(HELLO), NULL, 0, &options, NULL, NULL, NULL, NULL, NULL) == LATENT_OK);
}

static void sizes(const latent_model *model) {
    latent_tokens tokens = {NULL, 0};
    latent_string text = {NULL, 0};
    float few[4];
    for (int bit = 40; bit < 64; bit++) {
        const size_t many = (size_t)1 << bit;
        WRONG(latent_logits(model, PROMPT, 3, 1, few, many + 4, error));
        WRONG(latent_embed(model, "a", 1, few, many + 4, error));
    }
    WRONG(latent_tokenize(model, "a", SIZE_MAX, 0, 0, &tokens, error));
    WRONG(latent_detokenize(model, PROMPT, SIZE_MAX, 0, &text, error));
    WRONG(latent_generate(model, PROMPT, SIZE_MAX, NULL, NULL, NULL, NULL, NULL, error));
    WRONG(latent_logits(model, PROMPT, SIZE_MAX, 0, few, 4, error));
    WRONG(latent_embed(model, "a", SIZE_MAX, few, 4, error));
    WRONG(latent_render_chat(model, HELLO, SIZE_MAX, NULL, 0, &text, NULL, error));
    /* A misaligned pointer. */
    const char bytes[16] = {0};
    WRONG(latent_detokenize(model, (const uint32_t *)(bytes + 1), 2, 0, &text, error));
    WRONG(latent_logits(model, PROMPT, 3, 0, few, SIZE_MAX / sizeof(float), error));
    /* Invalid sizes of structs. */
    const size_t wrong[] = {0, 1, 7, 5000, SIZE_MAX};
    latent_generate_options options;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK(latent_generate_options_init(model, &options, sizeof options, NULL) == LATENT_OK);
        WRONG(latent_generate_options_init(model, &options, wrong[i], error));
        options.size = wrong[i];
        WRONG(latent_generate(model, PROMPT, 3, &options, NULL, NULL, NULL, NULL, error));
        latent_load_options load = {wrong[i]};
        latent_model *none = NULL;
        WRONG(latent_model_load(NULL, &load, &none, error));
        CHECK(latent_generate_options_init(model, &options, sizeof options, NULL) == LATENT_OK);
        options.max_tokens = 1;
        latent_answer answer;
        answer.size = wrong[i];
        WRONG(latent_generate(model, PROMPT, 3, &options, NULL, NULL, &answer, NULL, error));
    }
    /* Numbers out of range. */
    const float numbers[] = {NAN, INFINITY, -INFINITY, -1};
    for (size_t i = 0; i < 4; i++) {
        CHECK(latent_generate_options_init(model, &options, sizeof options, NULL) == LATENT_OK);
        options.temperature = numbers[i];
        WRONG(latent_generate(model, PROMPT, 3, &options, NULL, NULL, NULL, NULL, error));
        CHECK(latent_generate_options_init(model, &options, sizeof options, NULL) == LATENT_OK);
        options.top_p = numbers[i];
        WRONG(latent_generate(model, PROMPT, 3, &options, NULL, NULL, NULL, NULL, error));
    }
    CHECK(latent_generate_options_init(model, &options, sizeof options, NULL) == LATENT_OK);
    const char *stops[] = {"a", NULL, "\xff"};
    options.stop = stops;
    for (options.stop_count = 2; options.stop_count < 4; options.stop_count++) {
        WRONG(latent_generate(model, PROMPT, 3, &options, NULL, NULL, NULL, NULL, error));
        stops[1] = "b";
    }
    options.stop_count = SIZE_MAX;
    WRONG(latent_generate(model, PROMPT, 3, &options, NULL, NULL, NULL, NULL, error));
    options.stop_count = 0;
    const latent_logit_bias bias = {1, NAN};
    options.logit_bias = &bias;
    options.logit_bias_count = 1;
    WRONG(latent_generate(model, PROMPT, 3, &options, NULL, NULL, NULL, NULL, error));
    options.logit_bias_count = SIZE_MAX;
    WRONG(latent_generate(model, PROMPT, 3, &options, NULL, NULL, NULL, NULL, error));
    /* Malformed messages, and deeply nested ones. */
    char deep[4096];
    memset(deep, '[', sizeof deep);
    const char *messages[] = {"", "{}", "7", "null", "[7]", "[{\"role\": 7}]", "\xff\xfe"};
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
        WRONG(latent_render_chat(model, messages[i], strlen(messages[i]), NULL, 0, &text, NULL, error));
        WRONG(latent_chat(model, messages[i], strlen(messages[i]), NULL, 0, NULL, NULL, NULL, NULL, NULL, error));
    }
    WRONG(latent_render_chat(model, deep, sizeof deep, NULL, 0, &text, NULL, error));
    WRONG(latent_render_chat(model, HELLO, strlen(HELLO), deep, sizeof deep, &text, NULL, error));
    WRONG(latent_render_chat(model, HELLO, strlen(HELLO), "[]", 2, &text, NULL, error));
    CHECK(tokens.data == NULL && text.data == NULL);
}

enum { K = 64, N = 64, GROUPS = 2 };

static void products(void) {
    latent_gemm *gemm = NULL;
    CHECK(latent_gemm_new(2, &gemm, NULL) == LATENT_OK);
    static uint32_t words[K / 8 * N];
    static uint16_t scales[GROUPS * N];
    static float x[K], y[N], dense[K * N];
    latent_weight good = {sizeof(latent_weight)};
    good.k = K, good.n = N, good.group = K / GROUPS;
    good.words = words, good.words_count = K / 8 * N;
    good.scales = scales, good.scales_count = GROUPS * N;
    CHECK(latent_gemm_multiply(gemm, &good, x, K, LATENT_INPUT_F32, 1, y, N, NULL, NULL) == LATENT_OK);
    CHECK(latent_gemm_multiply(gemm, &good, NULL, 0, LATENT_INPUT_F32, 0, NULL, 0, NULL, NULL) <= LATENT_INVALID_ARGUMENT);
    WRONG(latent_gemm_multiply(NULL, &good, x, K, LATENT_INPUT_F32, 1, y, N, NULL, error));
    WRONG(latent_gemm_multiply(gemm, NULL, x, K, LATENT_INPUT_F32, 1, y, N, NULL, error));
    WRONG(latent_gemm_multiply(gemm, &good, NULL, K, LATENT_INPUT_F32, 1, y, N, NULL, error));
    WRONG(latent_gemm_multiply(gemm, &good, x, K, LATENT_INPUT_F32, 1, NULL, N, NULL, error));
    WRONG(latent_gemm_dequantize(NULL, &good, dense, K * N, error));
    WRONG(latent_gemm_dequantize(gemm, &good, NULL, K * N, error));
    /* Numbers of rows whose products with K and N overflow to 0 in 64 bits. */
    WRONG(latent_gemm_multiply(gemm, &good, x, 0, LATENT_INPUT_F32, (size_t)1 << 58, y, 0, NULL, error));
    WRONG(latent_gemm_multiply(gemm, &good, x, K, LATENT_INPUT_F32, ((size_t)1 << 58) + 1, y, N, NULL, error));
    const size_t wrong[] = {0, 1, 7, 8, 5000, ~(size_t)7, ~(size_t)0, (size_t)1 << 61, ((size_t)1 << 61) + K};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        latent_weight bad = good;
        bad.k = wrong[i];
        WRONG(latent_gemm_dequantize(gemm, &bad, dense, K * N, error));
        bad = good, bad.n = wrong[i];
        WRONG(latent_gemm_dequantize(gemm, &bad, dense, K * N, error));
        bad = good, bad.words_count = wrong[i];
        WRONG(latent_gemm_dequantize(gemm, &bad, dense, K * N, error));
        bad = good, bad.scales_count = wrong[i];
        WRONG(latent_gemm_dequantize(gemm, &bad, dense, K * N, error));
        WRONG(latent_gemm_dequantize(gemm, &good, dense, wrong[i], error));
        WRONG(latent_gemm_pack(LATENT_FP4, wrong[i], N, K / GROUPS, dense, K * N, words, K / 8 * N, scales, GROUPS * N, NULL, 0, error));
        WRONG(latent_gemm_pack(LATENT_FP4, K, wrong[i], K / GROUPS, dense, K * N, words, K / 8 * N, scales, GROUPS * N, NULL, 0, error));
        WRONG(latent_gemm_pack(LATENT_FP4, K, N, K / GROUPS, dense, wrong[i], words, K / 8 * N, scales, GROUPS * N, NULL, 0, error));
        WRONG(latent_gemm_pack(LATENT_FP4, K, N, K / GROUPS, dense, K * N, words, wrong[i], scales, GROUPS * N, NULL, 0, error));
        WRONG(latent_gemm_pack(LATENT_FP4, K, N, K / GROUPS, dense, K * N, words, K / 8 * N, scales, wrong[i], NULL, 0, error));
        if (wrong[i] != 8) {
            bad = good, bad.group = wrong[i];
            WRONG(latent_gemm_dequantize(gemm, &bad, dense, K * N, error));
            WRONG(latent_gemm_pack(LATENT_FP4, K, N, wrong[i], dense, K * N, words, K / 8 * N, scales, GROUPS * N, NULL, 0, error));
        }
        bad = good, bad.size = wrong[i] == 8 ? 3 : wrong[i];
        WRONG(latent_gemm_dequantize(gemm, &bad, dense, K * N, error));
    }
    WRONG(latent_gemm_pack(LATENT_FP4, K, N, K / GROUPS, NULL, K * N, words, K / 8 * N, scales, GROUPS * N, NULL, 0, error));
    WRONG(latent_gemm_pack(LATENT_FP4, K, N, K / GROUPS, dense, K * N, NULL, K / 8 * N, scales, GROUPS * N, NULL, 0, error));
    WRONG(latent_gemm_pack(LATENT_FP4, K, N, K / GROUPS, dense, K * N, words, K / 8 * N, NULL, GROUPS * N, NULL, 0, error));
    latent_gemm_options options = {sizeof(latent_gemm_options), "no such kernel", NULL, NULL, 0};
    WRONG(latent_gemm_multiply(gemm, &good, x, K, LATENT_INPUT_F32, 1, y, N, &options, error));
    options.kernel = "\xff";
    WRONG(latent_gemm_multiply(gemm, &good, x, K, LATENT_INPUT_F32, 1, y, N, &options, error));
    latent_gemm_free(gemm);
}

/* Calls from a callback for the model that generates. */
struct within {
    latent_model *model;
    int depth, heard;
};

static bool call_back(void *user_data, const latent_event *event) {
    struct within *within = (struct within *)user_data;
    if (event->kind != LATENT_EVENT_TOKEN) {
        return true;
    }
    within->heard++;
    if (within->heard != 2) {
        return true;
    }
    latent_tokens tokens = {NULL, 0};
    latent_string text = {NULL, 0};
    CHECK(latent_tokenize(within->model, "a fox", 5, 0, 0, &tokens, NULL) == LATENT_OK);
    CHECK(latent_detokenize(within->model, tokens.data, tokens.length, 0, &text, NULL) == LATENT_OK);
    CHECK(strcmp(text.data, "a fox") == 0);
    latent_tokens_free(&tokens);
    latent_string_free(&text);
    CHECK(latent_model_describe(within->model, &text, NULL) == LATENT_OK);
    latent_string_free(&text);
    latent_generate_options options;
    CHECK(latent_generate_options_init(within->model, &options, sizeof options, NULL) == LATENT_OK);
    options.max_tokens = 4;
    options.temperature = 0;
    struct within inner = {within->model, within->depth - 1, 0};
    const latent_callback callback = inner.depth > 0 ? call_back : NULL;
    CHECK(latent_generate(within->model, PROMPT, 3, &options, callback, &inner, NULL, NULL, NULL) == LATENT_OK);
    CHECK(latent_chat(within->model, HELLO, strlen(HELLO), NULL, 0, &options, NULL, NULL, NULL, &text, NULL) == LATENT_OK);
    latent_string_free(&text);
    return true;
}

static int generate(latent_model *model, struct within *within, latent_callback callback) {
    latent_generate_options options;
    latent_generate_options_init(model, &options, sizeof options, NULL);
    options.max_tokens = 6;
    options.temperature = 0;
    latent_answer answer;
    answer.size = sizeof answer;
    const latent_status status = latent_generate(model, PROMPT, 3, &options, callback, within, &answer, NULL, NULL);
    CHECK(status == LATENT_OK);
    return status == LATENT_OK ? (int)answer.completion_tokens : -1;
}

static void *nested(void *model) {
    struct within within = {(latent_model *)model, 3, 0};
    CHECK(generate((latent_model *)model, &within, call_back) == 6 && within.heard == 6);
    return NULL;
}

/* Frees the model in its own callback: the generation keeps it alive until it has ended. */
static bool free_model(void *user_data, const latent_event *event) {
    struct within *within = (struct within *)user_data;
    if (event->kind == LATENT_EVENT_TOKEN && within->heard++ == 0) {
        latent_model_free(within->model);
    }
    return true;
}

/* Forks during an answer: calls in the child fail, and the parent's answer continues. */
static bool fork_within(void *user_data, const latent_event *event) {
    struct within *within = (struct within *)user_data;
    if (event->kind != LATENT_EVENT_TOKEN || within->heard++ != 1) {
        return true;
    }
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        latent_error *error = NULL;
        const latent_status status = latent_generate(within->model, PROMPT, 3, NULL, NULL, NULL, NULL, NULL, &error);
        const int right = status == LATENT_FORKED && latent_error_status(error) == LATENT_FORKED;
        latent_error_free(error);
        latent_model_free(within->model);
        _exit(right ? 0 : 1);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return true;
}

static latent_model *loaded(void) {
    latent_load_options options = {sizeof(latent_load_options)};
    options.ctx_size = 256;
    options.threads = 2;
    latent_model *model = NULL;
    return latent_model_load(NULL, &options, &model, NULL) == LATENT_OK ? model : NULL;
}

int main(void) {
    CHECK(latent_abi_version() == LATENT_ABI_VERSION);
    latent_model *model = loaded();
    if (!model) {
        return 2;
    }
    nulls(model);
    sizes(model);
    products();
    nested(model);
    pthread_t handles[3];
    for (int i = 0; i < 3; i++) {
        pthread_create(&handles[i], NULL, nested, model);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(handles[i], NULL);
    }
    struct within within = {model, 0, 0};
    CHECK(generate(model, &within, fork_within) == 6 && within.heard == 6);
    within.heard = 0;
    CHECK(generate(model, &within, free_model) == 6 && within.heard == 6);
    /* Load and free models repeatedly. */
    for (int i = 0; i < 3; i++) {
        latent_model_free(loaded());
    }
    return problems != 0;
}
