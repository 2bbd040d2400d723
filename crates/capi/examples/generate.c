/* Generates text and prints it while it is generated. From the root of the repository:
 *
 *     cargo build --release -p latent-capi
 *     cc crates/capi/examples/generate.c -Icrates/capi/include -Ltarget/release -llatent -o generate
 *     LD_LIBRARY_PATH=target/release ./generate [MODEL.gguf [QUESTION]]
 */
#include "latent.h"

#include <stdio.h>
#include <string.h>

/* Prints why a call failed, and releases the error. */
static int failed(const char *what, latent_error *error) {
    fprintf(stderr, "%s: %s (code %d)\n", what, latent_error_message(error), (int)latent_error_status(error));
    latent_error_free(error);
    return 1;
}

/* Prints the text of an event. Returns false, which ends the generation, if stdout fails. */
static bool print(void *user_data, const latent_event *event) {
    size_t *tokens = (size_t *)user_data;
    if (event->kind == LATENT_EVENT_TOKEN) {
        ++*tokens;
    }
    fwrite(event->text, 1, event->text_length, stdout);
    return fflush(stdout) == 0;
}

static int continue_text(const latent_model *model, const char *text) {
    latent_error *error = NULL;
    latent_tokens prompt = {NULL, 0};
    if (latent_tokenize(model, text, strlen(text), true, false, &prompt, &error) != LATENT_OK) {
        return failed("tokenize", error);
    }
    latent_generate_options options;
    if (latent_generate_options_init(model, &options, sizeof options, &error) != LATENT_OK) {
        latent_tokens_free(&prompt);
        return failed("options", error);
    }
    options.max_tokens = 24;
    options.temperature = 0;
    size_t tokens = 0;
    latent_answer answer;
    answer.size = sizeof answer;
    printf("%s", text);
    latent_status status =
        latent_generate(model, prompt.data, prompt.length, &options, print, &tokens, &answer, NULL, &error);
    latent_tokens_free(&prompt);
    if (status != LATENT_OK) {
        return failed("generate", error);
    }
    printf("\n[%zu tokens after %llu, stop %d]\n", tokens, (unsigned long long)answer.prompt_tokens, (int)answer.stop);
    return 0;
}

static int answer_question(const latent_model *model, const char *question) {
    /* Without a JSON library: the question must not contain quotes or backslashes. */
    char messages[512];
    int length = snprintf(messages, sizeof messages, "[{\"role\": \"user\", \"content\": \"%s\"}]", question);
    if (length < 0 || (size_t)length >= sizeof messages) {
        fprintf(stderr, "the question is too long\n");
        return 1;
    }
    latent_error *error = NULL;
    latent_string message = {NULL, 0};
    latent_status status =
        latent_chat(model, messages, (size_t)length, NULL, 0, NULL, NULL, NULL, NULL, &message, &error);
    if (status != LATENT_OK) {
        return failed("chat", error);
    }
    printf("%s\n", message.data);
    latent_string_free(&message);
    return 0;
}

int main(int argc, char **argv) {
    if (latent_abi_version() != LATENT_ABI_VERSION) {
        fprintf(stderr, "liblatent %s has another ABI version than the header\n", latent_version());
        return 1;
    }
    latent_load_options options = {sizeof(latent_load_options)};
    options.ctx_size = 1024;
    latent_model *model = NULL;
    latent_error *error = NULL;
    if (latent_model_load(argc > 1 ? argv[1] : NULL, &options, &model, &error) != LATENT_OK) {
        return failed("load", error);
    }
    int result = continue_text(model, "Once upon a time");
    if (result == 0) {
        result = answer_question(model, argc > 2 ? argv[2] : "Tell me a story about a fox and a lantern.");
    }
    latent_model_free(model);
    return result;
}
