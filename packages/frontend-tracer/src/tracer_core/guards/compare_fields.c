/* The inner loop of a stamp: have these memory fields changed since?
   Plain C without headers of Python or torch: watched_fields.py says where to look. Called with the
   GIL held. */
#include <stdint.h>

struct stamp {
  int64_t n[3];             /* words of each depth: one may be read when those of lesser depth are unchanged */
  const uint64_t **words;   /* their addresses, depth after depth */
  uint64_t *values;         /* what they held */
};

void guard_cache_take(const struct stamp *s, int64_t from, int64_t to) {
  for (int64_t i = from; i < to; i++) s->values[i] = *s->words[i];
}

int guard_cache_holds(const struct stamp *s) {
  const uint64_t **words = s->words;
  const uint64_t *values = s->values;
  for (int depth = 0; depth < 3; depth++) {
    uint64_t moved = 0;
    for (int64_t i = 0; i < s->n[depth]; i++) moved |= *words[i] ^ values[i];
    if (moved) return 0;
    words += s->n[depth];
    values += s->n[depth];
  }
  return 1;
}
