"""Writes the example program in C that comes with a native library: it reads the inputs from a file, runs
the model and writes the outputs to another.
"""

from __future__ import annotations

from collections.abc import Sequence

from inductor_backend.native_library.interface import Interface, Parameter


def example_program(interface: Interface) -> str:
    """Returns the program's text."""
    name, big = interface.name, interface.name.upper()

    def buffers(what: str, parameters: Sequence[Parameter]) -> str:
        return "".join(
            f"    {what}.{parameter.name} = buffer({interface.bytes_of(parameter)});\n"
            for parameter in parameters
        )

    def moved(function: str, what: str, parameters: Sequence[Parameter]) -> str:
        lines = []
        for parameter in parameters:
            size = f"(size_t){interface.bytes_of(parameter)}"
            moved = f"{function}((void *){what}.{parameter.name}, 1, {size}, file)"
            lines.append(f"    ok = ok && {moved} == {size};\n")
        return "".join(lines)

    sizes = "".join(
        f"    inputs.{size.name} = atoll(words[{k}]);\n"
        for k, size in enumerate(interface.sizes, 4)
    )
    text = "".join(f" {size.name.upper()}" for size in interface.sizes)

    return _TEXT.format(
        name=name,
        big=big,
        runs=f" RUNS{text}" if text else " [RUNS]",
        least=4 + len(interface.sizes) if text else 3,
        sizes=sizes,
        buffers=buffers("inputs", interface.inputs) + buffers("outputs", interface.outputs),
        read=moved("fread", "inputs", interface.inputs),
        write=moved("fwrite", "outputs", interface.outputs),
    )


_TEXT = """\
/* Runs {name}:  gcc -O2 example.c {name}.so -Wl,-rpath,'$ORIGIN' -o example
                 ./example INPUTS OUTPUTS{runs}
   INPUTS holds the inputs' bytes one after the other, in the order of {name}.h; OUTPUTS is written likewise.
   With RUNS, prints when the first result was there (CLOCK_MONOTONIC) and the milliseconds of each further run. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "{name}.h"

static double seconds(void) {{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}}

/* memory at a cache line's start, which is the fastest */
static void *buffer(size_t bytes) {{
    void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (!memory) {{
        fprintf(stderr, "no memory\\n");
        exit(1);
    }}
    return memory;
}}

static int failed(const char *what, int code) {{
    fprintf(stderr, "%s: %s\\n", what, {name}_error(code));
    return 10 + code;
}}

int main(int count, char **words) {{
    if (count < {least}) {{
        fprintf(stderr, "usage: %s INPUTS OUTPUTS{runs}\\n", words[0]);
        return 2;
    }}
    {name}_inputs inputs = {{0}};
    {name}_outputs outputs = {{0}};
{sizes}{buffers}\
    int ok = 1;
    FILE *file = fopen(words[1], "rb");
    if (!file) return perror(words[1]), 1;
{read}\
    fclose(file);
    if (!ok) return fprintf(stderr, "%s: too short\\n", words[1]), 1;

    {name}_context *context;
    int code = {name}_open(&context);
    if (code != {big}_OK) return failed("{name}_open", code);
    code = {name}_run(context, &inputs, &outputs);
    if (code != {big}_OK) return failed("{name}_run", code);
    const double first = seconds();
    const int runs = count > 3 ? atoi(words[3]) : 0;
    if (runs > 0) printf("%.6f\\n", first);
    for (int run = 0; run < runs; ++run) {{
        const double start = seconds();
        code = {name}_run(context, &inputs, &outputs);
        if (code != {big}_OK) return failed("{name}_run", code);
        printf("%.6f\\n", 1e3 * (seconds() - start));
    }}
    {name}_close(context);

    file = fopen(words[2], "wb");
    if (!file) return perror(words[2]), 1;
{write}\
    if (fclose(file) || !ok) return fprintf(stderr, "%s: cannot be written\\n", words[2]), 1;
    return 0;
}}
"""
