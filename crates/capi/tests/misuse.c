/* What a caller can get wrong, from several threads and from a forked child too. Prints what is not as it should be. */
#include "latent.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int problems = 0;

#define CHECK(condition)                                              \
    do {                                                              \
        if (!(condition)) {                                           \
            printf("line %d: not so: %s\n", __LINE__, #condition);    \
            problems++;                                               \
        }                                                             \
    } while (0)

/* A call that must fail with this code, and words in its message. */
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
    options.size = 3;
    REFUSED(LATENT_INVALID_ARGUMENT, "sizeof", latent_model_load(NULL, &options, &model, &error));
    /* a program that was compiled with a later header, which sets what this library does not know */
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
    REFUSED(LATENT_INVALID_ARGUMENT, "more than memory", latent_tokenize(model, "a", SIZE_MAX, 0, 0, &tokens, &error));
    REFUSED(LATENT_INVALID_ARGUMENT, "tokens is NULL", latent_tokenize(model, "a", 1, 0, 0, NULL, &error));
    /* nobody has to want the message */
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
    REFUSED(LATENT_INVALID_ARGUMENT, "names no role", latent_render_chat(model, "[{}]", 4, NULL, 0, &text, NULL, &error));
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

/* A child process refuses what needs the threads, and can still read text and free the model. */
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
    /* so that the same tokens have the same logits alone and in a batch */
    options.precision = "exact";
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
    child(model);
    latent_model_free(model);
    return problems != 0;
}
