/* Continues a text of token ids greedily, or prints logits. */
#include "libmodel.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char usage[] =
    "usage: model FILE.gguf [--greedy N | --logits | --all-logits] [--context N] TOKEN...\n"
    "  --greedy N     print N tokens that continue the given ones [default: 16]\n"
    "  --logits       print the logits after the last token, one line\n"
    "  --all-logits   print the logits after every token, one line each\n"
    "  --context N    tokens that the cache has room for\n";

static int number(const char *text, unsigned long limit, unsigned long *out)
{
    char *end;
    errno = 0;
    *out = strtoul(text, &end, 10);
    return *text >= '0' && *text <= '9' && *end == '\0' && errno == 0 && *out <= limit;
}

static double seconds(void)
{
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void print_row(const float *logits)
{
    for (size_t i = 0; i < MODEL_VOCAB; i++) printf(i ? " %.9g" : "%.9g", (double)logits[i]);
    putchar('\n');
}

static uint32_t best(const float *logits)
{
    uint32_t at = 0;
    for (uint32_t i = 1; i < MODEL_VOCAB; i++)
        if (logits[i] > logits[at]) at = i;
    return at;
}

static int run(struct model *m, const uint32_t *tokens, size_t count, int rows, unsigned long greedy)
{
    const char *problem = NULL;
    float *all = NULL;
    if (rows == 2 && !(all = calloc(count, MODEL_VOCAB * sizeof *all))) problem = "out of memory";
    const double start = seconds();
    if (!problem) problem = model_step(m, tokens, count, all);
    const double prompt = seconds();
    for (size_t i = 0; !problem && all && i < count; i++) print_row(all + i * MODEL_VOCAB);
    free(all);
    if (!problem && rows == 1) print_row(model_logits(m));
    if (!problem && rows == 0) {
        unsigned long made = 0;
        while (!problem && made < greedy) {
            const uint32_t token = best(model_logits(m));
            printf(made ? " %lu" : "%lu", (unsigned long)token);
            if (++made < greedy) problem = model_step(m, &token, 1, NULL);
        }
        putchar('\n');
        const double end = seconds();
        if (made > 1)
            fprintf(stderr, "prompt: %lu tokens, %.2f tokens per second; answer: %.2f tokens per second\n",
                    (unsigned long)count, (double)count / (prompt - start), (double)(made - 1) / (end - prompt));
    }
    if (problem) fprintf(stderr, "model: %s\n", problem);
    return problem ? 1 : 0;
}

int main(int argc, char **argv)
{
    char error[512];
    int rows = 0;
    unsigned long greedy = 16, context = 0, token;
    size_t count = 0;
    uint32_t *tokens = argc > 2 ? calloc((size_t)argc, sizeof *tokens) : NULL;
    int wrong = !tokens;
    for (int i = 2; !wrong && i < argc; i++) {
        if (strcmp(argv[i], "--logits") == 0) rows = 1;
        else if (strcmp(argv[i], "--all-logits") == 0) rows = 2;
        else if (strcmp(argv[i], "--greedy") == 0 && i + 1 < argc) wrong = !number(argv[++i], 1ul << 30, &greedy);
        else if (strcmp(argv[i], "--context") == 0 && i + 1 < argc) wrong = !number(argv[++i], 1ul << 30, &context);
        else if (number(argv[i], 0xfffffffful, &token)) tokens[count++] = (uint32_t)token;
        else wrong = 1;
    }
    if (wrong || count == 0) {
        fputs(usage, stderr);
        free(tokens);
        return 2;
    }
    struct model *m = model_open(argv[1], context, error, sizeof error);
    if (!m) fprintf(stderr, "model: %s\n", error);
    const int code = m ? run(m, tokens, count, rows, greedy) : 1;
    model_close(m);
    free(tokens);
    return code;
}
