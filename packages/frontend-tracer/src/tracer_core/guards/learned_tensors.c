/* Tensors among a region's inputs: are they like those that the full check has accepted?
   Plain C without headers of Python or torch: layout.py says where to look. Called with the GIL held. */
#include <stdint.h>

enum { INLINE_DIMS = 5, KNOWN = 4 + 2 * INLINE_DIMS };

struct tensors {
  int64_t n;              /* 0: nothing is known yet */
  int64_t size;           /* of the tuple */
  uint64_t tuple;         /* the type of the tuple */
  int64_t items;          /* offset of its items */
  int64_t impl, sizes, autograd, kind, keys; /* offsets: see layout.py */
  uint64_t kind_bits;     /* the bits of `kind` that mean something */
  const int64_t *at;      /* positions in the tuple */
  const uint64_t *known;  /* of each: type, dimensions, sizes, strides, dtype with device and flags, dispatch keys */
};

static uint64_t word(uint64_t address) { return *(const uint64_t *)address; }

int tensors_hold(const struct tensors *s, uint64_t state) {
  if (s->n == 0 || word(state + 8) != s->tuple || (int64_t)word(state + 16) != s->size) return 0;
  const uint64_t *known = s->known;
  for (int64_t i = 0; i < s->n; i++, known += KNOWN) {
    uint64_t object = word(state + s->items + 8 * s->at[i]);
    if (word(object + 8) != known[0]) return 0;
    uint64_t impl = word(object + s->impl);
    if (impl == 0 || word(impl + s->autograd) != 0) return 0;
    uint64_t sizes = impl + s->sizes, dims = known[1];
    uint64_t moved = word(sizes) ^ dims;
    if (moved) return 0; /* of more dimensions than fit, the sizes are elsewhere */
    for (uint64_t d = 0; d < dims; d++) {
      moved |= word(sizes + 8 + 8 * d) ^ known[2 + d];
      moved |= word(sizes + 8 + 8 * (INLINE_DIMS + d)) ^ known[2 + INLINE_DIMS + d];
    }
    moved |= (word(sizes + s->kind) ^ known[2 + 2 * INLINE_DIMS]) & s->kind_bits;
    moved |= word(sizes + s->keys) ^ known[3 + 2 * INLINE_DIMS];
    if (moved) return 0;
  }
  return 1;
}
