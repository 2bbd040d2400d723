/* Checks that print the line and go on. */
#ifndef LATENT_TESTS_CHECK_H
#define LATENT_TESTS_CHECK_H

#include <stdio.h>

static int problems = 0;

#define CHECK(condition)                                           \
    do {                                                           \
        if (!(condition)) {                                        \
            printf("line %d: not so: %s\n", __LINE__, #condition); \
            problems++;                                            \
        }                                                          \
    } while (0)

#endif
