/* Constants of a graph: are these the very tensors, with the memory and the version, that were prepared?
   Plain C without headers of Python or torch: constant_check.py says where to look. Called with the GIL held. */
#include <stdint.h>

struct constants {
  int64_t n;               /* constants */
  int64_t size;            /* of the list of inputs */
  uint64_t list;           /* the type of that list */
  const int64_t *at;       /* positions in it */
  const uint64_t *ids;     /* the objects that stood there */
  int64_t depths[4];       /* words of each depth: one may be read when those of lesser depth are unchanged */
  const uint64_t **words;  /* their addresses, depth after depth */
  const uint64_t *values;  /* what they held */
};

static uint64_t word(uint64_t address) { return *(const uint64_t *)address; }

int constants_hold(const struct constants *c, uint64_t inputs) {
  if (word(inputs + 8) != c->list || (int64_t)word(inputs + 16) != c->size) return 0;
  const uint64_t *items = (const uint64_t *)word(inputs + 24);
  uint64_t moved = 0;
  for (int64_t i = 0; i < c->n; i++) moved |= items[c->at[i]] ^ c->ids[i];
  if (moved) return 0;
  const uint64_t **words = c->words;
  const uint64_t *values = c->values;
  for (int depth = 0; depth < 4; depth++) {
    for (int64_t i = 0; i < c->depths[depth]; i++) moved |= *words[i] ^ values[i];
    if (moved) return 0;
    words += c->depths[depth];
    values += c->depths[depth];
  }
  return 1;
}
