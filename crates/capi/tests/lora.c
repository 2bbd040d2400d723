/* A LoRA adapter of the demo model (argument: its folder): scales at load and per answer. Prints failures. */
#include "check.h"
#include "latent.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TOKENS = 10 };

struct answer {
    uint32_t tokens[TOKENS];
    int count;
};

static bool keep(void *user_data, const latent_event *event) {
    struct answer *answer = (struct answer *)user_data;
    if (event->kind == LATENT_EVENT_TOKEN && answer->count < TOKENS) {
        answer->tokens[answer->count++] = event->token;
    }
    return true;
}

/* The most probable tokens, with `count` scales. */
static latent_status generate(const latent_model *model, const float *scales, size_t count, struct answer *answer, latent_error **error) {
    uint32_t prompt[] = {20, 21, 22};
    latent_generate_options options;
    latent_status status = latent_generate_options_init(model, &options, sizeof options, error);
    if (status != LATENT_OK) {
        return status;
    }
    memset(answer, 0, sizeof *answer);
    options.max_tokens = TOKENS;
    options.temperature = 0;
    options.lora_scales = scales;
    options.lora_scales_count = count;
    return latent_generate(model, prompt, 3, &options, keep, answer, NULL, NULL, error);
}

static latent_model *loaded(const latent_lora *lora, size_t count) {
    latent_load_options options = {sizeof options};
    options.ctx_size = 128;
    options.threads = 1;
    options.precision = "exact";
    options.lora = lora;
    options.lora_count = count;
    latent_model *model = NULL;
    latent_error *error = NULL;
    if (latent_model_load(NULL, &options, &model, &error) != LATENT_OK) {
        printf("%s\n", latent_error_message(error));
        latent_error_free(error);
    }
    return model;
}

static int same(const struct answer *a, const struct answer *b) {
    return memcmp(a->tokens, b->tokens, sizeof a->tokens) == 0;
}

int main(int argc, char **argv) {
    (void)argc;
    latent_lora off = {argv[1], 0}, on = {argv[1], 1};
    latent_model *plain = loaded(NULL, 0), *silent = loaded(&off, 1), *changed = loaded(&on, 1);
    if (!plain || !silent || !changed) {
        return 1;
    }
    struct answer base, quiet, lora, asked, again;
    float one = 1, zero = 0, wrong[2] = {1, INFINITY};
    latent_error *error = NULL;
    CHECK(generate(plain, NULL, 0, &base, &error) == LATENT_OK);
    CHECK(generate(silent, NULL, 0, &quiet, &error) == LATENT_OK);
    CHECK(generate(silent, &one, 1, &asked, &error) == LATENT_OK);
    CHECK(generate(changed, NULL, 0, &lora, &error) == LATENT_OK);
    CHECK(generate(changed, &zero, 1, &again, &error) == LATENT_OK);
    CHECK(base.count > 0 && same(&base, &quiet) && same(&base, &again));
    CHECK(same(&lora, &asked) && !same(&base, &lora));
    CHECK(generate(changed, wrong, 2, &again, &error) == LATENT_INVALID_ARGUMENT);
    CHECK(strstr(latent_error_message(error), "2 adapter scales were given, but the model has 1 adapters"));
    latent_error_free(error);
    error = NULL;
    CHECK(generate(changed, wrong + 1, 1, &again, &error) == LATENT_INVALID_ARGUMENT);
    latent_error_free(error);
    latent_lora refused[2] = {{NULL, 1}, {argv[1], NAN}};
    const char *words[2] = {"a path of lora is NULL", "expected a finite number"};
    for (int i = 0; i < 2; i++) {
        latent_load_options options = {sizeof options};
        options.lora = &refused[i];
        options.lora_count = 1;
        latent_model *model = NULL;
        error = NULL;
        CHECK(latent_model_load(NULL, &options, &model, &error) == LATENT_INVALID_ARGUMENT && model == NULL);
        CHECK(strstr(latent_error_message(error), words[i]));
        latent_error_free(error);
    }
    latent_model_free(plain);
    latent_model_free(silent);
    latent_model_free(changed);
    return problems;
}
